//! Renewal of leases: one thread for any number of leases, and the state of each.
//!
//! A guard and a `Renewal` each have a [`Handle`](keeper::Handle): one lease, and the [`keeper`]
//! that keeps it. The renewing thread ([`threads`]), which other rooms call the watchdog's thread,
//! takes the due questions from the [`schedule`], sends them in one round trip, and records each
//! reply twice: in the schedule, which sets the time of the next question, and in the lease's
//! [`lease_state`], which its holder reads. It also repeats the releases that got no reply. The
//! callback thread waits for the ends of leases and runs the callbacks of a [`signal`]. When the
//! listener reports that a key has changed, or that any key may have, the keeper looks at the
//! oldest lease of the key. A look asks the server whether the lock is still ours, and changes
//! nothing. The schedule and its [`entry`] are plain values without a mutex, a clock or I/O.
//! [`Outstanding`](lease_state::Outstanding) records the commands that may still be executed.
//!
//! Only the verdict of [`recipes`](crate::recipes) interprets a reply, for the renewing thread and
//! for the holder's calls. An error or a missing reply is never a loss, until our clock reaches the
//! end of the lease.
//!
//! # Locks
//! There are three mutexes. `state` is locked before `facts`. While `by_key` is locked, neither is,
//! with one exception: the wait of a set locks the list of the locks that the set holds, and within
//! it the `facts` of each.
//! 1. `by_key`: all queues of the module `waiting`, whose header lists the events that wake the
//!    head of a queue.
//! 2. The keeper's `state`: the schedule, the pending callbacks, the two threads.
//! 3. The `facts` of a [`lease_state`]: one lease.
//!
//! While one of them is locked nothing is sent and no user's code runs: no callback, no hook, and
//! no destructor of a value that they own.

pub(crate) mod entry;
pub(crate) mod keeper;
pub(crate) mod lease_state;
pub(crate) mod schedule;
pub(crate) mod signal;
#[cfg(feature = "testing")]
mod testing;
mod threads;
