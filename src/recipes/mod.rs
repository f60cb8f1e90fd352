//! Plain functions on one connection for each kind of lock, and their scripts.
//!
//! [A page](crate::docs::recipes) shows the keys and the states of each kind.

// Called by `server`, `renewing`, `watchdog` and `locks`, and by `book` for its transactions. They
// import what this file re-exports. The only mutex is in `reentrant::EndedHolds`; while it is
// locked, nothing is sent and no other mutex is locked.
//
// Each kind is a folder (readers and writers share one): the Lua files are its scripts, and
// `mod.rs` has the plain functions and builds the call of each script. All kinds share the rest:
// `hold` is a hold of any kind, and reads the replies to attempts; `calls` chooses the call by the
// kind; `plain` has the common part of the plain functions; `once` marks work that runs once per
// period; `inspect` reads or removes the holders; `verdict` judges a hold by a reply; and
// `transaction` writes while a lock is held.
//
// To add a kind, add a folder here, a `LockKind`, a constructor of `Hold`, and one of `Lock` in
// `locks/mod.rs`. The compiler then names each `match` to extend: in `hold`, `calls` and
// `locks/attempts.rs`. It does not name these:
// - the form of its replies, its fencing token and its companion: `hold`;
// - the value of its key: `inspect` and its `look.lua`, and the texts of `Lock::with_found_kind`;
// - its scripts in the stand-in for tests: `testing/store`;
// - the tests of all kinds: `tests/common/kinds.rs`, `every_kind` in `tests/common/hold.rs`, and
//   `tests/stand_in/steps.rs`;
// - the pages: `docs/recipes.md`, and the promises and commands in `docs/guarantees.md`.
//
// The rooms above use a `Hold` of any kind. `locks` checks the kind only where kinds wait, queue,
// run or are adopted differently: in `acquire`, `attempts`, `lock`, `run` and `adopt`.

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
