//! One hold of whatever kind, as one type: what is sent for it, and what the answers mean. The
//! guards, the renewing threads and the stand-in know a hold of no other type.

use std::{fmt, time::Duration};

use redis::{Cmd, Connection, Pipeline, RedisResult, Value};

use super::{
    commit::Proof,
    mutex::calls as mutex,
    once::{self, LastRun, calls},
    read_write::calls::{self as read_write, Side},
    reentrant::calls::{self as reentrant, Levels},
};
use crate::{
    error::{Error, Operation, Result, makes_no_sense},
    name::{LockName, Owner},
    script::{Call, Refusal, Replicas, count, fencing_token},
    token::{FencingToken, Token},
    transaction::command,
};

/// Which kind of lock.
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
#[derive(Clone)]
pub struct Hold {
    kind: LockKind,
    lock: LockName,
    token: Token,
    /// Who may enter a reentrant lock again, otherwise a text for people.
    owner: Owner,
    /// Whether it gets a fencing token, where its kind has them.
    is_fenced: bool,
    /// How many more of them to reserve at the most for those the lock is handed to.
    reserved: u64,
    /// How many replicas have to have it before it counts, if any.
    replicas: Option<Replicas>,
    /// It is wanted for work that is done once in so many milliseconds.
    period_millis: Option<u64>,
}

/// What an attempt has come to.
#[derive(Debug)]
pub(crate) enum Attempt {
    /// Ours, with a fencing token if the hold gets one.
    Granted {
        fence: Option<FencingToken>,
        /// How many more after it are ours.
        reserved: u64,
    },
    /// For how long those in our way may stay, if they have an end.
    Busy(Option<Duration>),
    /// There is nothing to do: it has been run within the period.
    AlreadyRun(LastRun),
}

/// A hold is named by the token that it was, or is going to be, acquired with.
impl Hold {
    /// On a lock of [`mutex`](super::mutex) or of [`simple`](super::simple), the book's: the key
    /// and the value are the same.
    ///
    /// # Errors
    /// [`Error::Invalid`]: the name cannot be a lock's.
    pub fn mutex(name: &str, token: &Token) -> Result<Self> {
        Self::named(LockKind::Mutex, name, token)
    }

    /// One acquisition of a [`reentrant`](super::reentrant) lock by this owner: renewed as the
    /// acquisition that it is.
    ///
    /// # Errors
    /// As [`mutex`](Self::mutex).
    pub fn reentrant(name: &str, owner: &Owner, token: &Token) -> Result<Self> {
        let lock = LockName::new(name)?;
        Ok(Self::new(
            LockKind::Reentrant,
            lock,
            token.clone(),
            owner.clone(),
        ))
    }

    /// A reader's on a [`read_write`](super::read_write) lock.
    ///
    /// # Errors
    /// As [`mutex`](Self::mutex).
    pub fn read(name: &str, token: &Token) -> Result<Self> {
        Self::named(LockKind::Read, name, token)
    }

    /// A writer's on a [`read_write`](super::read_write) lock.
    ///
    /// # Errors
    /// As [`mutex`](Self::mutex).
    pub fn write(name: &str, token: &Token) -> Result<Self> {
        Self::named(LockKind::Write, name, token)
    }

    fn named(kind: LockKind, name: &str, token: &Token) -> Result<Self> {
        let lock = LockName::new(name)?;
        Ok(Self::new(kind, lock, token.clone(), Owner::described()))
    }

    /// Waits until that many replicas have the lock that was just acquired **on this connection**.
    /// With fewer, gives it back.
    ///
    /// `Ok(())`: the master and that many replicas had the lock in memory, at one moment, as with
    /// [`Options::replicas`](crate::Options::replicas), which says what that is worth. Of what was
    /// acquired on another connection it says nothing. For an acquire only: a renewal by a plain
    /// function or a [`Watchdog`](crate::Watchdog) waits for no replica, so that a master's end
    /// can still take the later end with it, and the lock then lasts for the lease that was
    /// confirmed.
    ///
    /// One round trip, which takes what the replicas' answer takes, and `wait` at the most; one
    /// more to give the lock back. `wait` counts against the lease, and has to be shorter than the
    /// read time-out of the connection.
    ///
    /// # Errors
    /// - [`Error::TooFewReplicas`]: fewer have it. The lock was given back.
    /// - [`Error::Redis`]: the server refused to wait. The lock was given back, unless the server
    ///   refused that as well.
    /// - [`Error::Unknown`]: no answer came, so the lock may be held by [`Error::token`] until the
    ///   lease ends. Release it, on another connection.
    /// - [`Error::Invalid`]: `replicas` is not between 1 and 100, or `wait` not between 1 ms and
    ///   24 h. Nothing was sent, and the lock is held.
    ///
    /// # Example
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use leasehold::{Token, recipes::{Hold, mutex::{self, End}}};
    ///
    /// # let pool = leasehold::Pool::connect("redis+sentinel://s1,s2,s3/mymaster")?;
    /// let mut conn = pool.get()?;
    /// let (token, end) = (Token::random(), End::After(Duration::from_secs(10)));
    /// if let Some(grant) = mutex::try_acquire(&mut *conn, "report", &token, end)? {
    ///     Hold::mutex("report", &token)?.confirm_by_replicas(&mut *conn, 1, Duration::from_millis(100))?;
    ///     println!("granted, with fencing token {}", grant.fencing_token());
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn confirm_by_replicas(
        &self,
        conn: &mut Connection,
        replicas: u32,
        wait: Duration,
    ) -> Result<()> {
        let operation = Operation::new("confirm_by_replicas", self.lock.text());
        let wanted = Replicas::wanted(replicas, wait)?;
        let unanswered = |error| operation.unanswered(Some(&self.token), error);
        let confirmed = wanted.confirm(conn).map_err(unanswered);
        if let Err(Error::TooFewReplicas { .. } | Error::Redis { .. }) = confirmed {
            self.giving_back().counts(conn).map_err(unanswered)?;
        }
        confirmed
    }

    pub(crate) fn new(kind: LockKind, lock: LockName, token: Token, owner: Owner) -> Self {
        Self {
            kind,
            lock,
            token,
            owner,
            is_fenced: kind != LockKind::Read,
            reserved: 0,
            replicas: None,
            period_millis: None,
        }
    }

    /// Wanted unless the last run was less than so many milliseconds ago: a mutex alone can be.
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

    /// How many replicas have to have it before it counts, if any.
    pub(crate) fn replicas(&self) -> Option<Replicas> {
        self.replicas
    }

    /// Without a fencing token: a mutex alone has nothing beside it then.
    pub(crate) fn unfenced(self) -> Self {
        let is_fenced = self.is_fenced && self.kind != LockKind::Mutex;
        Self { is_fenced, ..self }
    }

    /// With so many more fencing tokens, for those it is handed to: a mutex alone can be.
    pub(crate) fn reserving(self, reserved: u64) -> Self {
        let reserved = if self.kind == LockKind::Mutex {
            reserved
        } else {
            0
        };
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

    /// One attempt. Safe to send twice. A writer that waits keeps new readers out.
    pub(crate) fn acquiring(&self, lease_millis: u64, waits: bool, refusal: Refusal) -> Call {
        let (lock, token, owner) = (&self.lock, &self.token, &self.owner);
        let call = match self.kind {
            LockKind::Mutex => match (self.is_fenced, self.period_millis) {
                (true, None) => mutex::acquire(lock, &self.request(lease_millis, refusal)),
                (true, Some(period)) => {
                    let request = self.request(lease_millis, refusal);
                    mutex::acquire_unless_run(lock, &request, period)
                }
                (false, None) => mutex::acquire_unfenced(lock, token, lease_millis, refusal),
                (false, Some(period)) => {
                    mutex::acquire_unfenced_unless_run(lock, token, lease_millis, refusal, period)
                }
            },
            LockKind::Reentrant => reentrant::acquire(lock, owner, token, lease_millis, refusal),
            LockKind::Read => read_write::acquire_read(lock, token, lease_millis, refusal),
            LockKind::Write => {
                read_write::acquire_write(lock, token, lease_millis, waits, owner, refusal)
            }
        };
        call.confirmed_by(self.replicas)
    }

    fn request(&self, lease_millis: u64, refusal: Refusal) -> mutex::Request<'_> {
        mutex::Request {
            token: &self.token,
            end: mutex::EndMillis::After(lease_millis),
            who: &self.owner,
            refusal,
            reserved: self.reserved,
        }
    }

    /// What an attempt has come to.
    pub(crate) fn understood(&self, answer: Value) -> RedisResult<Attempt> {
        let granted = |fence| Ok(Attempt::Granted { fence, reserved: 0 });
        if self.period_millis.is_some()
            && let Some(run) = once::understood(&answer)?
        {
            return Ok(Attempt::AlreadyRun(run));
        }
        match (self.kind, answer) {
            (LockKind::Read, Value::Int(0))
            | (LockKind::Mutex | LockKind::Reentrant | LockKind::Write, Value::Nil) => {
                Ok(Attempt::Busy(None))
            }
            (_, Value::Array(list)) if list.len() == 1 => match list.first() {
                Some(Value::Int(millis)) => {
                    let millis = u64::try_from(*millis).ok();
                    Ok(Attempt::Busy(millis.map(Duration::from_millis)))
                }
                _ => Err(makes_no_sense()),
            },
            (LockKind::Mutex, Value::Okay | Value::Int(1)) if !self.is_fenced => granted(None),
            (LockKind::Mutex, _) if !self.is_fenced => Err(makes_no_sense()),
            (LockKind::Mutex, Value::Array(list)) => match &list[..] {
                [fence, reserved] => Ok(Attempt::Granted {
                    fence: Some(fencing_token(fence)?),
                    reserved: count(reserved)?,
                }),
                _ => Err(makes_no_sense()),
            },
            (LockKind::Reentrant, Value::Array(list)) => match &list[..] {
                [fence, Value::Int(1..)] => granted(Some(fencing_token(fence)?)),
                _ => Err(makes_no_sense()),
            },
            (LockKind::Mutex | LockKind::Write, fence) => granted(Some(fencing_token(&fence)?)),
            (LockKind::Read, Value::Int(1)) => granted(None),
            _ => Err(makes_no_sense()),
        }
    }

    /// Renews it: answers 1 while the lock is ours, 0 when it is not.
    pub(crate) fn renewal(&self, lease_millis: u64) -> Call {
        self.prolonging(lease_millis).confirmed_by(self.replicas)
    }

    /// Renews it once more for what is left of it, by a master that may not know of the last
    /// renewal. The end that its holder goes by stays, so that no replicas are waited for.
    pub(crate) fn repetition(&self, left_millis: u64) -> Call {
        self.prolonging(left_millis)
    }

    /// Whether it is ours, by the shortest renewal, which changes nothing.
    pub(crate) fn look(&self) -> Call {
        self.prolonging(1)
    }

    fn prolonging(&self, lease_millis: u64) -> Call {
        let (lock, token) = (&self.lock, &self.token);
        match self.kind {
            LockKind::Mutex if self.is_fenced => mutex::renew(lock, token, lease_millis),
            LockKind::Mutex => mutex::renew_unfenced(lock, token, lease_millis),
            LockKind::Reentrant => {
                reentrant::renew(lock, &self.owner, token, lease_millis, Levels::Counted)
            }
            LockKind::Read => read_write::renew(lock, Side::Reader, token, lease_millis),
            LockKind::Write => read_write::renew(lock, Side::Writer, token, lease_millis),
        }
    }

    /// Lets go: answers more than 0 if the lock was ours.
    pub(crate) fn giving_back(&self) -> Call {
        let (lock, token) = (&self.lock, &self.token);
        match self.kind {
            LockKind::Mutex => mutex::release(lock, token),
            LockKind::Reentrant => reentrant::release(lock, &self.owner, token, Levels::Counted),
            LockKind::Read => read_write::release(lock, Side::Reader, token),
            LockKind::Write => read_write::release(lock, Side::Writer, token),
        }
    }

    /// Lets go, and marks that the work has been done: answers 1 if the lock was ours until now.
    /// Safe to send twice. `None`: it was not for work that is done once.
    pub(crate) fn finishing(&self) -> Option<Call> {
        let kept = self.period_millis?.saturating_mul(2);
        let call = calls::finish(&self.lock, &self.token, &self.owner, kept);
        Some(call.confirmed_by(self.replicas))
    }

    /// Takes back a writer's intent, when it stops waiting.
    pub(crate) fn quitting(&self) -> Option<Call> {
        let is_writer = self.kind == LockKind::Write;
        is_writer.then(|| read_write::release(&self.lock, Side::Intent, &self.token))
    }

    /// Lets go of it in a transaction that watches the lock, and has found it ours.
    pub(crate) fn giving_back_while_watched(&self) -> Cmd {
        match self.kind {
            LockKind::Mutex => command(&["DEL", self.lock.key()]),
            // Whole, since a transaction in which the server does not know a script is executed all
            // the same.
            LockKind::Reentrant | LockKind::Read | LockKind::Write => self.giving_back().whole(),
        }
    }

    /// What shows that this hold stands.
    pub(crate) fn proof(&self) -> Proof<'_> {
        let mut reads = Pipeline::new();
        match self.kind {
            LockKind::Mutex => return Proof::by_value(&self.lock, &self.token),
            LockKind::Reentrant => reads
                .cmd("HGET")
                .arg(self.lock.key())
                .arg(self.owner.as_str())
                .cmd("HGET")
                .arg(self.lock.companion())
                .arg(format!("t:{}", self.token))
                .cmd("TIME"),
            LockKind::Read => self.read_end(&mut reads, Side::Reader),
            LockKind::Write => self.read_end(&mut reads, Side::Writer),
        };
        Proof {
            lock: &self.lock,
            reads,
            is_ours: Box::new(|values| self.is_proven_by(values)),
        }
    }

    fn read_end<'p>(&self, read: &'p mut Pipeline, side: Side) -> &'p mut Pipeline {
        let field = side.field(&self.token);
        read.cmd("HGET").arg(self.lock.key()).arg(field).cmd("TIME")
    }

    fn is_proven_by(&self, values: &[Value]) -> bool {
        match (self.kind, values) {
            (LockKind::Reentrant, [count, end, time]) => {
                whole_number(count).is_some_and(|count| count > 0) && is_ahead(end, time)
            }
            (LockKind::Read | LockKind::Write, [end, time]) => is_ahead(end, time),
            _ => false,
        }
    }
}

/// Whether an end in milliseconds is ahead of the answer to `TIME`.
fn is_ahead(end: &Value, time: &Value) -> bool {
    let Value::Array(time) = time else {
        return false;
    };
    match &time[..] {
        [seconds, micros] => whole_number(end)
            .zip(whole_number(seconds).zip(whole_number(micros)))
            .is_some_and(|(end, (seconds, micros))| end > seconds * 1_000 + micros / 1_000),
        _ => false,
    }
}

fn whole_number(value: &Value) -> Option<u64> {
    match value {
        Value::BulkString(digits) => std::str::from_utf8(digits).ok()?.parse().ok(),
        _ => None,
    }
}

/// Without the token.
impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("kind", &self.kind)
            .field("lock", &self.lock)
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}
