//! Servers that are down, silent, read-only, full, busy, or refuse the user: the error names the
//! function and the lock, no data of the caller is lost, and afterwards the next call works.

mod acl;
mod down;
mod refusing;
mod secrets;
