//! Servers that are down, silent, read-only, full, busy, or do not let us: each says so in an error that names the function
//! and the lock, nothing of the caller's is lost, and afterwards the next call works.

mod acl;
mod down;
mod refusing;
mod secrets;
