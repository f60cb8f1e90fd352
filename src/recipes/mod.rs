//! Each kind of lock as plain functions on one connection, and its scripts.

// A kind is a folder: the Lua files are its scripts, `mod.rs` has the plain functions and makes a
// call of each script. `hold` is what all kinds have in common, and `calls` chooses the call of a
// hold by its kind. `wait` is the loop of all functions that wait.
//
// A new kind, such as a semaphore, is a new folder here, a `LockKind` with a constructor of `Hold`,
// and an arm in each `match` of `calls`; the rooms above know a `Hold`. Where kinds wait or are
// released in different ways, `locks` asks it for its kind: in `acquire`, `attempts`, `lock` and
// `run`. The stand-in for tests answers each script, in `testing/store/scripts.rs`.

mod article;
mod calls;
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

use redis::Value;

pub use hold::{Grant, Hold};

/// A text that a script has read.
fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        _ => None,
    }
}

/// A whole number in digits that a script has read.
fn number(value: &Value) -> Option<u64> {
    text(value)?.parse().ok()
}
