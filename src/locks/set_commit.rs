//! `Leases`' reads and writes while all locks of a set are held: see
//! [`transacting`](super::transacting).

use std::time::Duration;

use redis::{FromRedisValue, Pipeline};

use super::{
    set::Leases,
    transacting::{Committed, WatchedLocks, commit_and_release},
};
use crate::{
    error::{Error, Result},
    recipes::WatchedConnection,
};

impl Leases {
    /// Writes the pipeline that `build` fills, in one transaction, only while all locks are held.
    ///
    /// Like [`Lease::commit`](crate::Lease::commit). The server watches all locks. Two round trips.
    ///
    /// # Errors
    /// - [`Error::Lost`]: names the lock that was lost. Nothing was written.
    /// - [`Error::Invalid`]: the locks are not from one [`Locks`](crate::Locks) or, on a cluster,
    ///   the locks and keys are in different slots. Give their names a common tag, as in
    ///   `{bank}:4711` and `{bank}:4712`. Nothing was written.
    /// - All others as [`Lease::commit`](crate::Lease::commit).
    ///
    /// # Examples
    /// ```no_run
    /// # use std::time::Duration;
    /// # let locks = leasehold::Locks::connect("redis://127.0.0.1/")?;
    /// let leases = locks.all_of(["account:1", "account:2"]).acquire(Duration::from_secs(30))?;
    /// leases.commit(|pipe| {
    ///     pipe.decr("balance:1", 5).incr("balance:2", 5);
    /// })?;
    /// leases.release()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn commit(&self, build: impl FnOnce(&mut Pipeline)) -> Result<()> {
        let watched = self.watched("Leases::commit");
        watched.commit(build).map(drop).map_err(in_one_slot)
    }

    /// Like [`commit`](Self::commit), and returns the results.
    ///
    /// # Errors
    /// - [`Error::Reply`]: the results do not have the type `T`. Everything was written.
    /// - All others as [`commit`](Self::commit).
    pub fn commit_returning<T: FromRedisValue>(
        &self,
        build: impl FnOnce(&mut Pipeline),
    ) -> Result<T> {
        let watched = self.watched("Leases::commit_returning");
        let (commit, results) = watched.commit(build).map_err(in_one_slot)?;
        commit.answer(results)
    }

    /// Like [`commit`](Self::commit), at most once for this operation id.
    ///
    /// The mark is that of the lock with the smallest key: a repeat must be under a set with the
    /// same first lock, or under that lock alone.
    ///
    /// # Errors
    /// As [`Lease::commit_once`](crate::Lease::commit_once) and [`commit`](Self::commit).
    pub fn commit_once(
        &self,
        operation_id: &str,
        remember: Duration,
        build: impl FnOnce(&mut Pipeline),
    ) -> Result<Committed> {
        let watched = self.watched("Leases::commit_once");
        let committed = watched.commit_once(operation_id, remember, build);
        committed.map_err(in_one_slot)
    }

    /// Like [`commit`](Self::commit), and releases all locks in the same transaction, as
    /// [`Lease::commit_and_release`](crate::Lease::commit_and_release). Two round trips in all.
    ///
    /// The holds end in any case. If nothing was written, the locks are released as by
    /// [`release`](Self::release); if no reply came, in the background.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    pub fn commit_and_release(self, build: impl FnOnce(&mut Pipeline)) -> Result<()> {
        let done = commit_and_release(self, "Leases::commit_and_release", build);
        done.map_err(in_one_slot)
    }

    /// Reads, decides and writes in one transaction, only while all locks are held.
    ///
    /// Like [`Lease::transaction`](crate::Lease::transaction). The server watches all locks, and
    /// the keys.
    ///
    /// # Errors
    /// - [`Error::Lost`], [`Error::Invalid`]: as [`commit`](Self::commit).
    /// - All others as [`Lease::transaction`](crate::Lease::transaction).
    ///
    /// # Examples
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use leasehold::{Locks, redis::Commands};
    ///
    /// let locks = Locks::connect("redis://127.0.0.1/")?;
    /// let leases = locks.all_of(["account:1", "account:2"]).acquire(Duration::from_secs(30))?;
    /// let moved = leases.transaction(&[], |conn, pipe| {
    ///     let funds: Option<i64> = conn.get("balance:1")?;
    ///     if funds.unwrap_or(0) < 5 {
    ///         return Ok(false); // nothing is written
    ///     }
    ///     pipe.decr("balance:1", 5).incr("balance:2", 5);
    ///     Ok(true)
    /// })?;
    /// leases.release()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn transaction<T>(
        &self,
        keys: &[&str],
        attempt: impl FnMut(&mut WatchedConnection<'_>, &mut Pipeline) -> Result<T>,
    ) -> Result<T> {
        let attempted = self
            .watched("Leases::transaction")
            .transaction(keys, attempt);
        attempted.map_err(in_one_slot)?
    }

    fn watched(&self, name: &'static str) -> WatchedLocks<'_> {
        WatchedLocks::of(&self.leases, name)
    }
}

/// Explains why a transaction fails on a cluster: its keys are in different slots.
fn in_one_slot(error: Error) -> Error {
    match error {
        Error::Redis { context, source } if source.code() == Some("CROSSSLOT") => Error::Invalid {
            context,
            argument: "locks",
            reason: "a transaction on a cluster needs all locks and keys in one slot, by a {tag} \
                     in common"
                .to_owned(),
        },
        error => error,
    }
}
