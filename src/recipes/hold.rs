//! A hold on a lock of any kind, and the replies to the attempts to acquire it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use redis::{RedisResult, Value};

use super::{
    once::{self, LastRun},
    reentrant::EndedHolds,
};
use crate::{
    error::{Result, makes_no_sense},
    name::{LockName, Owner},
    token::{FencingToken, Token},
    wire::{Replicas, count, fencing_token},
};

/// The kind of a lock, with what an acquire of this kind alone has to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LockKind {
    Mutex,
    Reentrant,
    Read,
    Write,
    /// A hold that is only looked at, renewed or released has any number of permits.
    Semaphore {
        permits: u32,
    },
}

impl LockKind {
    /// Returns true if this never waits for a holder of the other kind.
    pub(crate) fn shares_with(self, holder: Self) -> bool {
        matches!((self, holder), (Self::Read, Self::Read))
    }

    /// Returns the number of permits of a semaphore.
    pub(crate) fn permits(self) -> Option<u32> {
        match self {
            Self::Semaphore { permits } => Some(permits),
            _ => None,
        }
    }
}

/// One hold on one lock of any kind, for a [`Watchdog`](crate::Watchdog) to renew.
///
/// Any function may have acquired the lock. A hold of the article's editions cannot be renewed
/// safely, so it has no constructor.
#[derive(Clone, Debug)]
pub struct Hold {
    pub(crate) kind: LockKind,
    pub(crate) lock: LockName,
    pub(crate) token: Token,
    /// The owner that may re-enter a reentrant lock; for other kinds a text for humans.
    pub(crate) owner: Owner,
    /// True if an acquire issues a fencing token.
    pub(crate) is_fenced: bool,
    /// The maximum number of further fencing tokens to reserve for hand-overs.
    pub(super) reserved: u64,
    /// The end in milliseconds since 1970, if the lease of a mutex ends at a fixed time.
    pub(super) ends_at: Option<u64>,
    /// The replicas that must have the lock before it counts, if any.
    pub(crate) replicas: Option<Replicas>,
    /// The period in milliseconds, for work that runs once per period.
    pub(super) period_millis: Option<u64>,
    /// The holds of a reentrant lock that have ended, if the caller notes them.
    pub(super) ended: Option<Arc<EndedHolds>>,
}

/// The reply to an acquire attempt.
#[derive(Debug)]
pub(crate) enum Attempt {
    /// The lock is ours.
    Granted {
        /// `None`: this hold gets no fencing token.
        fence: Option<FencingToken>,
        /// For a mutex, the number of reserved fencing tokens after this one; for a reentrant lock,
        /// the number of times that its owner holds it; for a semaphore, the number of permits that
        /// are still free.
        number: u64,
        /// For the last permit of a semaphore, the time until another ends.
        next_in: Option<Duration>,
    },
    /// Another holder has the lock. If its lease ends, it ends within this time.
    Busy(Option<Duration>),
    /// The work was already run within the period.
    AlreadyRun(LastRun),
}

/// A hold is identified by the token that acquires it.
impl Hold {
    /// Creates a hold on a [`mutex`](super::mutex) or on the [book's](crate::acquire_lock) lock,
    /// which have the same key and value.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid): the name is invalid.
    pub fn mutex(name: &str, token: &Token) -> Result<Self> {
        Self::named(LockKind::Mutex, name, token, Owner::described())
    }

    /// Creates a hold for one acquisition of a [`reentrant`](super::reentrant) lock by this owner.
    /// Each acquisition is renewed separately.
    ///
    /// # Errors
    /// As [`mutex`](Self::mutex).
    pub fn reentrant(name: &str, owner: &Owner, token: &Token) -> Result<Self> {
        Self::named(LockKind::Reentrant, name, token, owner.clone())
    }

    /// Creates a reader's hold on a [`read_write`](super::read_write) lock.
    ///
    /// # Errors
    /// As [`mutex`](Self::mutex).
    pub fn read(name: &str, token: &Token) -> Result<Self> {
        Self::named(LockKind::Read, name, token, Owner::described())
    }

    /// Creates a writer's hold on a [`read_write`](super::read_write) lock.
    ///
    /// # Errors
    /// As [`mutex`](Self::mutex).
    pub fn write(name: &str, token: &Token) -> Result<Self> {
        Self::named(LockKind::Write, name, token, Owner::described())
    }

    /// Creates a hold on a permit of a [`semaphore`](super::semaphore).
    ///
    /// # Errors
    /// As [`mutex`](Self::mutex).
    pub fn semaphore(name: &str, token: &Token) -> Result<Self> {
        let kind = LockKind::Semaphore { permits: 1 };
        Self::named(kind, name, token, Owner::described())
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
            is_fenced: kind != LockKind::Read && kind.permits().is_none(),
            reserved: 0,
            ends_at: None,
            replicas: None,
            period_millis: None,
            ended: None,
        }
    }

    /// For a reentrant lock: notes here which holds have ended, and never enters one of them again.
    pub(crate) fn noting(self, ended: &Arc<EndedHolds>) -> Self {
        let is_reentrant = self.kind == LockKind::Reentrant;
        let ended = is_reentrant.then(|| Arc::clone(ended));
        Self { ended, ..self }
    }

    /// Notes that all holds of this reentrant lock up to this fencing token have ended, and when
    /// the lease of one of them ends.
    pub(crate) fn note_ended(&self, last: Option<FencingToken>, lease_end: Instant, now: Instant) {
        if let (Some(ended), Some(last)) = (&self.ended, last) {
            ended.note(self.lock.key(), last, lease_end, now);
        }
    }

    /// Refuses the lock if the last run was less than this period ago. For a mutex only.
    pub(crate) fn unless_run(self, period_millis: u64) -> Self {
        Self {
            period_millis: Some(period_millis),
            ..self
        }
    }

    /// Returns the hold with these demands. `fencing`: a mutex gets a fencing token. `reserved`:
    /// the maximum number of further fencing tokens, for hand-overs. `replicas`: they must have the
    /// lock before a grant or a renewal counts.
    pub(crate) fn demanding(
        self,
        fencing: bool,
        reserved: u64,
        replicas: Option<Replicas>,
    ) -> Self {
        let is_fenced = self.is_fenced && (fencing || self.kind != LockKind::Mutex);
        Self {
            is_fenced,
            reserved,
            replicas,
            ..self
        }
    }

    pub(crate) fn has_companion(&self) -> bool {
        self.is_fenced || self.kind.permits().is_some()
    }

    /// Returns the number of holders up to which this hold shares the lock.
    pub(crate) fn most_holders(&self) -> u32 {
        match self.kind {
            LockKind::Mutex | LockKind::Reentrant | LockKind::Write => 1,
            LockKind::Read => u32::MAX,
            LockKind::Semaphore { permits } => permits,
        }
    }

    /// Reads the reply to an acquire attempt.
    pub(crate) fn read_attempt(&self, answer: &Value) -> RedisResult<Attempt> {
        if self.period_millis.is_some()
            && let Some(run) = once::read_mark(answer)?
        {
            return Ok(Attempt::AlreadyRun(run));
        }
        if self.kind.permits().is_some() {
            return permit(answer);
        }
        let granted = |fence: Option<&Value>, number| {
            Ok(Attempt::Granted {
                fence: fence.map(fencing_token).transpose()?,
                number,
                next_in: None,
            })
        };
        match answer {
            Value::Nil if self.kind != LockKind::Read => Ok(Attempt::Busy(None)),
            Value::Int(0) if self.kind == LockKind::Read => Ok(Attempt::Busy(None)),
            Value::Array(parts) => match &parts[..] {
                [Value::Int(left)] => Ok(Attempt::Busy(millis(*left))),
                [fence, number] if self.is_fenced => granted(Some(fence), count(number)?),
                _ => Err(makes_no_sense()),
            },
            fence if self.is_fenced => granted(Some(fence), 0),
            Value::Okay | Value::Int(1) => granted(None, 0),
            _ => Err(makes_no_sense()),
        }
    }
}

/// Reads the reply to an attempt to acquire a permit of a semaphore.
fn permit(answer: &Value) -> RedisResult<Attempt> {
    let granted = |number, next_in| Attempt::Granted {
        fence: None,
        number,
        next_in,
    };
    match answer {
        Value::Nil => Ok(Attempt::Busy(None)),
        Value::Int(1..) => Ok(granted(count(answer)? - 1, None)),
        Value::Array(parts) => match parts[..] {
            [Value::Int(left)] => Ok(Attempt::Busy(millis(left))),
            [Value::Int(1), Value::Int(next @ 0..)] => Ok(granted(0, millis(next))),
            _ => Err(makes_no_sense()),
        },
        _ => Err(makes_no_sense()),
    }
}

/// Converts a `PTTL`. `None`: the key has no end.
fn millis(left: i64) -> Option<Duration> {
    u64::try_from(left).ok().map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_of_another_shape_is_not_a_permit() {
        let hold = Hold::semaphore("a", &Token::random()).unwrap();
        let array =
            |numbers: &[i64]| Value::Array(numbers.iter().copied().map(Value::Int).collect());
        let others = [
            Value::Okay,
            Value::Int(0),
            Value::Int(-1),
            Value::Double(1.0),
            Value::Boolean(true),
            Value::BulkString(b"1".into()),
            array(&[]),
            array(&[2, 5]),
            array(&[1, -1]),
            array(&[1, 5, 1]),
        ];
        for other in others {
            assert!(hold.read_attempt(&other).is_err(), "{other:?}");
        }
        for (granted, left) in [(Value::Int(3), 2), (array(&[1, 5]), 0)] {
            let attempt = hold.read_attempt(&granted).unwrap();
            assert!(
                matches!(attempt, Attempt::Granted { number, fence: None, .. } if number == left),
                "{attempt:?}"
            );
        }
    }
}
