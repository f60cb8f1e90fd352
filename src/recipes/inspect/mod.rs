//! Who has a lock, as far as the server knows.

use std::time::{Duration, SystemTime};

use redis::{FromRedisValue, RedisResult, Value, from_redis_value};

use super::{number, text};
use crate::{
    error::makes_no_sense,
    name::{LockName, Owner},
    token::{FencingToken, Token},
    wire::{Call, fencing_token, scripts, yes_or_no},
};

scripts! {
    INSPECT = "look.lua" then "inspect.lua";
    FORCE_RELEASE = "look.lua" then "force_release.lua";
}

/// Answers what stands at the lock and beside it.
pub(crate) fn inspecting(lock: &LockName) -> Call {
    INSPECT.on([lock.key(), &lock.companion()])
}

/// Deletes it, whoever has it, and answers what stood there until then. Not safe to send twice.
pub(crate) fn force_releasing(lock: &LockName) -> Call {
    FORCE_RELEASE.on([lock.key(), &lock.companion()])
}

/// The kind of thing that stands at a lock's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Nothing,
    /// A string: of a mutex, the book, or any client that locks by `SET NX`.
    Token,
    /// A hash of one owner and a count.
    Owner,
    /// A hash of readers and writers.
    ReadersOrWriter,
    /// No lock of ours.
    Foreign,
}

/// Reads what a forced release has found, and whether it has deleted that.
pub(crate) fn understood_taken(answer: Value) -> RedisResult<(bool, (Found, Vec<Holder>))> {
    let (taken, found): (Value, Value) = parts(answer)?;
    Ok((yes_or_no(&taken)?, understood(found)?))
}

/// Reads what a look at a lock and its companion has found.
pub(crate) fn understood(answer: Value) -> RedisResult<(Found, Vec<Holder>)> {
    let (kind, left, stored, companion, now): (String, i64, _, _, _) = parts(answer)?;
    let looked = Looked {
        left: u64::try_from(left).ok().map(Duration::from_millis),
        stored,
        companion,
        now,
    };
    let found = match &*kind {
        "none" => Some((Found::Nothing, Vec::new())),
        "string" => looked.token(),
        "hash" => looked.readers_or_writer().or_else(|| looked.owner()),
        _ => None,
    };
    let foreign = || (Found::Foreign, vec![Holder::new(Part::Alone, looked.left)]);
    Ok(found.unwrap_or_else(foreign))
}

fn parts<T: FromRedisValue>(answer: Value) -> RedisResult<T> {
    from_redis_value(answer).map_err(|_| makes_no_sense())
}

/// The answer of look.lua, but the type of the lock's key.
struct Looked {
    /// The time left of the key, if it has an end.
    left: Option<Duration>,
    /// Its value, or its fields and values.
    stored: Vec<Value>,
    /// Fence, token, owner, since and reserved, or nothing.
    companion: Vec<Value>,
    /// Milliseconds since 1970, by the server's clock.
    now: u64,
}

impl Looked {
    /// The holder whose token a string is.
    fn token(&self) -> Option<(Found, Vec<Holder>)> {
        let [value] = &self.stored[..] else {
            return None;
        };
        let mut holder = Holder::new(Part::Alone, self.left);
        holder.token = text(value).and_then(|token| token.parse().ok());
        self.describe(&mut holder);
        // The companion has the last of the numbers that are reserved.
        let reserved = self.companion.get(4).and_then(number).unwrap_or(0);
        holder.fence = holder.fence.and_then(|last| last.before(reserved));
        Some((Found::Token, vec![holder]))
    }

    /// The holders in a read-write lock, and the writers that wait for it.
    fn readers_or_writer(&self) -> Option<(Found, Vec<Holder>)> {
        let pairs = self.stored.chunks_exact(2);
        let fields = pairs.map(|pair| (text(&pair[0]).unwrap_or_default(), &pair[1]));
        let is_ours = |(field, value)| field == "kind" && text(value) == Some("rw");
        if !fields.clone().any(is_ours) {
            return None;
        }
        let holders = fields.filter_map(|(field, end)| self.of_a_field(field, end));
        Some((Found::ReadersOrWriter, holders.collect()))
    }

    /// Nobody, where the end has passed.
    fn of_a_field(&self, field: &str, end: &Value) -> Option<Holder> {
        let (part, token) = match field.split_once(':')? {
            ("r", token) => (Part::Reader, token),
            ("w", token) => (Part::Writer, token),
            ("i", token) => (Part::Waiting, token),
            _ => return None,
        };
        let left = number(end)?.checked_sub(self.now)?;
        let mut holder = Holder::new(part, Some(Duration::from_millis(left)));
        holder.token = token.parse().ok();
        if part == Part::Writer {
            self.describe(&mut holder);
        }
        Some(holder)
    }

    /// The owner of a reentrant lock.
    fn owner(&self) -> Option<(Found, Vec<Holder>)> {
        let [owner, count] = &self.stored[..] else {
            return None;
        };
        let (owner, count) = (text(owner)?, number(count).filter(|count| *count > 0)?);
        let mut holder = Holder::new(Part::Alone, self.left);
        holder.owner = Owner::new(owner).ok();
        holder.count = Some(count);
        self.describe(&mut holder);
        Some((Found::Owner, vec![holder]))
    }

    /// Adds what the companion says, if it is this holder's: by its token, of a reentrant lock by
    /// its owner.
    fn describe(&self, holder: &mut Holder) {
        let [fence, token, owner, since, _] = &self.companion[..] else {
            return;
        };
        let is_of_holder = match (&holder.token, &holder.owner) {
            (Some(ours), _) => text(token) == Some(ours.as_str()),
            (None, Some(ours)) => text(owner) == Some(ours.as_str()),
            (None, None) => false,
        };
        if is_of_holder {
            holder.owner = text(owner).and_then(|owner| Owner::new(owner).ok());
            holder.since = number(since).and_then(moment);
            holder.fence = fencing_token(fence).ok();
        }
    }
}

fn moment(millis: u64) -> Option<SystemTime> {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(millis))
}

/// Somebody who holds a lock, and what is known of them. Of a holder that does not use this crate
/// that is less.
#[derive(Clone, Debug)]
#[must_use]
pub struct Holder {
    part: Part,
    token: Option<Token>,
    owner: Option<Owner>,
    count: Option<u64>,
    remaining: Option<Duration>,
    since: Option<SystemTime>,
    fence: Option<FencingToken>,
}

/// The part that a holder has in a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Alone,
    Reader,
    Writer,
    Waiting,
}

impl Holder {
    /// Nothing is known but the part and the time left of the lease.
    fn new(part: Part, remaining: Option<Duration>) -> Self {
        Self {
            part,
            token: None,
            owner: None,
            count: None,
            remaining,
            since: None,
            fence: None,
        }
    }

    /// The time left of the lease. `None`: it has no end.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.remaining
    }

    /// Since when, by the server's clock.
    #[must_use]
    pub fn since(&self) -> Option<SystemTime> {
        self.since
    }

    /// The fencing token that the holder was given.
    #[must_use]
    pub fn fencing_token(&self) -> Option<FencingToken> {
        self.fence
    }

    /// The proof of the hold. Whoever has it can release the lock.
    #[must_use]
    pub fn token(&self) -> Option<&Token> {
        self.token.as_ref()
    }

    /// Who it says it is: host, process and thread, or a text of its own.
    #[must_use]
    pub fn owner(&self) -> Option<&Owner> {
        self.owner.as_ref()
    }

    /// The number of times that the owner of a reentrant lock has entered it.
    #[must_use]
    pub fn count(&self) -> Option<u64> {
        self.count
    }

    /// True for a reader of a read-write lock.
    #[must_use]
    pub fn is_reader(&self) -> bool {
        self.part == Part::Reader
    }

    /// True for a writer that keeps new readers out because it waits.
    pub(crate) fn is_waiting(&self) -> bool {
        self.part == Part::Waiting
    }
}
