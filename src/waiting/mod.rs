//! Threads of this process that wait for locks: who is next, and how it is woken. Knows nothing of leases or servers.

mod budget;
mod queue;
mod queues;

pub(crate) use budget::HandOverBudget;
pub(crate) use queue::Leaving;
pub(crate) use queues::{Place, Queues};
