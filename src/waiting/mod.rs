//! Queues of the threads of this process that wait for locks: they decide which thread is next, and
//! when it asks the server. Independent of leases and servers.
//!
//! - [`queue`] and [`turns`] are plain values that make all decisions; in tests a model checker
//!   drives the queue.
//! - [`queues`] keeps a queue for each lock under one mutex, `by_key`, and wakes threads. A waiting
//!   thread holds a [`Place`] there: it sleeps until it is time to ask, and leaves the queue at the
//!   end.
//!
//! # Who wakes the head of a queue
//!
//! - **This process releases the lock, or hands it over**: `locks/release.rs`, and `force_release`
//!   in `locks/lock.rs`, call `released` or `hand_over`.
//! - **The server reports a change of the key**: the listener calls `changed`.
//! - **A connection is lost or reopened, so a notification may be missing**: the listener calls
//!   `all_may_have_changed`; for the waiters' connection `server/tracked.rs` does.
//! - **The previous head leaves**: its [`Place`] wakes the next. If the lock is shared, as many
//!   others behind it ask too.
//! - **A wait is cancelled**: the `Cancel` calls `wake_all`, which wakes all waiters.
//!
//! The loss of a lease wakes no thread: the head asks when the server reports a change of the key,
//! at the end of the lease, and at the latest one second after its last attempt.
//!
//! While `by_key` is locked, a waiting thread asks its `Cancel`, and in the wait of a set this
//! locks the list of the locks that the set holds, and their leases. No other mutex is locked
//! meanwhile.

mod queue;
mod queues;
mod turns;

pub(crate) use queue::{ASKS_AGAIN, LastAnswer, Leaving};
pub(crate) use queues::{Place, Queues};
pub(crate) use turns::{HandOverBudget, PastHold};
