//! Threads of this process that wait for locks: who is next, and when it asks the server. Knows
//! nothing of leases or servers.
//!
//! - [`queue`] and [`turns`] are plain values, which decide everything; a model checker drives the
//!   queue in tests.
//! - [`queues`] keeps a queue for each lock under one mutex, `by_key`, and wakes threads. A waiting
//!   thread holds a [`Place`] there: it sleeps until it is time to ask, and leaves.
//!
//! # Who wakes the head of a queue
//!
//! | what has happened | called | by |
//! |---|---|---|
//! | this process has released the lock, or hands it over | `released`, `hand_over` | `locks/release.rs`; `force_release` in `locks/lock.rs` |
//! | the server says that the key has changed | `changed` | the listener |
//! | a connection was lost, or opened anew, so that a message may be missing | `wake_all_heads` | the listener; `server/tracked.rs` for the waiters' connection |
//! | the head before has left | [`Place`] | that head |
//! | a wait was called off | `wake_all`, for all who wait | the `Cancel` |
//!
//! A lease that is lost wakes nobody: the head asks when the server says that the key has changed,
//! at the lease's end, and in any case a second after it has asked last.
//!
//! Nothing else is locked while `by_key` is.

mod queue;
mod queues;
mod turns;

pub(crate) use queue::{LOOKS_AGAIN, LastAnswer, Leaving};
pub(crate) use queues::{Place, Queues};
pub(crate) use turns::{HandOverBudget, PastHold};
