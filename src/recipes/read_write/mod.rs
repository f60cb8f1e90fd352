//! Many readers or one writer.
//!
//! # Which of the three
//!
//! | take | when |
//! |---|---|
//! | the functions here | always, unless one of the others is needed |
//! | [`one_hash`] | other programs lock the same key with the scripts of the article's cluster edition |
//! | [`two_key`] | other programs lock the same keys with the scripts of the article's single-instance edition |
//!
//! The two editions of the article *Redis 分布式读写锁* are here for programs that share a lock with its
//! scripts. Programs that use only our functions get a sound lock from each of the three. But the
//! article's own scripts let one reader free, shorten or overwrite another's lock, and no function
//! can keep them from it; each edition says what is left of that. Neither lets a waiting writer
//! keep new readers out, gives fencing tokens or can be renewed.
//!
//! # How this one works
//!
//! The lock is a hash with one field a holder, named after its token, that says when this hold ends
//! by the server's clock. So each holder has a lease of its own: one that crashed is in nobody's
//! way when its own lease is over, however often others renew theirs, and a release removes its own
//! field and no other. A writer that waits writes a field as well, its intent, and while that
//! stands no new reader gets in: the writer gets its turn when the readers that are in have left or
//! their leases are over. The intent lasts a second at most, and is written anew for as long as the
//! writer waits.
//!
//! **Writers go first.** A writer never waits for readers that came after it, but readers wait for
//! as long as there is always a writer. Among themselves neither writers nor readers stand in a
//! queue.
//!
//! A hold is of one mode. A reader does not become a writer, nor a writer a reader: with the token
//! of a hold of the other mode an acquire is [`Error::Invalid`](crate::Error::Invalid), where it
//! would otherwise wait for itself. A token stands for one attempt, not for a thread: sent again it
//! is recognised, and a thread that wants in twice takes two tokens, which works for reading.
//!
//! An acquire or a release looks at every holder, so that its cost on the server grows with their
//! number, by about a microsecond each. A renewal costs the same for any number.
//!
//! # Guarantees
//!
//! On one server that loses no data, by the server's clock: between a reader's grant and the end of
//! its lease or its release no writer is granted the lock, and between a writer's nobody else. A
//! writer's fencing token is greater than that of every earlier writer as long as that clock does
//! not go back. Not that a holder notices that its lease has ended.
//!
//! No renewal prolongs or shortens anybody else's hold, and no release ends another, whoever's it
//! is.
//!
//! A reader that waits may wait for ever: for as long as there is always a writer. For a writer
//! that waits the lock is free as soon as the readers that were in at its first attempt have left
//! or their leases are over, however many readers come; other writers may be faster. A release does
//! not let new readers in before writers that wait.
//!
//! # Source
//!
//! The article on read-write locks: "获取读锁", "删除读锁", "获取写锁", "删除写锁". It tries once, and its caller
//! waits; new readers get in before a writer as long as there are any. It has no renewal: a reader
//! that takes longer than its time is "silently unprotected", and a writer loses the lock unawares.
//!
//! # Differences from the article
//!
//! - Each reader has a hold of its own, with its own token and end, where the article's readers
//!   share one; its release never frees another reader's.
//! - The token is random and no time, so that two writers never have the same.
//! - The server's clock decides, not the clients'.
//! - A writer that waits keeps new readers out.
//! - A writer gets a fencing token, and both kinds of hold can be renewed.
//! - A release says whether the hold was still ours.

mod readers;
mod writers;

pub use self::{
    readers::{acquire_read, release_read, renew_read, try_acquire_read},
    writers::{acquire_write, release_write, renew_write, try_acquire_write},
};
pub use super::{
    article::{one_hash, two_key},
    hold::Grant,
};

use super::hold::Hold;
use crate::{
    token::Token,
    wire::{Call, Refusal, scripts},
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
    /// That of a writer that waits.
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

/// Answers whether we are among the readers.
pub(super) fn acquiring_read(hold: &Hold, lease_millis: u64, refusal: Refusal) -> Call {
    ACQUIRE_READ
        .on([hold.lock.key()])
        .arg(hold.token.as_str())
        .arg(lease_millis)
        .arg(refusal.flag())
}

/// Answers the fencing token, or nil if somebody else is in. A writer that waits keeps new readers
/// out.
pub(super) fn acquiring_write(
    hold: &Hold,
    lease_millis: u64,
    waits: bool,
    refusal: Refusal,
) -> Call {
    ACQUIRE_WRITE
        .on([hold.lock.key(), &hold.lock.companion()])
        .arg(hold.token.as_str())
        .arg(lease_millis)
        .arg(u8::from(waits))
        .arg(hold.owner.as_str())
        .arg(refusal.flag())
}

/// Answers whether we are still in, and now for at least so long.
pub(super) fn renewing(hold: &Hold, side: Side, lease_millis: u64) -> Call {
    let lock = &hold.lock;
    let call = match side {
        Side::Writer => RENEW_READ_WRITE.on([lock.key(), &lock.companion()]),
        _ => RENEW_READ_WRITE.on([lock.key()]),
    };
    call.arg(side.field(&hold.token)).arg(lease_millis)
}

/// Answers whether it was ours until now.
pub(super) fn releasing(hold: &Hold, side: Side) -> Call {
    let call = RELEASE_READ_WRITE.on([hold.lock.key()]);
    call.arg(side.field(&hold.token))
}
