//! Many readers or one writer.
//!
//! To share a lock with the scripts of the article *Redis 分布式读写锁*, use
//! [`book::article`](crate::book::article) instead.
//!
//! # The lock
//!
//! The lock is a hash with one field per holder, named after its token; the value is the end of the
//! hold by the server's clock. So each holder has its own lease: a crashed holder stops blocking
//! others when its own lease ends, even if others renew theirs, and a release removes only its own
//! field. A waiting writer also writes a field, its intent, which keeps new readers out: the writer
//! gets the lock when the current readers have left or their leases have ended. An intent lasts at
//! most a second, and the writer refreshes it while it waits.
//!
//! **Writers go first.** A writer never waits for readers that came after it, but readers wait as
//! long as another writer holds the lock or waits. Writers have no order among themselves, nor do
//! readers.
//!
//! A hold cannot change its mode. An acquire with a token that holds the lock in the other mode
//! gives [`Error::Invalid`](crate::Error::Invalid), because it would wait for itself. A token
//! stands for one acquisition, not for a thread: a repeated attempt is recognised, and a thread
//! that wants to read twice needs two tokens.
//!
//! An acquire or a release reads every holder, so its cost on the server grows by about a
//! microsecond per holder. The cost of a renewal does not depend on their number.
//!
//! # Guarantees
//!
//! On one server that loses no data: a writer is granted the lock only if no one else holds it, and
//! a reader only if no writer does. A hold lasts until it is released or its lease ends by the
//! server's clock. A writer's fencing token is greater than that of every earlier writer as long as
//! that clock is not set back. Not guaranteed: that a holder notices the end of its lease.
//!
//! No renewal extends or shortens another holder's lease, and no release ends another hold.
//!
//! A reader may wait forever if writers keep coming. For a waiting writer the lock is free as soon
//! as the readers at its first attempt have left or their leases have ended, however many readers
//! follow; other writers may be faster. A release does not let new readers in before waiting
//! writers.
//!
//! # Source
//!
//! The article on read-write locks: "获取读锁", "删除读锁", "获取写锁", "删除写锁". The article tries once, and
//! leaves the wait to its caller; while readers hold the lock, new ones get in before a writer. It
//! has no renewal: a reader that takes too long is "silently unprotected", and a writer loses the
//! lock without notice.
//!
//! # Differences from the article
//!
//! - Each reader has its own hold, with its own token and end, while the article's readers share
//!   one; a release never frees another reader's hold.
//! - The token is random instead of a time, so two writers never have the same one.
//! - The server's clock decides, not the clients'.
//! - A waiting writer keeps new readers out.
//! - A writer gets a fencing token, and both kinds of hold can be renewed.
//! - A release returns whether the hold was still ours.

mod holders;

pub use self::holders::{
    acquire_read, acquire_write, release_read, release_write, renew_read, renew_write,
    try_acquire_read, try_acquire_write,
};
use super::hold::Hold;
pub use super::plain::Grant;
use crate::{
    token::Token,
    wire::{BusyReply, Call, scripts},
};

scripts! {
    ACQUIRE_READ = "holders.lua" then "acquire_read.lua";
    ACQUIRE_WRITE = "../companion.lua" then "holders.lua" then "acquire_write.lua";
    RENEW_READ_WRITE = "../companion.lua" then "renew.lua";
    RELEASE_READ_WRITE = "holders.lua" then "release.lua";
}

/// A field of a read-write lock.
#[derive(Clone, Copy)]
pub(super) enum Side {
    Reader,
    Writer,
    /// The field of a waiting writer.
    Intent,
}

impl Side {
    pub(super) fn field(self, token: &Token) -> String {
        match self {
            Self::Reader => format!("r:{token}"),
            Self::Writer => format!("w:{token}"),
            Self::Intent => format!("i:{token}"),
        }
    }
}

/// Acquires the lock for reading: the reply is 1 if we are a reader.
pub(super) fn acquiring_read(hold: &Hold, lease_millis: u64, busy_reply: BusyReply) -> Call {
    ACQUIRE_READ
        .on([hold.lock.key()])
        .arg(hold.token.as_str())
        .arg(lease_millis)
        .arg(busy_reply.flag())
}

/// Acquires the lock for writing: the reply is the fencing token, or nil if someone else holds the
/// lock. `leaves_intent`: a writer that is refused keeps new readers out.
pub(super) fn acquiring_write(
    hold: &Hold,
    lease_millis: u64,
    leaves_intent: bool,
    busy_reply: BusyReply,
) -> Call {
    ACQUIRE_WRITE
        .on([hold.lock.key(), &hold.lock.companion()])
        .arg(hold.token.as_str())
        .arg(lease_millis)
        .arg(u8::from(leaves_intent))
        .arg(hold.owner.as_str())
        .arg(busy_reply.flag())
}

/// Renews the lease: the reply is 1 if the hold is still ours, and now lasts at least this long.
pub(super) fn renewing(hold: &Hold, side: Side, lease_millis: u64) -> Call {
    let lock = &hold.lock;
    let call = match side {
        Side::Writer => RENEW_READ_WRITE.on([lock.key(), &lock.companion()]),
        _ => RENEW_READ_WRITE.on([lock.key()]),
    };
    call.arg(side.field(&hold.token)).arg(lease_millis)
}

/// Releases the hold: the reply is 1 if it was ours until now.
pub(super) fn releasing(hold: &Hold, side: Side) -> Call {
    let call = RELEASE_READ_WRITE.on([hold.lock.key()]);
    call.arg(side.field(&hold.token))
}
