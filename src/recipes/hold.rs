//! One hold of whatever kind as one type, and the meaning of the answers to its attempts.

use std::time::Duration;

use redis::{Connection, RedisResult, Value};

use super::{
    once::{self, LastRun},
    wait::until_granted,
};
use crate::{
    error::{Operation, Result, makes_no_sense},
    name::{LockName, Owner},
    token::{FencingToken, Token},
    wire::{Call, Replicas, count, fencing_token},
};

/// The kind of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LockKind {
    Mutex,
    Reentrant,
    Read,
    Write,
}

/// One hold on one lock, by whichever function it was acquired: the value that a
/// [`Watchdog`](crate::Watchdog) renews.
///
/// A hold of the [article's](super::read_write) editions cannot be renewed safely, so there is no
/// constructor for one.
#[derive(Clone, Debug)]
pub struct Hold {
    pub(super) kind: LockKind,
    pub(super) lock: LockName,
    pub(super) token: Token,
    /// Who may enter a reentrant lock again, otherwise a text for people.
    pub(super) owner: Owner,
    /// An acquire gives it a fencing token.
    pub(super) is_fenced: bool,
    /// The most fencing tokens to reserve beside its own, for those the lock is handed to.
    pub(super) reserved: u64,
    /// The end in milliseconds since 1970, where it is a moment: a mutex alone can have one.
    pub(super) ends_at: Option<u64>,
    /// The replicas that have to have it before it counts, if any.
    pub(super) replicas: Option<Replicas>,
    /// The period in milliseconds, for work that is done once in one.
    pub(super) period_millis: Option<u64>,
}

/// The answer to an attempt.
#[derive(Debug)]
pub(crate) enum Attempt {
    /// Ours.
    Granted {
        /// `None`: the hold gets none.
        fence: Option<FencingToken>,
        /// Of a mutex, the number of fencing tokens after this one that are reserved; of a
        /// reentrant lock, the number of times that its owner holds it.
        number: u64,
    },
    /// Somebody else's, for this long at the most, if they have an end.
    Busy(Option<Duration>),
    /// The work has been run within the period.
    AlreadyRun(LastRun),
}

/// The fencing token and the count that an acquire grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    fencing_token: FencingToken,
    count: u64,
}

impl Grant {
    /// The number to hand to the resource that the lock protects. Of a reentrant lock it stays the
    /// same from the first acquisition of a hold until its last release.
    #[must_use]
    pub fn fencing_token(&self) -> FencingToken {
        self.fencing_token
    }

    /// The number of times that the owner holds the lock now. Always 1 where the lock is not reentrant.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }
}

/// A hold is named by the token that it was, or is going to be, acquired with.
impl Hold {
    /// On a lock of [`mutex`](super::mutex) or of [`simple`](super::simple), the book's: the key
    /// and the value are the same.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid): the name cannot be a lock's.
    pub fn mutex(name: &str, token: &Token) -> Result<Self> {
        Self::named(LockKind::Mutex, name, token, Owner::described())
    }

    /// One acquisition of a [`reentrant`](super::reentrant) lock by this owner: renewed as the
    /// acquisition that it is.
    ///
    /// # Errors
    /// As [`mutex`](Self::mutex).
    pub fn reentrant(name: &str, owner: &Owner, token: &Token) -> Result<Self> {
        Self::named(LockKind::Reentrant, name, token, owner.clone())
    }

    /// A reader's on a [`read_write`](super::read_write) lock.
    ///
    /// # Errors
    /// As [`mutex`](Self::mutex).
    pub fn read(name: &str, token: &Token) -> Result<Self> {
        Self::named(LockKind::Read, name, token, Owner::described())
    }

    /// A writer's on a [`read_write`](super::read_write) lock.
    ///
    /// # Errors
    /// As [`mutex`](Self::mutex).
    pub fn write(name: &str, token: &Token) -> Result<Self> {
        Self::named(LockKind::Write, name, token, Owner::described())
    }

    fn named(kind: LockKind, name: &str, token: &Token, owner: Owner) -> Result<Self> {
        Ok(Self::new(kind, LockName::new(name)?, token.clone(), owner))
    }

    pub(crate) fn new(kind: LockKind, lock: LockName, token: Token, owner: Owner) -> Self {
        Self {
            kind,
            lock,
            token,
            owner,
            is_fenced: kind != LockKind::Read,
            reserved: 0,
            ends_at: None,
            replicas: None,
            period_millis: None,
        }
    }

    /// Granted unless the last run was less than this period ago. For a mutex only.
    pub(crate) fn unless_run(self, period_millis: u64) -> Self {
        Self {
            period_millis: Some(period_millis),
            ..self
        }
    }

    /// Granted and renewed only when so many replicas have it.
    pub(crate) fn confirmed_by(self, replicas: Option<Replicas>) -> Self {
        Self { replicas, ..self }
    }

    /// The replicas that have to have it before it counts, if any.
    pub(crate) fn replicas(&self) -> Option<Replicas> {
        self.replicas
    }

    /// Without a fencing token. The other kinds keep theirs: it costs them no key more.
    pub(crate) fn unfenced(self) -> Self {
        let is_fenced = self.is_fenced && self.kind != LockKind::Mutex;
        Self { is_fenced, ..self }
    }

    /// With this many more fencing tokens, for those the lock is handed to. For a mutex only.
    pub(crate) fn reserving(self, reserved: u64) -> Self {
        Self { reserved, ..self }
    }

    pub(crate) fn kind(&self) -> LockKind {
        self.kind
    }

    pub(crate) fn lock_name(&self) -> &LockName {
        &self.lock
    }

    pub(crate) fn is_fenced(&self) -> bool {
        self.is_fenced
    }

    pub(crate) fn owner(&self) -> &Owner {
        &self.owner
    }

    pub(crate) fn token(&self) -> &Token {
        &self.token
    }

    /// Acquires it for a plain function: sends this call until it is granted or the time is over,
    /// once at least. The fencing token of a hold that gets none is 0.
    pub(super) fn acquire(
        &self,
        conn: &mut Connection,
        function: &'static str,
        acquire_timeout: Duration,
        call: &Call,
    ) -> Result<Option<Grant>> {
        let operation = Operation::new(function, self.lock.text());
        until_granted(operation, &self.token, acquire_timeout, || {
            Ok(match self.understood(&call.send(conn)?)? {
                Attempt::Granted { fence, number } => Some(Grant {
                    fencing_token: fence.unwrap_or(FencingToken::new(0)),
                    count: number.max(1),
                }),
                Attempt::Busy(_) | Attempt::AlreadyRun(_) => None,
            })
        })
    }

    /// Reads the answer to an attempt.
    pub(crate) fn understood(&self, answer: &Value) -> RedisResult<Attempt> {
        if self.period_millis.is_some()
            && let Some(run) = once::understood(answer)?
        {
            return Ok(Attempt::AlreadyRun(run));
        }
        let granted = |fence: Option<&Value>, number| {
            let fence = fence.map(fencing_token).transpose()?;
            Ok(Attempt::Granted { fence, number })
        };
        match answer {
            Value::Nil if self.kind != LockKind::Read => Ok(Attempt::Busy(None)),
            Value::Int(0) if self.kind == LockKind::Read => Ok(Attempt::Busy(None)),
            Value::Array(parts) => match &parts[..] {
                [Value::Int(left)] => {
                    let left = u64::try_from(*left).ok();
                    Ok(Attempt::Busy(left.map(Duration::from_millis)))
                }
                [fence, number] if self.is_fenced => granted(Some(fence), count(number)?),
                _ => Err(makes_no_sense()),
            },
            fence if self.is_fenced => granted(Some(fence), 0),
            Value::Okay | Value::Int(1) => granted(None, 0),
            _ => Err(makes_no_sense()),
        }
    }
}
