//! `Lease`'s reads and writes while its lock is held: see [`transacting`](super::transacting).

use std::{slice, time::Duration};

use redis::{FromRedisValue, Pipeline};

use super::{
    lease::Lease,
    set::Leases,
    transacting::{Committed, WatchedLocks, commit_and_release},
};
use crate::{error::Result, recipes::WatchedConnection};

impl Lease {
    /// Writes the pipeline that `build` fills, in one transaction, only while the lock is held.
    ///
    /// Does not release the lock. Calls `build` once. If the lock is renewed meanwhile, the
    /// transaction is sent again at once, for up to 5 s. It uses a connection of the lock's pool,
    /// to the server that has the lock. For other resources use the
    /// [fencing token](Self::fencing_token).
    ///
    /// Two round trips. Waits for a connection as [`Pool::get`](crate::Pool::get) does: first
    /// return any connection that your thread has borrowed.
    ///
    /// A commit without a reply may still be executed while the lock is held, never while another
    /// holder has it. To be able to repeat it, use [`commit_once`](Self::commit_once).
    ///
    /// # Errors
    /// - [`Error::Lost`](crate::Error::Lost): the lock was lost. Nothing was written.
    /// - [`Error::Pool`](crate::Error::Pool): no connection. Nothing was written.
    /// - All others as [`commit_while_held`](crate::commit_while_held).
    ///
    /// # Examples
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// let locks = leasehold::Locks::connect("redis://127.0.0.1/")?;
    /// let lease = locks.lock("report:daily").acquire(Duration::from_secs(30))?;
    /// lease.commit(|pipe| {
    ///     pipe.set("report:text", "all is well");
    ///     pipe.incr("report:editions", 1);
    /// })?;
    /// lease.release()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn commit(&self, build: impl FnOnce(&mut Pipeline)) -> Result<()> {
        self.watched("Lease::commit").commit(build).map(drop)
    }

    /// Like [`commit`](Self::commit), and returns the results of the commands.
    ///
    /// `T` is a tuple or a `Vec` with one value for each command, except those marked
    /// [`ignore`](redis::Pipeline::ignore).
    ///
    /// # Errors
    /// - [`Error::Reply`](crate::Error::Reply): the results do not have the type `T`. Everything
    ///   was written.
    /// - All others as [`commit`](Self::commit).
    ///
    /// # Examples
    /// ```no_run
    /// # let locks = leasehold::Locks::connect("redis://127.0.0.1/")?;
    /// # let lease = locks.lock("report:daily").acquire(std::time::Duration::from_secs(30))?;
    /// let (editions,): (u64,) = lease.commit_returning(|pipe| {
    ///     pipe.set("report:text", "all is well").ignore();
    ///     pipe.incr("report:editions", 1);
    /// })?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn commit_returning<T: FromRedisValue>(
        &self,
        build: impl FnOnce(&mut Pipeline),
    ) -> Result<T> {
        let watched = self.watched("Lease::commit_returning");
        let (commit, results) = watched.commit(build)?;
        commit.answer(results)
    }

    /// Like [`commit`](Self::commit), at most once for this operation id.
    ///
    /// A commit without a reply can be repeated, under this lease or another one of the same lock.
    /// As long as the server has the mark of the commit, a repeat writes nothing.
    ///
    /// The transaction also writes that mark: a key that expires after `remember`, 1 ms to 24 h. A
    /// later call with the same id finds the mark and writes nothing. Repeat within that time. A
    /// server that loses its data, or evicts keys (`maxmemory-policy` other than `noeviction`), may
    /// lose the mark and keep the writes: then a repeat writes again.
    ///
    /// **The id must name the run**, as `2026-11-27/item:4711` does. A job that uses `item:4711`
    /// every night writes nothing on the second night if the mark of the first remains.
    ///
    /// Two round trips.
    ///
    /// # Errors
    /// - [`Error::Invalid`](crate::Error::Invalid): the id is empty or longer than 512 bytes, or
    ///   `remember` is out of range. Nothing was sent.
    /// - [`Error::Unknown`](crate::Error::Unknown): no reply came. Repeat the call.
    /// - [`Error::Partial`](crate::Error::Partial): some of the commands were refused. The others
    ///   were executed, and the mark was written.
    /// - [`Error::WrongKind`](crate::Error::WrongKind): the key of the mark holds something else.
    ///   Nothing was written.
    /// - All others as [`commit`](Self::commit).
    ///
    /// # Examples
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use leasehold::{Committed, Error, Locks};
    ///
    /// # fn night() -> &'static str { "2026-11-27" }
    /// # fn item() -> u64 { 4711 }
    /// let locks = Locks::connect("redis://127.0.0.1/")?;
    /// let lock = locks.lock("items");
    /// let id = format!("{}/item:{}", night(), item()); // 2026-11-27/item:4711
    /// let committed = loop {
    ///     let lease = lock.acquire(Duration::from_secs(30))?;
    ///     let an_hour = Duration::from_secs(3_600);
    ///     match lease.commit_once(&id, an_hour, |pipe| { pipe.incr("items:done", 1); }) {
    ///         Err(error @ Error::Unknown { .. }) => eprintln!("again: {error}"),
    ///         committed => break committed?,
    ///     }
    /// };
    /// if let Committed::Before(run) = committed {
    ///     println!("{:?} has done it {:?} ago", run.by(), run.ago());
    /// }
    /// # Ok::<(), Error>(())
    /// ```
    pub fn commit_once(
        &self,
        operation_id: &str,
        remember: Duration,
        build: impl FnOnce(&mut Pipeline),
    ) -> Result<Committed> {
        let watched = self.watched("Lease::commit_once");
        watched.commit_once(operation_id, remember, build)
    }

    /// Like [`commit`](Self::commit), and releases the lock in the same transaction. Two round
    /// trips in all.
    ///
    /// The hold ends in any case. If the server refused the writes, the lock is released as by
    /// [`release`](Self::release); if no reply came, the watchdog's thread releases it as soon as
    /// the server answers. So a silent server delays the call by one I/O time-out, and by one more
    /// if a renewal was already sent. The lock is not handed over to another thread of this
    /// process.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    ///
    /// # Examples
    /// ```no_run
    /// # let locks = leasehold::Locks::connect("redis://127.0.0.1/")?;
    /// # let lease = locks.lock("report:daily").acquire(std::time::Duration::from_secs(30))?;
    /// lease.commit_and_release(|pipe| {
    ///     pipe.set("report:text", "all is well");
    /// })?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn commit_and_release(self, build: impl FnOnce(&mut Pipeline)) -> Result<()> {
        let alone = Leases { leases: vec![self] };
        commit_and_release(alone, "Lease::commit_and_release", build)
    }

    /// Reads, decides and writes in one transaction, only while the lock is held. Modelled on
    /// redis-rs's [`transaction`](redis::transaction).
    ///
    /// Does not release the lock. Watches the lock and the keys, and calls `attempt` with the
    /// connection and a pipeline. `attempt` reads on the connection, adds its writes to the
    /// pipeline, and returns without sending it. Then one `EXEC` executes the pipeline if neither
    /// the lock nor any of the keys has changed since the watch; an empty pipeline is not sent. If
    /// a key has changed, or the lock was renewed, the transaction is retried at once, for up to 5
    /// s. So **`attempt` may be called several times**, and should only read and decide.
    ///
    /// List in `keys` every key that the decision depends on and that others may change without
    /// this lock. Keys that only holders of this lock change need not be listed.
    ///
    /// An error from `attempt` ends the transaction without writing, and this lease continues, even
    /// if the error is the loss of another lease. `?` converts errors of redis-rs; wrap your own
    /// with [`Error::other`](crate::Error::other). Return a refusal that is not an error as a
    /// value. In every case, including a panic, no key stays watched.
    ///
    /// **Two round trips with one read**: `WATCH` goes out with the first read. Each further read
    /// costs one more, so read several values at once with `MGET`, and several fields of a hash
    /// with `HMGET`. Read a key that may be missing as an `Option`.
    ///
    /// `attempt` must not continue in a forked child: parent and child would share one connection.
    ///
    /// # Errors
    /// - [`Error::Lost`](crate::Error::Lost): the lock was lost. Nothing was written.
    /// - [`Error::Contended`](crate::Error::Contended): the keys kept changing for 5 s. Nothing was
    ///   written.
    /// - [`Error::Unknown`](crate::Error::Unknown): the `EXEC` got no reply. Either everything was
    ///   written or nothing.
    /// - [`Error::Partial`](crate::Error::Partial): a command inside `EXEC` was refused; the others
    ///   were executed.
    /// - [`Error::Invalid`](crate::Error::Invalid): a command on the connection or in the pipeline
    ///   would end the transaction.
    /// - [`Error::Pool`](crate::Error::Pool), [`Error::WrongKind`](crate::Error::WrongKind),
    ///   [`Error::Redis`](crate::Error::Redis): nothing was written.
    ///
    /// # Examples
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use leasehold::{Locks, redis::Commands};
    ///
    /// let locks = Locks::connect("redis://127.0.0.1/")?;
    /// let lease = locks.lock("order:4711").acquire(Duration::from_secs(30))?;
    /// let paid = lease.transaction(&["wallet:7"], |conn, pipe| {
    ///     let funds: Option<i64> = conn.get("wallet:7")?;
    ///     if funds.unwrap_or(0) < 5 {
    ///         return Ok(false); // nothing is written
    ///     }
    ///     pipe.decr("wallet:7", 5).incr("wallet:8", 5);
    ///     Ok(true)
    /// })?;
    /// lease.release()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn transaction<T>(
        &self,
        keys: &[&str],
        attempt: impl FnMut(&mut WatchedConnection<'_>, &mut Pipeline) -> Result<T>,
    ) -> Result<T> {
        self.watched("Lease::transaction")
            .transaction(keys, attempt)?
    }

    fn watched(&self, name: &'static str) -> WatchedLocks<'_> {
        WatchedLocks::of(slice::from_ref(self), name)
    }
}
