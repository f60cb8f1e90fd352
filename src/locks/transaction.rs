//! Reading, deciding and writing while a lock is held.

use redis::Pipeline;

use super::lease::Lease;
use crate::{
    error::Result,
    recipes::{
        simple::PATIENCE,
        transaction::{Transaction, WatchedConnection},
    },
};

impl Lease {
    /// Reads, decides and writes in one transaction, only while the lock is held: in the shape of
    /// redis-rs's [`transaction`](redis::transaction). Does not release the lock.
    ///
    /// Watches the lock and the keys, and calls `attempt` with the connection and a pipeline. It
    /// reads on the connection, puts what is to be written into the pipeline, and returns; it does
    /// not send the pipeline. Then the pipeline is executed, in one `EXEC`, if neither the lock nor
    /// any of the keys has changed since it was read; an empty one is not sent. If a key has
    /// changed, or the lock was renewed, all of it starts again, at once, for up to 5 s:
    /// **`attempt` may be called several times**, and should do nothing but read and decide.
    ///
    /// Name in `keys` whatever the decision rests on and others may change without this lock. What
    /// only holders of this lock change need not be named.
    ///
    /// An error of `attempt` ends the transaction, nothing is written, and this lease goes on: also
    /// where the error is the loss of another lease. `?` takes what redis-rs says; for an error of
    /// your own there is [`Error::other`](crate::Error::other). A refusal that is no error is
    /// better a value. Whatever happens, panics included, nothing is left watched.
    ///
    /// **Two round trips if it reads once**: `WATCH` goes out with the first read. Several values
    /// are read at once by `MGET`, several fields of a hash by `HMGET`; each further read is a
    /// round trip more. A key that may be missing is read as an `Option`.
    ///
    /// `attempt` must not go on in the child of a fork: parent and child would have one connection.
    ///
    /// It needs a real server: on the stand-in of the feature `testing`, which has nothing to read,
    /// it is an [`Error::Invalid`](crate::Error::Invalid), and `attempt` is not called. That
    /// records [commits](Self::commit).
    ///
    /// # Errors
    /// - [`Error::Lost`](crate::Error::Lost): the lock is not ours any more. Nothing was written.
    /// - [`Error::Contended`](crate::Error::Contended): the keys changed again and again, for 5 s.
    ///   Nothing was written.
    /// - [`Error::Unknown`](crate::Error::Unknown): no answer came to the `EXEC`. Either all was
    ///   written or nothing.
    /// - [`Error::Partial`](crate::Error::Partial): a command was refused inside `EXEC`, the others
    ///   were executed.
    /// - [`Error::Invalid`](crate::Error::Invalid): a command that would end the transaction, on
    ///   the connection or in the pipeline.
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
    /// let lease = locks.lock("order:4711").acquire(Duration::from_secs(5))?;
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
        mut attempt: impl FnMut(&mut WatchedConnection<'_>, &mut Pipeline) -> Result<T>,
    ) -> Result<T> {
        let name = "Lease::transaction";
        self.check_here(name)?;
        let proof = self.hold().proof();
        let transaction = Transaction::new(self.operation(name), keys, PATIENCE).while_held(proof);
        let attempted = self.while_out(name, || {
            self.by_the_pool(|conn| transaction.run(conn, &mut attempt))
        })?;
        attempted.map(|done| done.value)
    }
}
