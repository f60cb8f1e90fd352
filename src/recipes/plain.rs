//! The part of the plain functions that is the same for all kinds.

use std::time::Duration;

use redis::Connection;

use super::hold::{Attempt, Hold};
use crate::{
    error::{Error, Operation, Result},
    time::lease_millis,
    token::FencingToken,
    wire::{BusyReply, Replicas, until_granted},
};

/// The fencing token and the count of an acquired lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    fencing_token: FencingToken,
    count: u64,
}

impl Grant {
    /// Returns the fencing token, to pass to the resource that the lock protects. For a reentrant
    /// lock it stays the same from the first acquisition of a hold to its last release.
    #[must_use]
    pub fn fencing_token(&self) -> FencingToken {
        self.fencing_token
    }

    /// Returns the number of times that the owner holds the lock now; always 1 if the lock is not
    /// reentrant.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }
}

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
    /// # Examples
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
        Operation::new("confirm_by_replicas", self.lock.text()).run(|operation| {
            let wanted = Replicas::wanted(replicas, wait)?;
            let unanswered = |error| operation.unanswered(Some(&self.token), error);
            let confirmed = wanted.confirm(conn).map_err(unanswered);
            if let Err(Error::TooFewReplicas { .. } | Error::Redis { .. }) = confirmed {
                self.releasing().counts(conn).map_err(unanswered)?;
            }
            confirmed
        })
    }

    /// Acquires the lock for a plain function: repeats the call until the lock is granted or the
    /// deadline has passed, at least once. The fencing token of a hold that gets none is 0. The
    /// lease does not count if the hold ends at a set moment.
    pub(super) fn acquire(
        &self,
        conn: &mut Connection,
        operation: Operation<'_>,
        timeout: Duration,
        lease: Duration,
    ) -> Result<Option<Grant>> {
        let lease_millis = match self.ends_at {
            Some(_) => 0,
            None => lease_millis("lease", lease)?,
        };
        let call = self.acquiring(lease_millis, !timeout.is_zero(), BusyReply::No);
        until_granted(operation, &self.token, timeout, || {
            Ok(match self.read_attempt(&call.send(conn)?)? {
                Attempt::Granted { fence, number, .. } => Some(Grant {
                    fencing_token: fence.unwrap_or(FencingToken::new(0)),
                    count: number.max(1),
                }),
                Attempt::Busy(_) | Attempt::AlreadyRun(_) => None,
            })
        })
    }

    /// Renews the lease for a plain function. Returns false if the lock is not ours.
    pub(super) fn renew(
        &self,
        conn: &mut Connection,
        operation: Operation<'_>,
        lease: Duration,
    ) -> Result<bool> {
        let call = self.renewal(lease_millis("lease", lease)?);
        call.asks_for(operation, conn)
    }
}
