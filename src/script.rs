//! The Lua files, one typed call each.

mod call;

pub(crate) use call::{Call, count, fencing_token, is_unknown_script, yes_or_no};

use std::sync::LazyLock;

use call::Script;

use crate::{
    name::{LockName, Owner},
    token::Token,
};

/// Declares a script once: its name here, its file beside the recipe, after a file that several scripts begin with.
macro_rules! scripts {
    ($($name:ident = $first:literal $(then $more:literal)*;)+) => {
        $(static $name: LazyLock<Script> = LazyLock::new(|| {
            Script::new(stringify!($name), concat!(
                include_str!(concat!("recipes/", $first)),
                $(include_str!(concat!("recipes/", $more)),)*
            ))
        });)+
    };
}

scripts! {
    ACQUIRE_SIMPLE = "simple/acquire.lua";
    ACQUIRE_MUTEX = "mutex/acquire.lua";
    RENEW_MUTEX = "companion.lua" then "mutex/renew.lua";
    RELEASE_MUTEX = "mutex/release.lua";
    ACQUIRE_REENTRANT = "companion.lua" then "reentrant/levels.lua" then "reentrant/acquire.lua";
    RENEW_REENTRANT = "companion.lua" then "reentrant/levels.lua" then "reentrant/renew.lua";
    RELEASE_REENTRANT = "companion.lua" then "reentrant/levels.lua" then "reentrant/release.lua";
    ACQUIRE_READ = "read_write/holders.lua" then "read_write/acquire_read.lua";
    ACQUIRE_WRITE = "companion.lua" then "read_write/holders.lua" then "read_write/acquire_write.lua";
    RENEW_READ_WRITE = "companion.lua" then "read_write/renew.lua";
    RELEASE_READ_WRITE = "read_write/holders.lua" then "read_write/release.lua";
    ACQUIRE_READ_TWO_KEY = "article/two_key/readers.lua" then "article/two_key/acquire_read.lua";
    RELEASE_READ_TWO_KEY = "article/two_key/readers.lua" then "article/two_key/release_read.lua";
    ACQUIRE_WRITE_TWO_KEY = "article/two_key/acquire_write.lua";
    ACQUIRE_READ_ONE_HASH = "article/one_hash/holders.lua" then "article/one_hash/acquire_read.lua";
    ACQUIRE_WRITE_ONE_HASH = "article/one_hash/holders.lua" then "article/one_hash/acquire_write.lua";
    RELEASE_READ_ONE_HASH = "article/one_hash/holders.lua" then "article/one_hash/release_read.lua";
    INSPECT = "inspect/look.lua" then "inspect/inspect.lua";
    FORCE_RELEASE = "inspect/look.lua" then "inspect/force_release.lua";
    RELEASE_WRITE_ONE_HASH = "article/one_hash/holders.lua" then "article/one_hash/release_write.lua";
}

/// What is told to whom is refused.
#[derive(Clone, Copy)]
pub(crate) enum Refusal {
    /// That it is.
    Bare,
    /// As a list of one, how long in milliseconds it will be, as far as is known: -1 is for ever.
    WithItsEnd,
}

impl Refusal {
    fn flag(self) -> u8 {
        u8::from(matches!(self, Self::WithItsEnd))
    }
}

/// One more attempt at a book lock: takes it if it is free or ours already, gives it an end if it has none.
pub(crate) fn acquire_simple(lock: &LockName, token: &Token, lease_millis: Option<u64>) -> Call {
    ACQUIRE_SIMPLE
        .on([lock.key()])
        .arg(token.as_str())
        .arg(lease_millis.unwrap_or(0))
}

/// Answers the fencing token, or nil if somebody else has the lock. Of the end, the part that is 0 does not count. Where
/// more fencing tokens are to be reserved, at most so many, it answers how many are.
pub(crate) fn acquire_mutex(
    lock: &LockName,
    token: &Token,
    (lease_millis, end_millis): (u64, u64),
    who: &Owner,
    refusal: Refusal,
    reserved: u64,
) -> Call {
    ACQUIRE_MUTEX
        .on([lock.key(), &lock.companion()])
        .arg(token.as_str())
        .arg(lease_millis)
        .arg(end_millis)
        .arg(who.as_str())
        .arg(refusal.flag())
        .arg(reserved)
}

/// Answers whether the lock is ours, and now lasts at least so long.
pub(crate) fn renew_mutex(lock: &LockName, token: &Token, lease_millis: u64) -> Call {
    RENEW_MUTEX
        .on([lock.key(), &lock.companion()])
        .arg(token.as_str())
        .arg(lease_millis)
}

/// Answers whether the lock was ours until now.
pub(crate) fn release_mutex(lock: &LockName, token: &Token) -> Call {
    RELEASE_MUTEX.on([lock.key()]).arg(token.as_str())
}

/// Answers the fencing token and how often the owner holds the lock now, or nil if another owner has it.
pub(crate) fn acquire_reentrant(
    lock: &LockName,
    owner: &Owner,
    token: &Token,
    lease_millis: u64,
    refusal: Refusal,
) -> Call {
    ACQUIRE_REENTRANT
        .on([lock.key(), &lock.companion()])
        .arg(owner.as_str())
        .arg(token.as_str())
        .arg(lease_millis)
        .arg(refusal.flag())
}

/// Which levels of a reentrant lock a token may stand for.
#[derive(Clone, Copy)]
pub(crate) enum Levels {
    /// The acquisition that was counted with it.
    Counted,
    /// Also one that a program on the notes' scripts took, which counts without tokens.
    AlsoOfTheNotes,
}

impl Levels {
    fn flag(self) -> u8 {
        u8::from(matches!(self, Self::Counted))
    }
}

/// Answers whether the acquisition is ours, and now lasts at least so long.
pub(crate) fn renew_reentrant(
    lock: &LockName,
    owner: &Owner,
    token: &Token,
    lease_millis: u64,
    levels: Levels,
) -> Call {
    RENEW_REENTRANT
        .on([lock.key(), &lock.companion()])
        .arg(owner.as_str())
        .arg(token.as_str())
        .arg(lease_millis)
        .arg(levels.flag())
}

/// Answers how often the owner held the lock until now.
pub(crate) fn release_reentrant(
    lock: &LockName,
    owner: &Owner,
    token: &Token,
    levels: Levels,
) -> Call {
    RELEASE_REENTRANT
        .on([lock.key(), &lock.companion()])
        .arg(owner.as_str())
        .arg(token.as_str())
        .arg(levels.flag())
}

/// Answers what stands at the lock and beside it.
pub(crate) fn inspect(lock: &LockName) -> Call {
    INSPECT.on([lock.key(), &lock.companion()])
}

/// Deletes it, whoever has it, and answers what stood there until then. Not safe to send twice.
pub(crate) fn force_release(lock: &LockName) -> Call {
    FORCE_RELEASE.on([lock.key(), &lock.companion()])
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

/// Answers the fencing token, or nil if somebody else is in. A writer that waits keeps new readers out.
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
pub(crate) fn renew_read_write(
    lock: &LockName,
    side: Side,
    token: &Token,
    lease_millis: u64,
) -> Call {
    let call = match side {
        Side::Writer => RENEW_READ_WRITE.on([lock.key(), &lock.companion()]),
        _ => RENEW_READ_WRITE.on([lock.key()]),
    };
    call.arg(side.field(token)).arg(lease_millis)
}

/// Answers whether it was ours until now.
pub(crate) fn release_read_write(lock: &LockName, side: Side, token: &Token) -> Call {
    RELEASE_READ_WRITE.on([lock.key()]).arg(side.field(token))
}

/// Answers whether we are among the readers. The keys are the read key and the write key.
pub(crate) fn acquire_read_two_key(keys: [&str; 2], token: &Token, lease_millis: u64) -> Call {
    ACQUIRE_READ_TWO_KEY
        .on(keys)
        .arg(token.as_str())
        .arg(lease_millis)
}

/// Answers whether we are the writer. The keys are the read key and the write key.
pub(crate) fn acquire_write_two_key(keys: [&str; 2], token: &Token, lease_millis: u64) -> Call {
    ACQUIRE_WRITE_TWO_KEY
        .on(keys)
        .arg(token.as_str())
        .arg(lease_millis)
}

/// Answers whether we were among the readers until now.
pub(crate) fn release_read_two_key(read_key: &str, token: &Token) -> Call {
    RELEASE_READ_TWO_KEY.on([read_key]).arg(token.as_str())
}

/// Answers whether we were the writer until now: the write key is the same as a mutex.
pub(crate) fn release_write_two_key(write_key: &str, token: &Token) -> Call {
    RELEASE_MUTEX.on([write_key]).arg(token.as_str())
}

/// What to do with the article's hash.
#[derive(Clone, Copy)]
pub(crate) enum OneHash {
    AcquireRead,
    AcquireWrite,
    ReleaseRead,
    ReleaseWrite,
}

/// Answers whether we are in, or were until now. The lengths, in milliseconds, are those of a reader, a writer and the key.
pub(crate) fn one_hash(step: OneHash, key: &str, token: &Token, lengths: [u64; 3]) -> Call {
    let script = match step {
        OneHash::AcquireRead => &ACQUIRE_READ_ONE_HASH,
        OneHash::AcquireWrite => &ACQUIRE_WRITE_ONE_HASH,
        OneHash::ReleaseRead => &RELEASE_READ_ONE_HASH,
        OneHash::ReleaseWrite => &RELEASE_WRITE_ONE_HASH,
    };
    script.on([key]).arg(token.as_str()).arg(&lengths)
}
