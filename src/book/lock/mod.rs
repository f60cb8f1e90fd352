//! The book's lock: [`acquire_lock`], [`acquire_lock_with_timeout`], [`release_lock`],
//! [`commit_while_held`]; and the book's `try … finally` around them: [`with_lock`],
//! [`transaction_while_held`], [`transaction_with_lock`].
//!
//! From section 6.2 of *Redis in Action*. The key is `lock:NAME` and its value the holder's token,
//! as in the book's code in any language, so programs that use the book's functions and programs
//! that use these exclude each other.
//!
//! # Guarantees
//!
//! While `lock:NAME` holds a token, no one else gets the lock through these functions, or the
//! book's in any language.
//! - [`acquire_lock`]: the lock outlives a holder that dies.
//! - [`acquire_lock_with_timeout`]: on one server that loses no data, there is at most one holder
//!   at a time, by the server's clock, and the lock is free at most `lock_timeout` after it was
//!   acquired. Not guaranteed: that a holder notices the end of its lease.
//! - [`release_lock`] deletes the lock only while it holds our token. It leaves no `WATCH` on the
//!   connection if the server replies.
//! - [`commit_while_held`] executes the commands at a moment when the lock holds our token, or not
//!   at all. They must go to the server that has the lock: for any other resource use a fencing
//!   token.
//!
//! # Source
//!
//! The book's `acquire_lock` and `release_lock` (section 6.2.3) and `acquire_lock_with_timeout`
//! (6.2.5), which the Jedis article calls `acquireLock`, `releaseLock` and
//! `acquireLockWithTimeout`. [`commit_while_held`] is not in the book, whose callers never check
//! before a write that they still hold the lock: it applies the `WATCH` of `release_lock` to the
//! writes.
//!
//! # Differences from the book
//!
//! - One `SET … NX`, with `PX` for a lease, replaces `SETNX` and `EXPIRE`: a crash between the two
//!   cannot leave a lock without an end.
//! - A wait of zero tries once; in the book it does not try at all.
//! - The clock is monotonic, and a sleep never passes the deadline. The Jedis article sleeps whole
//!   seconds.
//! - A key of another type is an error, not a lock that stays busy forever.
//! - An attempt whose reply was lost is repeated with the *same* token while the connection is
//!   open, so that a lock that it acquired is recognised.
//! - A wait cannot be interrupted: use a deadline. The article swallows the interrupt and then
//!   polls without a pause.
//! - A lease is in milliseconds, not whole seconds. The book's Java rounds a lease under a second
//!   to `EXPIRE 0`, which deletes the key.
//! - One script checks for an end and sets it, so no one can release and acquire the lock between
//!   the check and the `EXPIRE`. As in the book the end is the waiter's `lock_timeout`, not the
//!   holder's. The printed book renews any lock with less than half a second left (`not
//!   conn.ttl()`); the erratum and this function do not.
//! - A release takes two round trips instead of four or five, and its loop is bounded. It also
//!   returns `false` if the `DEL` found nothing to delete, and it sends `UNWATCH` after every path
//!   that does not reach `EXEC`, including errors.

mod acquire_lock;
mod release_lock;
mod several;
mod under_lock;

pub(super) use self::{acquire_lock::wanted, under_lock::run_with_lock};
pub use self::{
    acquire_lock::{acquire_lock, acquire_lock_with_timeout},
    release_lock::release_lock,
    several::with_locks,
    under_lock::{commit_while_held, transaction_while_held, transaction_with_lock, with_lock},
};
