//! Threads of this process that wait for locks: who is next, and how it is woken. Knows nothing of leases or servers.

mod queue;
mod queues;
mod turns;

pub(crate) use queue::Leaving;
pub(crate) use queues::{Place, Queues};
pub(crate) use turns::Turns;
