//! Reads the holders of a lock from the server, or removes them.

use std::{
    borrow::Cow,
    time::{Duration, SystemTime},
};

use redis::{FromRedisValue, RedisResult, Value, from_redis_value};

use super::{
    hold::{Hold, LockKind},
    number, text,
};
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

/// Reads the lock and its companion.
pub(crate) fn inspecting(lock: &LockName) -> Call {
    INSPECT.on([lock.key(), &lock.companion()])
}

/// Deletes the lock of any holder, and returns its state just before. Not safe to send twice.
pub(crate) fn force_releasing(lock: &LockName) -> Call {
    FORCE_RELEASE.on([lock.key(), &lock.companion()])
}

/// The kind of the value at a lock's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Nothing,
    /// A string: a mutex, the book's lock, or a lock of any client that uses `SET NX`.
    Token,
    /// A hash of one owner and a count: a reentrant lock.
    Owner,
    /// A hash of readers and writers: a read-write lock.
    ReadersOrWriter,
    /// A sorted set of permits: a semaphore.
    Permits,
    /// A value that is not a lock of this library.
    Foreign,
}

/// Reads the reply to a forced release: true if it deleted the lock, and the lock's last state.
pub(crate) fn read_forced_release(answer: Value) -> RedisResult<(bool, (Found, Vec<Holder>))> {
    let (taken, found): (Value, Value) = parts(answer)?;
    Ok((yes_or_no(&taken)?, read_inspection(found)?))
}

/// Reads the state of a lock and its companion.
pub(crate) fn read_inspection(answer: Value) -> RedisResult<(Found, Vec<Holder>)> {
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
        "zset" => looked.permits(),
        "hash" => looked.readers_or_writer().or_else(|| looked.owner()),
        _ => None,
    };
    let foreign = || (Found::Foreign, vec![Holder::new(Part::Other, looked.left)]);
    Ok(found.unwrap_or_else(foreign))
}

/// Reads a name that a holder chose. It need not be text: bytes that are not UTF-8 are a name too.
fn name(value: &Value) -> Cow<'_, str> {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes),
        _ => Cow::default(),
    }
}

fn parts<T: FromRedisValue>(answer: Value) -> RedisResult<T> {
    from_redis_value(answer).map_err(|_| makes_no_sense())
}

/// The reply of look.lua, without the type of the lock's key.
struct Looked {
    /// The time left of the key, if it ends.
    left: Option<Duration>,
    /// The value of the key, its fields and values, or the token, the end and the description of
    /// each permit.
    stored: Vec<Value>,
    /// The companion's fence, token, owner, since and reserved, or nothing.
    companion: Vec<Value>,
    /// The server's clock in milliseconds since 1970.
    now: u64,
}

impl Looked {
    /// Returns the holder whose token is the value of a string.
    fn token(&self) -> Option<(Found, Vec<Holder>)> {
        let [value] = &self.stored[..] else {
            return None;
        };
        let mut holder = Holder::new(Part::Mutex, self.left);
        holder.token = text(value).and_then(|token| token.parse().ok());
        self.describe(&mut holder);
        // The companion stores the last of the reserved fencing tokens.
        let reserved = self.companion.get(4).and_then(number).unwrap_or(0);
        holder.fence = holder.fence.and_then(|last| last.before(reserved));
        Some((Found::Token, vec![holder]))
    }

    /// Returns the holders of a read-write lock, and the writers that wait for it.
    fn readers_or_writer(&self) -> Option<(Found, Vec<Holder>)> {
        let pairs = self.stored.chunks_exact(2);
        let fields = pairs.map(|pair| (name(&pair[0]), &pair[1]));
        let is_ours =
            |(field, value): (Cow<'_, str>, _)| field == "kind" && text(value) == Some("rw");
        if !fields.clone().any(is_ours) {
            return None;
        }
        let holders = fields.filter_map(|(field, end)| self.of_a_field(&field, end));
        Some((Found::ReadersOrWriter, holders.collect()))
    }

    /// Returns the holder in this field. `None`: it is not a holder, or its end has passed.
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

    /// Returns the holders of a semaphore.
    fn permits(&self) -> Option<(Found, Vec<Holder>)> {
        let permits = self.stored.chunks_exact(3);
        let holders = permits.filter_map(|permit| {
            let left = number(&permit[1])?.checked_sub(self.now)?;
            let mut holder = Holder::new(Part::Permit, Some(Duration::from_millis(left)));
            holder.token = text(&permit[0]).and_then(|token| token.parse().ok());
            // The start, the number of permits, and the owner, which may contain spaces.
            let description = name(&permit[2]);
            let mut described = description.splitn(3, ' ');
            let mut next = || described.next();
            holder.since = next().and_then(|since| since.parse().ok()).and_then(moment);
            holder.permits = next().and_then(|permits| permits.parse().ok());
            holder.owner = next().and_then(|owner| Owner::new(owner).ok());
            Some(holder)
        });
        (!self.stored.is_empty()).then(|| (Found::Permits, holders.collect()))
    }

    /// Returns the owner of a reentrant lock.
    fn owner(&self) -> Option<(Found, Vec<Holder>)> {
        let [owner, count] = &self.stored[..] else {
            return None;
        };
        let count = number(count).filter(|count| *count > 0)?;
        let mut holder = Holder::new(Part::Reentrant, self.left);
        holder.owner = Owner::new(name(owner)).ok();
        holder.count = Some(count);
        self.describe(&mut holder);
        Some((Found::Owner, vec![holder]))
    }

    /// Adds the companion's data if it belongs to this holder, by its token, or by its owner for a
    /// reentrant lock.
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
            holder.last_fence = holder.fence;
        }
    }
}

fn moment(millis: u64) -> Option<SystemTime> {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(millis))
}

/// A holder of a lock. Less is known of a holder that does not use this crate.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Holder {
    part: Part,
    token: Option<Token>,
    owner: Option<Owner>,
    count: Option<u64>,
    permits: Option<u32>,
    remaining: Option<Duration>,
    since: Option<SystemTime>,
    fence: Option<FencingToken>,
    /// The last of the fencing tokens that are reserved for the hold.
    last_fence: Option<FencingToken>,
}

/// The role of a holder, by the kind of its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Mutex,
    Reentrant,
    Reader,
    Writer,
    /// A waiting writer.
    Waiting,
    Permit,
    /// The key holds a value that is not a lock of this library.
    Other,
}

impl Holder {
    /// Creates a holder with only its role and the time left of its lease.
    fn new(part: Part, remaining: Option<Duration>) -> Self {
        Self {
            part,
            token: None,
            owner: None,
            count: None,
            permits: None,
            remaining,
            since: None,
            fence: None,
            last_fence: None,
        }
    }

    /// Returns the last fencing token that is reserved for this hold, if it is the holder's.
    pub(crate) fn last_fence_of(&self, hold: &Hold) -> Option<FencingToken> {
        let is_its = match hold.kind {
            LockKind::Reentrant => self.owner.as_ref() == Some(&hold.owner),
            _ => self.token.as_ref() == Some(&hold.token),
        };
        self.last_fence.filter(|_| is_its)
    }

    /// Returns the time left of the lease. `None`: the lease does not end.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.remaining
    }

    /// Returns the start of the hold, by the server's clock.
    #[must_use]
    pub fn since(&self) -> Option<SystemTime> {
        self.since
    }

    /// Returns the fencing token of the hold.
    #[must_use]
    pub fn fencing_token(&self) -> Option<FencingToken> {
        self.fence
    }

    /// Returns the token that identifies the hold. Anyone who has it can release the lock.
    #[must_use]
    pub fn token(&self) -> Option<&Token> {
        self.token.as_ref()
    }

    /// Returns the owner as the holder gave it: host, process and thread, or its own text.
    #[must_use]
    pub fn owner(&self) -> Option<&Owner> {
        self.owner.as_ref()
    }

    /// Returns the number of times that the owner holds a reentrant lock.
    #[must_use]
    pub fn count(&self) -> Option<u64> {
        self.count
    }

    /// Returns the number of permits of the semaphore, as this holder was given it.
    #[must_use]
    pub fn permits(&self) -> Option<u32> {
        self.permits
    }

    /// Returns the kind of the lock, or of a read-write lock the role: `mutex`, `reentrant`,
    /// `reader`, `writer`, `semaphore`; or `foreign` if the key is not a lock of this crate.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self.part {
            Part::Mutex => "mutex",
            Part::Reentrant => "reentrant",
            Part::Reader => "reader",
            Part::Writer => "writer",
            Part::Waiting => "waiting writer",
            Part::Permit => "semaphore",
            Part::Other => "foreign",
        }
    }

    /// Returns true for a reader of a read-write lock.
    #[must_use]
    pub fn is_reader(&self) -> bool {
        self.part == Part::Reader
    }

    /// Returns true for the writer of a read-write lock.
    #[must_use]
    pub fn is_writer(&self) -> bool {
        self.part == Part::Writer
    }

    /// Returns true for a waiting writer, which keeps new readers out.
    pub(crate) fn is_waiting(&self) -> bool {
        self.part == Part::Waiting
    }
}
