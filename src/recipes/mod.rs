//! Plain functions on one connection for each kind of lock, and their scripts.

// Each kind is a folder: the Lua files are its scripts, and `mod.rs` has the plain functions and
// builds the call of each script. All kinds share `hold`, and `calls` picks the call by the kind.
// `wait` is the loop of all functions that wait.
//
// To add a kind, add a folder here, a `LockKind` with a constructor of `Hold`, and an arm to each
// `match` in `calls`; the modules above use a `Hold`. If kinds wait or are released in different
// ways, `locks` checks the kind, in `acquire`, `attempts`, `lock` and `run`. The stand-in for tests
// implements each script in `testing/store/scripts.rs`.

mod article;
pub mod book_semaphore;
mod calls;
pub(crate) mod hold;
pub(crate) mod inspect;
pub mod mutex;
pub(crate) mod once;
pub(crate) mod ran;
pub mod read_write;
pub mod reentrant;
pub mod semaphore;
pub mod simple;
pub(crate) mod transaction;
mod wait;

use redis::Value;

pub use hold::{Grant, Hold};

/// Reads a string from a script's reply.
fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        _ => None,
    }
}

/// Reads a whole number, sent as digits, from a script's reply.
fn number(value: &Value) -> Option<u64> {
    text(value)?.parse().ok()
}
