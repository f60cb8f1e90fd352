//! Threads of this process that wait for locks: who is next, and when it asks the server. Knows nothing of leases or servers.
//!
//! - [`queue`] and [`fairness`] are plain values, which decide everything; a model checker drives them in tests.
//! - [`streaks`] has threads pause that come again before others can know of a release.
//! - [`queues`] keeps a queue for each lock under one mutex, and wakes threads. Releases, the listener and the watchdog's
//!   losses come in here.
//! - [`place`] is what a waiting thread holds: it sleeps until it is time to ask, and leaves.
//! - [`budget`] says how far a lock may be handed over.

mod budget;
mod fairness;
mod place;
mod queue;
mod queues;
mod streaks;

pub(crate) use budget::HandOverBudget;
pub(crate) use fairness::Manner;
pub(crate) use place::{Next, Place};
pub(crate) use queue::{Leaving, PASSED_ON};
pub(crate) use queues::Queues;
