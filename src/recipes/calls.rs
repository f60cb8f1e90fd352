//! The calls of a hold of whatever kind: for each thing that is sent, one arm a kind.

use std::time::Duration;

use redis::{Cmd, Connection, Pipeline, Value, from_redis_value_ref};

use super::{
    hold::{Hold, LockKind},
    mutex, number, once,
    read_write::{self, Side},
    reentrant::{self, Levels},
    transaction::Proof,
};
use crate::{
    error::{Error, Operation, Result},
    wire::{Call, Refusal, Replicas, command},
};

impl Hold {
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
    /// if let Some(grant) = mutex::try_acquire(&mut conn, "report", &token, end)? {
    ///     Hold::mutex("report", &token)?.confirm_by_replicas(&mut conn, 1, Duration::from_millis(100))?;
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

    /// One attempt. Safe to send twice. A writer that waits keeps new readers out.
    pub(crate) fn acquiring(&self, lease_millis: u64, waits: bool, refusal: Refusal) -> Call {
        let call = match self.kind {
            LockKind::Mutex => mutex::acquiring(self, lease_millis, refusal),
            LockKind::Reentrant => reentrant::acquiring(self, lease_millis, refusal),
            LockKind::Read => read_write::acquiring_read(self, lease_millis, refusal),
            LockKind::Write => read_write::acquiring_write(self, lease_millis, waits, refusal),
        };
        call.confirmed_by(self.replicas)
    }

    /// Renews it: answers 1 while the lock is ours, 0 when it is not.
    pub(crate) fn renewal(&self, lease_millis: u64) -> Call {
        self.prolonging(lease_millis).confirmed_by(self.replicas)
    }

    /// Asks if it is ours, by the shortest renewal, which changes nothing.
    pub(crate) fn look(&self) -> Call {
        self.prolonging(1)
    }

    fn prolonging(&self, lease_millis: u64) -> Call {
        match self.kind {
            LockKind::Mutex => mutex::renewing(self, lease_millis),
            LockKind::Reentrant => reentrant::renewing(self, lease_millis, Levels::Counted),
            LockKind::Read => read_write::renewing(self, Side::Reader, lease_millis),
            LockKind::Write => read_write::renewing(self, Side::Writer, lease_millis),
        }
    }

    /// Lets go: answers more than 0 if the lock was ours.
    pub(crate) fn giving_back(&self) -> Call {
        match self.kind {
            LockKind::Mutex => mutex::releasing(self.lock.key(), &self.token),
            LockKind::Reentrant => reentrant::releasing(self, Levels::Counted),
            LockKind::Read => read_write::releasing(self, Side::Reader),
            LockKind::Write => read_write::releasing(self, Side::Writer),
        }
    }

    /// Lets go, and marks that the work has been done: answers 1 if the lock was ours until now.
    /// Safe to send twice. `None`: it was not for work that is done once.
    pub(crate) fn finishing(&self) -> Option<Call> {
        let call = once::finishing(&self.lock, (&self.token, &self.owner), self.period_millis?);
        Some(call.confirmed_by(self.replicas))
    }

    /// Takes back a writer's intent, when it stops waiting.
    pub(crate) fn quitting(&self) -> Option<Call> {
        let is_writer = self.kind == LockKind::Write;
        is_writer.then(|| read_write::releasing(self, Side::Intent))
    }

    /// Lets go of it in a transaction that watches the lock, and has found it ours.
    pub(crate) fn giving_back_while_watched(&self) -> Cmd {
        match self.kind {
            LockKind::Mutex => command(&["DEL", self.lock.key()]),
            // Whole: a transaction with a script that the server does not know is executed all the
            // same.
            _ => self.giving_back().whole(),
        }
    }

    /// The reads that show that this hold stands, and the judgement on their answers.
    pub(crate) fn proof(&self) -> Proof<'_> {
        let key = self.lock.key();
        let mut reads = Pipeline::new();
        match self.kind {
            LockKind::Mutex => return Proof::by_value(&self.lock, &self.token),
            LockKind::Reentrant => reads
                .hget(key, self.owner.as_str())
                .hget(self.lock.companion(), format!("t:{}", self.token)),
            LockKind::Read => reads.hget(key, Side::Reader.field(&self.token)),
            LockKind::Write => reads.hget(key, Side::Writer.field(&self.token)),
        };
        reads.cmd("TIME");
        Proof {
            lock: &self.lock,
            reads,
            is_ours: Box::new(|values| match values {
                [count, end, time] => number(count) > Some(0) && is_ahead(end, time),
                [end, time] => is_ahead(end, time),
                _ => false,
            }),
        }
    }
}

/// True for an end in milliseconds that is ahead of the answer to `TIME`.
fn is_ahead(end: &Value, time: &Value) -> bool {
    let time: Option<(u64, u64)> = from_redis_value_ref(time).ok();
    (number(end).zip(time))
        .is_some_and(|(end, (seconds, micros))| end > seconds * 1_000 + micros / 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{name::Owner, token::Token};

    fn digits(number: u64) -> Value {
        Value::BulkString(number.to_string().into_bytes())
    }

    #[test]
    fn a_hold_is_proven_by_an_end_that_is_ahead_of_the_servers_clock() {
        let token = Token::random();
        let time = Value::Array(vec![digits(7), digits(1_999)]);
        for (end, is_ahead) in [(7_002, true), (7_001, false), (6_999, false)] {
            for hold in [Hold::read("a", &token), Hold::write("a", &token)] {
                let values = [digits(end), time.clone()];
                assert_eq!((hold.unwrap().proof().is_ours)(&values), is_ahead, "{end}");
            }
            let hold = Hold::reentrant("a", &Owner::current_thread(), &token).unwrap();
            let is_ours = |count| (hold.proof().is_ours)(&[count, digits(end), time.clone()]);
            assert_eq!(is_ours(digits(1)), is_ahead);
            assert!(!is_ours(digits(0)) && !is_ours(Value::Nil));
        }
        let hold = Hold::read("a", &token).unwrap();
        assert!(!(hold.proof().is_ours)(&[Value::Nil, time]));
        assert!(!(hold.proof().is_ours)(&[digits(7_002), Value::Okay]));
    }
}
