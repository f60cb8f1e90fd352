//! Plain functions on one connection for each kind of lock, and their scripts.

// Called by `server`, `renewing`, `watchdog` and `locks`, through what this file hands on, and by
// `book` for its transactions. Locks nothing but `reentrant::EndedHolds`, which asks nobody.
//
// Each kind is a folder: the Lua files are its scripts, and `mod.rs` has the plain functions and
// builds the call of each script. `once` is the mark of work that runs once per period. All kinds
// share `hold`; `calls` picks the call by the kind, and `plain` has what the plain functions have
// in common; `verdict` says what a reply means for a
// hold, `inspect` who holds a lock, and `transaction` writes while it is held.
//
// To add a kind, add a folder here, a `LockKind` with a constructor of `Hold`, and an arm to each
// `match` in `calls`; the modules above use a `Hold`. If kinds wait or are released in different
// ways, `locks` checks the kind, in `acquire`, `attempts`, `lock` and `run`. The stand-in for tests
// implements each script in `testing/store/scripts.rs`.

mod calls;
mod hold;
mod inspect;
pub mod mutex;
mod once;
mod plain;
pub mod read_write;
pub mod reentrant;
pub mod semaphore;
mod transaction;
mod verdict;

use redis::Value;

pub use hold::Hold;
pub(crate) use hold::{Attempt, LockKind};
pub use inspect::Holder;
pub(crate) use inspect::{
    Found, force_releasing, inspecting, read_forced_release, read_inspection,
};
pub use once::LastRun;
pub(crate) use once::{last_run, read_mark};
pub use plain::Grant;
pub(crate) use reentrant::EndedHolds;
pub use transaction::WatchedConnection;
pub(crate) use transaction::{
    Attempted, CommitMark, Executed, HeldCommit, LockState, Proof, Transaction, WantedLock,
    was_interrupted,
};
pub(crate) use verdict::{Evidence, KnownHold};

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
