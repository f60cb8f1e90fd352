//! Who has a lock, as far as the server knows.

mod holder;

use std::time::{Duration, SystemTime};

use redis::{RedisResult, Value};

pub use self::holder::Holder;

use self::holder::Part;
use super::{number, text};
use crate::{
    error::makes_no_sense,
    name::{LockName, Owner},
    script::{Call, fencing_token, scripts, yes_or_no},
    token::FencingToken,
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

/// What stands at a lock's key.
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

/// What a forced release has found, and whether it has deleted that.
pub(crate) fn understood_taken(answer: &Value) -> RedisResult<(bool, (Found, Vec<Holder>))> {
    match answer {
        Value::Array(parts) => match &parts[..] {
            [taken, found] => Ok((yes_or_no(taken)?, understood(found)?)),
            _ => Err(makes_no_sense()),
        },
        _ => Err(makes_no_sense()),
    }
}

/// What a look at a lock and its companion has found.
pub(crate) fn understood(answer: &Value) -> RedisResult<(Found, Vec<Holder>)> {
    let reply = Looked::parse(answer).ok_or_else(makes_no_sense)?;
    let found = match reply.kind {
        "none" => Some((Found::Nothing, Vec::new())),
        "string" => reply.string(),
        "hash" => reply.readers_or_writer().or_else(|| reply.one_owner()),
        _ => None,
    };
    let foreign = || vec![Holder::unknown(Part::Alone, reply.left)];
    Ok(found.unwrap_or_else(|| (Found::Foreign, foreign())))
}

/// What look.lua answers.
struct Looked<'a> {
    /// The type of the lock's key.
    kind: &'a str,
    /// How long the key has left, if it has an end.
    left: Option<Duration>,
    /// Its value, or its fields and values.
    stored: &'a [Value],
    companion: Beside<'a>,
    /// Milliseconds since 1970, by the server's clock.
    now: u64,
}

/// What the companion says of the hold that it tells of.
struct Beside<'a> {
    /// The last that is reserved.
    fence: Option<FencingToken>,
    token: Option<&'a str>,
    owner: Option<&'a str>,
    since: Option<SystemTime>,
    /// How many fencing tokens are for those the lock is handed to.
    reserved: u64,
}

impl<'a> Looked<'a> {
    fn parse(answer: &'a Value) -> Option<Self> {
        let Value::Array(parts) = answer else {
            return None;
        };
        let [
            kind,
            Value::Int(left),
            Value::Array(stored),
            Value::Array(companion),
            now,
        ] = &parts[..]
        else {
            return None;
        };
        Some(Self {
            kind: match kind {
                Value::SimpleString(kind) => kind,
                kind => text(kind).unwrap_or_default(),
            },
            left: u64::try_from(*left).ok().map(Duration::from_millis),
            stored,
            companion: Beside {
                fence: companion
                    .first()
                    .and_then(|fence| fencing_token(fence).ok()),
                token: companion.get(1).and_then(text),
                owner: companion.get(2).and_then(text),
                since: companion.get(3).and_then(number).and_then(moment),
                reserved: companion.get(4).and_then(number).unwrap_or(0),
            },
            now: number(now)?,
        })
    }

    /// The holder whose token a string is.
    fn string(&self) -> Option<(Found, Vec<Holder>)> {
        let [value] = self.stored else {
            return None;
        };
        let token = text(value);
        let mut holder = Holder::unknown(Part::Alone, self.left);
        holder.token = token.and_then(|token| token.parse().ok());
        if token.is_some() && self.companion.token == token {
            self.companion.tells_of(&mut holder);
            let last = holder.fence;
            holder.fence = last.and_then(|last| last.before(self.companion.reserved));
        }
        Some((Found::Token, vec![holder]))
    }

    /// The holders in a read-write lock, and the writers that wait for it.
    fn readers_or_writer(&self) -> Option<(Found, Vec<Holder>)> {
        let kind = (Some("kind"), Some("rw"));
        if !self
            .fields()
            .any(|(field, value)| (field, text(value)) == kind)
        {
            return None;
        }
        let holders = self
            .fields()
            .filter_map(|(field, end)| self.of_a_field(field?, end));
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
        let mut holder = Holder::unknown(part, Some(Duration::from_millis(left)));
        holder.token = token.parse().ok();
        if part == Part::Writer && self.companion.token == Some(token) {
            self.companion.tells_of(&mut holder);
        }
        Some(holder)
    }

    /// The owner of a reentrant lock.
    fn one_owner(&self) -> Option<(Found, Vec<Holder>)> {
        let [owner, count] = self.stored else {
            return None;
        };
        let (owner, count) = (text(owner)?, number(count).filter(|count| *count > 0)?);
        let mut holder = Holder::unknown(Part::Alone, self.left);
        holder.owner = Owner::new(owner).ok();
        holder.count = Some(count);
        if self.companion.owner == Some(owner) {
            self.companion.tells_of(&mut holder);
        }
        Some((Found::Owner, vec![holder]))
    }

    fn fields(&self) -> impl Iterator<Item = (Option<&str>, &Value)> {
        let pairs = self.stored.chunks_exact(2);
        pairs.map(|pair| (text(&pair[0]), &pair[1]))
    }
}

impl Beside<'_> {
    fn tells_of(&self, holder: &mut Holder) {
        holder.owner = self.owner.and_then(|owner| Owner::new(owner).ok());
        holder.since = self.since;
        holder.fence = self.fence;
    }
}

fn moment(millis: u64) -> Option<SystemTime> {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(millis))
}
