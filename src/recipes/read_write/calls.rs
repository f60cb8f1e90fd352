//! The scripts beside this file, one typed call each.

use crate::{
    name::{LockName, Owner},
    script::{Call, Refusal, scripts},
    token::Token,
};

scripts! {
    ACQUIRE_READ = "holders.lua" then "acquire_read.lua";
    ACQUIRE_WRITE = "../companion.lua" then "holders.lua" then "acquire_write.lua";
    RENEW_READ_WRITE = "../companion.lua" then "renew.lua";
    RELEASE_READ_WRITE = "holders.lua" then "release.lua";
}

/// A field of a read-write lock.
#[derive(Clone, Copy)]
pub(crate) enum Side {
    Reader,
    Writer,
    /// A writer's that waits.
    Intent,
}

impl Side {
    pub(crate) fn field(self, token: &Token) -> String {
        match self {
            Self::Reader => format!("r:{token}"),
            Self::Writer => format!("w:{token}"),
            Self::Intent => format!("i:{token}"),
        }
    }
}

/// Answers whether we are among the readers.
pub(crate) fn acquire_read(
    lock: &LockName,
    token: &Token,
    lease_millis: u64,
    refusal: Refusal,
) -> Call {
    ACQUIRE_READ
        .on([lock.key()])
        .arg(token.as_str())
        .arg(lease_millis)
        .arg(refusal.flag())
}

/// Answers the fencing token, or nil if somebody else is in. A writer that waits keeps new readers
/// out.
pub(crate) fn acquire_write(
    lock: &LockName,
    token: &Token,
    lease_millis: u64,
    waits: bool,
    who: &Owner,
    refusal: Refusal,
) -> Call {
    ACQUIRE_WRITE
        .on([lock.key(), &lock.companion()])
        .arg(token.as_str())
        .arg(lease_millis)
        .arg(u8::from(waits))
        .arg(who.as_str())
        .arg(refusal.flag())
}

/// Answers whether we are still in, and now for at least so long.
pub(crate) fn renew(lock: &LockName, side: Side, token: &Token, lease_millis: u64) -> Call {
    let call = match side {
        Side::Writer => RENEW_READ_WRITE.on([lock.key(), &lock.companion()]),
        _ => RENEW_READ_WRITE.on([lock.key()]),
    };
    call.arg(side.field(token)).arg(lease_millis)
}

/// Answers whether it was ours until now.
pub(crate) fn release(lock: &LockName, side: Side, token: &Token) -> Call {
    RELEASE_READ_WRITE.on([lock.key()]).arg(side.field(token))
}
