//! A lock by one atomic `SET … NX` with an end, and a fencing token.
//!
//! The non-reentrant lock of the Chinese notes on Redis locks. Same key and value as [`simple`](super::simple): the two
//! exclude each other, and any other program that locks by `SET … NX`.

use std::time::{Duration, SystemTime};

use redis::{ConnectionLike, RedisResult};

use super::{Recipe, sealed, wait::until_granted};
use crate::{
    Error, Result,
    error::Operation,
    name::LockName,
    script::{self, Call},
    time::{epoch_millis, lease_millis},
    token::{FencingToken, Token},
};

/// When a lease ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// So long after the server has taken the lock: 1 ms to 24 h.
    After(Duration),
    /// At this moment, by the server's clock: not in the past, and at most 24 h ahead.
    At(SystemTime),
}

/// What an acquire grants beside the lock itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    fencing_token: FencingToken,
}

impl Grant {
    pub(crate) fn new(fencing_token: FencingToken) -> Self {
        Self { fencing_token }
    }

    /// The number to hand to the resource that the lock protects.
    #[must_use]
    pub fn fencing_token(&self) -> FencingToken {
        self.fencing_token
    }
}

/// Takes the lock if it is free, or ours already. Never waits.
///
/// # Errors
/// See [`Error`].
pub fn try_acquire<C: ConnectionLike>(
    conn: &mut C,
    name: &str,
    token: &Token,
    end: End,
) -> Result<Option<Grant>> {
    let lock = LockName::new(name)?;
    let end = end.checked()?;
    let operation = Operation::new("mutex::try_acquire", name);
    attempt(conn, &lock, token, end).map_err(|error| operation.unanswered(Some(token), error))
}

/// Takes the lock, waiting up to `acquire_timeout` for it.
///
/// # Errors
/// See [`Error`].
pub fn acquire<C: ConnectionLike>(
    conn: &mut C,
    name: &str,
    token: &Token,
    acquire_timeout: Duration,
    end: End,
) -> Result<Option<Grant>> {
    let lock = LockName::new(name)?;
    let end = end.checked()?;
    let operation = Operation::new("mutex::acquire", name);
    until_granted(operation, token, acquire_timeout, || {
        attempt(conn, &lock, token, end)
    })
}

/// Takes the lock by the bare `SET … NX PX`, without a fencing token.
///
/// # Errors
/// See [`Error`].
pub fn try_acquire_unfenced<C: ConnectionLike>(
    conn: &mut C,
    name: &str,
    token: &Token,
    lease: Duration,
) -> Result<bool> {
    let lock = LockName::new(name)?;
    let millis = lease_millis("lease", lease)?;
    let operation = Operation::new("mutex::try_acquire_unfenced", name);
    let mut set = redis::cmd("SET");
    set.arg(lock.key())
        .arg(token.as_str())
        .arg("NX")
        .arg("PX")
        .arg(millis);
    set.query(conn)
        .map_err(|error| operation.unanswered(Some(token), error))
}

/// Sets the end of the lease anew, never earlier. `Ok(false)`: the lock is not ours any more.
///
/// # Errors
/// See [`Error`].
pub fn renew<C: ConnectionLike>(
    conn: &mut C,
    name: &str,
    token: &Token,
    lease: Duration,
) -> Result<bool> {
    let lock = LockName::new(name)?;
    let millis = lease_millis("lease", lease)?;
    let operation = Operation::new("mutex::renew", name);
    script::renew_mutex(&lock, token, millis)
        .asks(conn)
        .map_err(|error| operation.unanswered(None, error))
}

/// Gives the lock back, if it is still ours. `Ok(false)`: it was not ours any more, and nothing was deleted.
///
/// # Errors
/// See [`Error`].
pub fn release<C: ConnectionLike>(conn: &mut C, name: &str, token: &Token) -> Result<bool> {
    let lock = LockName::new(name)?;
    let operation = Operation::new("mutex::release", name);
    script::release_mutex(&lock, token)
        .asks(conn)
        .map_err(|error| operation.unanswered(None, error))
}

/// An end as the script takes it: milliseconds of lease, milliseconds since 1970, one of them 0.
pub(crate) type CheckedEnd = (u64, u64);

impl End {
    fn checked(self) -> Result<CheckedEnd> {
        match self {
            Self::After(lease) => Ok((lease_millis("lease", lease)?, 0)),
            Self::At(moment) => match epoch_millis(moment) {
                Some(millis) => Ok((0, millis)),
                None => Err(Error::invalid(
                    "end",
                    "it has to lie between 1970 and the year 9999",
                )),
            },
        }
    }
}

fn attempt(
    conn: &mut dyn ConnectionLike,
    lock: &LockName,
    token: &Token,
    end: CheckedEnd,
) -> RedisResult<Option<Grant>> {
    let number: Option<u64> = script::acquire_mutex(lock, token, end).send(conn)?;
    Ok(number.map(|number| Grant::new(FencingToken::new(number))))
}

/// A hold on a lock of this kind, or of [`simple`](super::simple): the key and the value are the same.
#[derive(Clone, Debug)]
pub struct Hold {
    lock: LockName,
    token: Token,
}

impl Hold {
    /// The hold that this token is, or is going to be, on the lock.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a name that cannot be a lock's.
    pub fn new(name: &str, token: &Token) -> Result<Self> {
        Ok(Self {
            lock: LockName::new(name)?,
            token: token.clone(),
        })
    }
}

impl Recipe for Hold {}

impl sealed::Hold for Hold {
    fn lock(&self) -> &LockName {
        &self.lock
    }

    fn renewal(&self, lease_millis: u64) -> Call {
        script::renew_mutex(&self.lock, &self.token, lease_millis)
    }

    fn giving_back(&self) -> Call {
        script::release_mutex(&self.lock, &self.token)
    }
}
