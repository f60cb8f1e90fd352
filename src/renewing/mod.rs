//! Renewing: one thread for any number of leases, and what is known of each.
//!
//! A guard and a `Renewal` each have a [`Handle`](keeper::Handle): one lease, and the [`keeper`]
//! that keeps it. The renewing thread ([`threads`]) takes what is due from the [`schedule`], sends
//! it in one round trip, and enters each answer twice: into the schedule, which decides when the
//! server is asked about the lease next, and into the lease's [`lease_state`], which its holder
//! reads. The callback thread waits for the ends of leases and runs the callbacks of a [`signal`].
//! The listener reports that a key was changed, or that any may have been, and the keeper has the
//! oldest lease of the key looked at. The schedule and its [`entry`] are plain values without a
//! lock, a clock or I/O; [`outstanding`] notes what was sent and may still happen.
//!
//! `LeaseEntry::judge` of [`entry`] alone decides the meaning of an answer: an error, or no answer,
//! is never a loss, until our clock reaches the end of the lease.
//!
//! # Locks
//! There are three. The second and the third are locked in this order; nothing else is locked while
//! the first is:
//! 1. `by_key`, all queues of the room `waiting`, whose header says who wakes the head of a queue.
//! 2. The keeper's `state`: the schedule, the calls to make, the two threads.
//! 3. The `facts` of a [`lease_state`]: one lease.
//!
//! Nothing is sent while one of them is locked, and no user's code runs: neither a callback nor a
//! hook, nor the destructor of what they own.

pub(crate) mod entry;
pub(crate) mod keeper;
pub(crate) mod lease_state;
pub(crate) mod outstanding;
pub(crate) mod schedule;
pub(crate) mod signal;
#[cfg(feature = "testing")]
mod testing;
mod threads;
