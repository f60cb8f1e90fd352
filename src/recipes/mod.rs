//! What each kind of lock does on the server, as plain functions on one connection.

// A kind is a folder: `mod.rs` has its functions and what they promise, the Lua files are its
// scripts, `calls.rs` makes a typed call of each. `wait` is the loop of all functions that wait.
//
// A new kind, such as a semaphore, is a new folder here and a `LockKind` in `hold`, which says
// what to send and what the answers mean; the rooms above know a `Hold`. Where kinds wait or are
// released in different ways, `locks` asks it for its kind: in `acquire`, `acquire/head`,
// `attempts`, `lock` and `once`. The stand-in for tests needs a function for each of its scripts,
// in `testing/store/scripts.rs`.

mod article;
pub(crate) mod commit;
pub(crate) mod hold;
pub(crate) mod inspect;
pub mod mutex;
pub(crate) mod once;
pub(crate) mod ran;
pub mod read_write;
pub mod reentrant;
pub mod simple;
pub(crate) mod transaction;
mod wait;

pub use hold::Hold;
