//! Builds the call for each operation on a hold, by the kind of the lock.

use std::time::Duration;

use redis::{Cmd, Connection, Pipeline, Value, from_redis_value_ref};

use super::{
    hold::{Hold, LockKind},
    mutex, number, once,
    read_write::{self, Side},
    reentrant::{self, Levels},
    semaphore,
    transaction::Proof,
};
use crate::{
    error::{Error, Operation, Result},
    wire::{BusyReply, Call, Replicas, command},
};

impl Hold {
    /// Waits until this many replicas have the lock that was just acquired **on this connection**.
    /// Releases the lock if fewer have it.
    ///
    /// `Ok(())`: at one moment the master and this many replicas had the lock in memory. See
    /// [`Options::replicas`](crate::Options::replicas) for what that guarantees. It covers writes
    /// of this connection only. Use it after an acquire: a renewal by a plain function or a
    /// [`Watchdog`](crate::Watchdog) does not wait for replicas, so a failover can still undo the
    /// renewal, and the lock then ends with the confirmed lease.
    ///
    /// Takes one round trip that lasts until the replicas reply, at most `wait`, and one more to
    /// release the lock. `wait` counts against the lease, and must be shorter than the read
    /// time-out of the connection.
    ///
    /// # Errors
    /// - [`Error::TooFewReplicas`]: fewer replicas have it. The lock was released.
    /// - [`Error::Redis`]: the server refused to wait. The lock was released, unless the server
    ///   refused that too.
    /// - [`Error::Unknown`]: no reply came, so the lock may be held by [`Error::token`] until the
    ///   lease ends. Release it on another connection.
    /// - [`Error::Invalid`]: `replicas` is not between 1 and 100, or `wait` is not between 1 ms and
    ///   24 h. Nothing was sent, and the lock is still held.
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
    ///     let hold = Hold::mutex("report", &token)?;
    ///     hold.confirm_by_replicas(&mut conn, 1, Duration::from_millis(100))?;
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

    /// Attempts to acquire the lock. Safe to send twice. A waiting writer keeps new readers out.
    pub(crate) fn acquiring(&self, lease_millis: u64, waits: bool, busy_reply: BusyReply) -> Call {
        let call = match self.kind {
            LockKind::Mutex => mutex::acquiring(self, lease_millis, busy_reply),
            LockKind::Reentrant => reentrant::acquiring(self, lease_millis, busy_reply),
            LockKind::Read => read_write::acquiring_read(self, lease_millis, busy_reply),
            LockKind::Write => read_write::acquiring_write(self, lease_millis, waits, busy_reply),
            LockKind::Semaphore => semaphore::acquiring(self, lease_millis, busy_reply),
        };
        call.confirmed_by(self.replicas)
    }

    /// Renews the lease: returns 1 if the lock is still ours, 0 if not.
    pub(crate) fn renewal(&self, lease_millis: u64) -> Call {
        self.prolonging(lease_millis).confirmed_by(self.replicas)
    }

    /// Checks that the lock is ours, by a renewal of 1 ms, which changes nothing.
    pub(crate) fn look(&self) -> Call {
        self.prolonging(1)
    }

    fn prolonging(&self, lease_millis: u64) -> Call {
        match self.kind {
            LockKind::Mutex => mutex::renewing(self, lease_millis),
            LockKind::Reentrant => reentrant::renewing(self, lease_millis, Levels::Counted),
            LockKind::Read => read_write::renewing(self, Side::Reader, lease_millis),
            LockKind::Write => read_write::renewing(self, Side::Writer, lease_millis),
            LockKind::Semaphore => semaphore::renewing(self, lease_millis),
        }
    }

    /// Releases the hold: returns more than 0 if the lock was ours.
    pub(crate) fn giving_back(&self) -> Call {
        match self.kind {
            LockKind::Mutex => mutex::releasing(self.lock.key(), &self.token),
            LockKind::Reentrant => reentrant::releasing(self, Levels::Counted),
            LockKind::Read => read_write::releasing(self, Side::Reader),
            LockKind::Write => read_write::releasing(self, Side::Writer),
            LockKind::Semaphore => semaphore::releasing(self),
        }
    }

    /// Marks the run as done and releases the lock: returns 1 if the lock was ours. Safe to send
    /// twice. `None`: the hold is not for work that runs once per period.
    pub(crate) fn finishing(&self) -> Option<Call> {
        self.period_millis?;
        let call = once::finishing(&self.lock, (&self.token, &self.owner));
        Some(call.confirmed_by(self.replicas))
    }

    /// Removes a writer's intent when it stops waiting.
    pub(crate) fn taking_back_intent(&self) -> Option<Call> {
        let is_writer = self.kind == LockKind::Write;
        is_writer.then(|| read_write::releasing(self, Side::Intent))
    }

    /// Returns the release for a transaction that watches the lock and has found it ours.
    pub(crate) fn giving_back_while_watched(&self) -> Cmd {
        match self.kind {
            LockKind::Mutex => command(&["DEL", self.lock.key()]),
            // The whole script, not `EVALSHA`: if unknown, that would fail inside `EXEC` after
            // other commands were executed.
            _ => self.giving_back().whole(),
        }
    }

    /// Returns the reads that prove that this hold still exists, and the check of their replies.
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
            LockKind::Semaphore => reads.zscore(key, self.token.as_str()),
        };
        reads.cmd("TIME");
        let is_ours = |values: &[Value]| match values {
            [count, end, time] => number(count) > Some(0) && is_ahead(end, time),
            [end, time] => is_ahead(end, time),
            _ => false,
        };
        Proof::new(&self.lock, reads, Box::new(is_ours))
    }
}

/// Returns true if an end in milliseconds is later than the reply to `TIME`.
fn is_ahead(end: &Value, time: &Value) -> bool {
    let time: Option<(u64, u64)> = from_redis_value_ref(time).ok();
    let end = match end {
        // RESP3 sends a score as a number.
        Value::Double(score) => format!("{score:.0}").parse().ok(),
        digits => number(digits),
    };
    end.zip(time)
        .is_some_and(|(end, (seconds, micros))| end > seconds * 1_000 + micros / 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{name::Owner, token::Token};

    fn digits(number: u32) -> Value {
        Value::BulkString(number.to_string().into_bytes())
    }

    #[test]
    fn an_end_ahead_of_the_servers_clock_proves_a_hold() {
        let token = Token::random();
        let time = Value::Array(vec![digits(7), digits(1_999)]);
        for (end, is_ahead) in [(7_002, true), (7_001, false), (6_999, false)] {
            for hold in [Hold::read("a", &token), Hold::write("a", &token)] {
                let values = [digits(end), time.clone()];
                let hold = hold.unwrap();
                let not_ours = hold.proof().not_ours(&values);
                assert_eq!(not_ours.is_none(), is_ahead, "{end}");
            }
            // RESP2, and RESP3.
            for score in [digits(end), Value::Double(f64::from(end))] {
                let hold = Hold::semaphore("a", &token).unwrap();
                let values = [score, time.clone()];
                let not_ours = hold.proof().not_ours(&values);
                assert_eq!(not_ours.is_none(), is_ahead, "{end}");
            }
            let hold = Hold::reentrant("a", &Owner::current_thread(), &token).unwrap();
            let is_ours = |count| {
                let values = [count, digits(end), time.clone()];
                hold.proof().not_ours(&values).is_none()
            };
            assert_eq!(is_ours(digits(1)), is_ahead);
            assert!(!is_ours(digits(0)) && !is_ours(Value::Nil));
        }
        let hold = Hold::read("a", &token).unwrap();
        for values in [[Value::Nil, time], [digits(7_002), Value::Okay]] {
            assert_eq!(hold.proof().not_ours(&values), Some("a"));
        }
    }

    /// Each lock has its own number of reads.
    #[test]
    fn a_proof_of_several_locks_names_the_first_that_is_not_ours() {
        let token = Token::random();
        let owner = Owner::current_thread();
        let holds = [
            Hold::mutex("a", &token).unwrap(),
            Hold::reentrant("b", &owner, &token).unwrap(),
            Hold::read("c", &token).unwrap(),
        ];
        let proof = Proof::of_all(holds.iter().map(Hold::proof));
        let time = Value::Array(vec![digits(7), digits(0)]);
        let ours = [
            Value::BulkString(token.as_str().into()),
            digits(1),
            digits(8_000),
            time.clone(),
            digits(8_000),
            time,
        ];
        assert_eq!(proof.not_ours(&ours), None);
        for (missing, name) in [(0, "a"), (1, "b"), (2, "b"), (3, "b"), (4, "c"), (5, "c")] {
            let mut values = ours.clone();
            values[missing] = Value::Nil;
            assert_eq!(proof.not_ours(&values), Some(name));
            assert_eq!(proof.not_ours(&ours[..missing]), Some(name));
        }
    }
}
