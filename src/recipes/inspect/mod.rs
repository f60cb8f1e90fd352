//! Who has a lock, as far as the server knows.

pub(crate) mod calls;

use std::time::{Duration, SystemTime};

use redis::{RedisResult, Value};

use crate::{
    error::makes_no_sense,
    name::Owner,
    script::{fencing_token, yes_or_no},
    token::{FencingToken, Token},
};

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

/// What is known of one holder.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) side: Part,
    pub(crate) token: Option<Token>,
    pub(crate) owner: Option<Owner>,
    pub(crate) count: Option<u64>,
    pub(crate) remaining: Option<Duration>,
    pub(crate) since: Option<SystemTime>,
    pub(crate) fence: Option<FencingToken>,
}

/// What a holder is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Alone,
    Reader,
    Writer,
    Waiting,
}

/// What the companion says of the hold that it tells of.
struct Companion<'a> {
    /// The last that is reserved.
    fence: Option<FencingToken>,
    /// How many of them are for those the lock is handed to.
    reserved: u64,
    token: Option<&'a str>,
    owner: Option<&'a str>,
    since: Option<SystemTime>,
}

/// What a forced release has found, and whether it has deleted that.
pub(crate) fn understood_taken(answer: &Value) -> RedisResult<(bool, (Found, Vec<Known>))> {
    match answer {
        Value::Array(parts) => match &parts[..] {
            [taken, found] => Ok((yes_or_no(taken)?, understood(found)?)),
            _ => Err(makes_no_sense()),
        },
        _ => Err(makes_no_sense()),
    }
}

/// What a look at a lock and its companion has found.
pub(crate) fn understood(answer: &Value) -> RedisResult<(Found, Vec<Known>)> {
    let Value::Array(parts) = answer else {
        return Err(makes_no_sense());
    };
    let [
        kind,
        Value::Int(left),
        Value::Array(stored),
        Value::Array(companion),
        now,
    ] = &parts[..]
    else {
        return Err(makes_no_sense());
    };
    let left = u64::try_from(*left).ok().map(Duration::from_millis);
    let now = number(now).ok_or_else(makes_no_sense)?;
    let companion = Companion {
        fence: companion
            .first()
            .and_then(|fence| fencing_token(fence).ok()),
        token: companion.get(1).and_then(text),
        owner: companion.get(2).and_then(text),
        since: companion.get(3).and_then(number).and_then(moment),
        reserved: companion.get(4).and_then(number).unwrap_or(0),
    };
    let fields: Vec<_> = stored
        .chunks_exact(2)
        .map(|pair| (text(&pair[0]), &pair[1]))
        .collect();
    Ok(match (kind_of(kind), &stored[..], &fields[..]) {
        ("none", ..) => (Found::Nothing, Vec::new()),
        ("string", [value], _) => (Found::Token, vec![companion.of_a_token(text(value), left)]),
        ("hash", _, fields)
            if fields.contains(&(Some("kind"), &Value::BulkString(b"rw".into()))) =>
        {
            let holders = fields
                .iter()
                .filter_map(|(field, end)| companion.of_a_field((*field)?, end, now));
            (Found::ReadersOrWriter, holders.collect())
        }
        ("hash", _, [(Some(owner), count)]) if number(count).is_some_and(|count| count > 0) => (
            Found::Owner,
            vec![companion.of_an_owner(owner, number(count), left)],
        ),
        _ => (
            Found::Foreign,
            vec![Known {
                remaining: left,
                ..Known::nobody(Part::Alone)
            }],
        ),
    })
}

impl Known {
    fn nobody(side: Part) -> Self {
        Self {
            side,
            token: None,
            owner: None,
            count: None,
            remaining: None,
            since: None,
            fence: None,
        }
    }
}

impl Companion<'_> {
    /// With what the companion says, if it speaks of this holder.
    fn known(&self, is_its: bool, known: Known) -> Known {
        if !is_its {
            return known;
        }
        Known {
            owner: self.owner.and_then(|owner| Owner::new(owner).ok()),
            since: self.since,
            fence: self.fence,
            ..known
        }
    }

    fn of_a_token(&self, token: Option<&str>, left: Option<Duration>) -> Known {
        let known = Known {
            token: token.and_then(|token| token.parse().ok()),
            remaining: left,
            ..Known::nobody(Part::Alone)
        };
        let known = self.known(token.is_some() && self.token == token, known);
        let fence = known.fence.and_then(|last| last.before(self.reserved));
        Known { fence, ..known }
    }

    fn of_an_owner(&self, owner: &str, count: Option<u64>, left: Option<Duration>) -> Known {
        let known = Known {
            owner: Owner::new(owner).ok(),
            count,
            remaining: left,
            ..Known::nobody(Part::Alone)
        };
        self.known(self.owner == Some(owner), known)
    }

    /// Nobody, where the end has passed.
    fn of_a_field(&self, field: &str, end: &Value, now: u64) -> Option<Known> {
        let (side, token) = match field.split_once(':')? {
            ("r", token) => (Part::Reader, token),
            ("w", token) => (Part::Writer, token),
            ("i", token) => (Part::Waiting, token),
            _ => return None,
        };
        let left = number(end)?.checked_sub(now)?;
        let known = Known {
            token: token.parse().ok(),
            remaining: Some(Duration::from_millis(left)),
            ..Known::nobody(side)
        };
        Some(self.known(side == Part::Writer && self.token == Some(token), known))
    }
}

fn kind_of(value: &Value) -> &str {
    match value {
        Value::SimpleString(kind) => kind,
        value => text(value).unwrap_or_default(),
    }
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        _ => None,
    }
}

fn number(value: &Value) -> Option<u64> {
    text(value)?.parse().ok()
}

fn moment(millis: u64) -> Option<SystemTime> {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(millis))
}
