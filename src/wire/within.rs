//! Bounds the whole of some reading by time, however slowly the bytes come.
//!
//! A socket's time-out bounds each read, and redis-rs reads until a reply is whole. A peer that
//! sends a byte now and then keeps a thread in redis-rs for as long as it likes, and nothing else
//! can reach that socket to close it. So the reading is done on a thread of its own. When the time
//! is over, the caller goes on without that thread, which closes the connection and ends with the
//! peer's reply.
//!
//! - [`within`] is for connections that are being opened, and for questions of the library's own
//!   threads.
//! - [`bounding`] is for calls on a connection of the caller. The other files of this room read by
//!   [`alone`], which leaves a closed connection in the caller's hands when the time is over. A
//!   thread of its own takes 40 microseconds, as long as half a round trip to a near server. So a
//!   connection that has just answered quickly is read without one: see [`AT_ONCE`].
//!
//! A call [notes](note) its error, for the pool that lent the connection.
//!
//! Locks: `LEFT` and the [`Spares`] of a pool, for a moment each.

use std::{
    any::Any,
    cell::{Cell, RefCell},
    fmt, io, mem, ptr,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use redis::{
    Connection, ConnectionLike, ErrorKind, RedisError, RedisResult, ServerErrorKind, Value,
};

use super::{closed::closed_connection, finished::Finished};
use crate::{error::timed_out, time};

/// The socket's own time-out ends a wait for a silent peer first, by this much: its error says
/// more, and the connection comes back.
const GRACE: Duration = Duration::from_millis(50);
/// At most this many threads are left behind with one peer. After that it is asked nothing until
/// one of them ends.
const MOST_LEFT: usize = 8;
/// A peer that last replied within this time is trusted, for as long again, not to send its next
/// reply byte by byte.
const AT_ONCE: Duration = Duration::from_millis(5);
/// The longest wait for the spare connections, which other threads use for a moment each.
const MOMENT: Duration = Duration::from_millis(10);

/// For each thread that was left behind, its peer, and a weak reference to its work, which the
/// thread drops when it ends.
static LEFT: Mutex<Vec<(String, Weak<dyn Any + Send + Sync>)>> = Mutex::new(Vec::new());

/// Closed connections: while a thread reads, the caller has one of them in place of its own. There
/// are as many as threads have read at once, and they end with the pool that they belong to.
#[derive(Clone, Default)]
pub(crate) struct Spares(Arc<Mutex<Vec<Connection>>>);

impl Spares {
    fn take(&self) -> RedisResult<Connection> {
        let kept = self.0.try_lock_for(MOMENT);
        let spare = kept.and_then(|mut kept| kept.pop());
        spare.map_or_else(closed_connection, Ok)
    }

    fn put(&self, closed: Connection) {
        if let Some(mut kept) = self.0.try_lock_for(MOMENT) {
            kept.push(closed);
        }
    }
}

impl fmt::Debug for Spares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spares").finish_non_exhaustive()
    }
}

/// The limit for replies on one connection.
#[derive(Clone)]
pub(crate) struct Bounds {
    pub(crate) limit: Duration,
    peer: Arc<str>,
    spares: Spares,
    /// The moment until which the peer is trusted.
    trusted_until: Option<Instant>,
}

impl Bounds {
    pub(crate) fn new(peer: &str, limit: Duration, spares: Spares) -> Self {
        Self {
            limit,
            peer: peer.into(),
            spares,
            trusted_until: None,
        }
    }
}

thread_local! {
    /// The bounds of this thread, with the address of their connection.
    static BOUNDS: RefCell<Option<(usize, Bounds)>> = const { RefCell::new(None) };
}

/// Sets the bounds back when it is dropped.
struct Restored(Option<(usize, Bounds)>);

impl Drop for Restored {
    fn drop(&mut self) {
        let _ = BOUNDS.try_with(|bounds| bounds.replace(self.0.take()));
    }
}

/// Runs a closure, during which each exchange on this connection ends within these bounds, unless
/// the peer is trusted.
pub(crate) fn bounding<T>(
    conn: &mut Connection,
    bounds: &mut Bounds,
    run: impl FnOnce(&mut Connection) -> T,
) -> T {
    let begun = time::now();
    let is_trusted = bounds.trusted_until.is_some_and(|moment| begun < moment);
    let now = (!is_trusted).then(|| (ptr::from_ref(conn).addr(), bounds.clone()));
    // Fails in a thread that is ending.
    let before = BOUNDS.try_with(|bounds| bounds.replace(now));
    let restored = before.ok().map(Restored);
    let done = run(conn);
    drop(restored);
    let ended = time::now();
    let was_at_once = ended.duration_since(begun) < AT_ONCE;
    bounds.trusted_until = was_at_once.then(|| ended + AT_ONCE);
    done
}

/// The bounds of this connection, if it has any.
pub(super) fn bounds_of(conn: &Connection) -> Option<Bounds> {
    let at = ptr::from_ref(conn).addr();
    let bounds = BOUNDS.try_with(|bounds| {
        let bounds = bounds.borrow();
        let (_, bounds) = bounds.as_ref().filter(|(bounded, _)| *bounded == at)?;
        Some(bounds.clone())
    });
    bounds.ok().flatten()
}

/// Runs work on the connection within the bounds. When the time is over, a closed connection is in
/// its place.
///
/// # Errors
/// A time-out.
pub(super) fn alone<T: Send + 'static>(
    conn: &mut Connection,
    bounds: &Bounds,
    work: impl FnOnce(&mut Connection) -> T + Send + 'static,
) -> RedisResult<T> {
    let Ok(closed) = bounds.spares.take() else {
        return Ok(work(conn));
    };
    let mut connection = mem::replace(conn, closed);
    let (connection, done) = within(&bounds.peer, bounds.limit, move || {
        let done = work(&mut connection);
        Ok((connection, done))
    })?;
    bounds.spares.put(mem::replace(conn, connection));
    Ok(done)
}

/// Sends one packed command and returns its reply.
///
/// # Errors
/// A failure of the connection, or an error reply. Both are noted.
pub(super) fn request(conn: &mut Connection, packed: &[u8]) -> RedisResult<Value> {
    let replied = match bounds_of(conn) {
        None => conn.req_packed_command(packed),
        Some(bounds) => {
            let packed = packed.to_vec();
            alone(conn, &bounds, move |conn| conn.req_packed_command(&packed)).unwrap_or_else(Err)
        }
    };
    replied.and_then(Value::extract_error).inspect_err(note)
}

/// Runs work that reads from this peer, and returns its result within the limit.
///
/// # Errors
/// The work's, or a time-out when the limit is over.
pub(crate) fn within<T: Send + 'static>(
    peer: &str,
    limit: Duration,
    work: impl FnOnce() -> RedisResult<T> + Send + 'static,
) -> RedisResult<T> {
    if left_with(peer) >= MOST_LEFT {
        return Err(timed_out());
    }
    let work = Arc::new(Mutex::new(Some(work)));
    let running: Weak<dyn Any + Send + Sync> = Arc::<Mutex<_>>::downgrade(&work);
    let (done, result) = mpsc::sync_channel(1);
    let thread = thread::Builder::new().name(String::from("leasehold reads"));
    let theirs = Arc::clone(&work);
    let spawned = thread.spawn(move || {
        let taken = theirs.lock().take();
        let _ = done.send(taken.map(|work| work()));
    });
    if spawned.is_err() {
        // Without a further thread only each read is bounded.
        let taken = work.lock().take();
        return taken.map_or_else(|| Err(timed_out()), |work| work());
    }
    drop(work);
    let replied = result.recv_timeout(limit.saturating_add(GRACE));
    // If the whole process was stopped meanwhile, the reply may have arrived unread: the thread
    // gets a moment to read it.
    match replied.or_else(|_| result.recv_timeout(GRACE)) {
        Ok(result) => result.unwrap_or_else(|| Err(timed_out())),
        Err(mpsc::RecvTimeoutError::Timeout) => {
            // Never waits: in a forked child the mutex may stay locked forever.
            if let Some(mut left) = LEFT.try_lock() {
                left.push((peer.to_owned(), running));
            }
            Err(timed_out())
        }
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            Err(io::Error::other("the client library panicked").into())
        }
    }
}

fn left_with(peer: &str) -> usize {
    let Some(mut left) = LEFT.try_lock() else {
        return 0;
    };
    left.retain(|(_, running)| running.strong_count() > 0);
    left.iter().filter(|(other, _)| other == peer).count()
}

/// The number of the latest note of any thread.
static NOTES: AtomicU64 = AtomicU64::new(0);
thread_local! {
    /// The latest note of this thread, and its number.
    static NOTED: Cell<Option<(u64, Finished)>> = const { Cell::new(None) };
}

/// Notes an error on a connection that belongs to the caller. A time-out or a signal alone does not
/// finish the connection: owed replies are counted and skipped.
pub(crate) fn note(error: &RedisError) {
    let finished = match Finished::by_error(error) {
        Some(Finished::Broken) if !error.is_connection_dropped() => return,
        None if error.kind() == ErrorKind::Server(ServerErrorKind::Moved) => Finished::Moved,
        None => return,
        Some(finished) => finished,
    };
    let number = NOTES.fetch_add(1, Ordering::Relaxed) + 1;
    NOTED.set(Some((number, finished)));
}

/// The moment at which a connection was lent.
///
/// The plain functions get a bare `redis::Connection` and cannot notify the pool that lent it. So
/// they [note] their errors, and the pool reads the latest note of the thread that returns the
/// connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lending(u64);

impl Lending {
    pub(crate) fn now() -> Self {
        Self(NOTES.load(Ordering::Relaxed))
    }

    /// The latest note of this thread, if it was made since the loan.
    pub(crate) fn noted_since(self) -> Option<Finished> {
        let (number, finished) = NOTED.get()?;
        (number > self.0).then_some(finished)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(line: &str) -> RedisError {
        let answer = redis::parse_redis_value(line.as_bytes()).unwrap();
        answer.extract_error().unwrap_err()
    }

    fn unreadable() -> RedisError {
        redis::parse_redis_value(b"-caf\xe9\r\n").unwrap_err()
    }

    fn silence() -> RedisError {
        io::Error::from(io::ErrorKind::WouldBlock).into()
    }

    fn reset() -> RedisError {
        io::Error::from(io::ErrorKind::ConnectionReset).into()
    }

    #[test]
    fn a_note_applies_to_its_thread_and_to_earlier_loans() {
        let all = [
            (error("-READONLY no\r\n"), Finished::Replica),
            (error("-MOVED 1 a:2\r\n"), Finished::Moved),
            (unreadable(), Finished::Unreadable),
            (reset(), Finished::Broken),
        ];
        let lending = Lending::now();
        thread::scope(|scope| {
            scope.spawn(|| all.iter().for_each(|(error, _)| note(error)));
        });
        assert_eq!(lending.noted_since(), None);
        for harmless in [error("-ERR no\r\n"), silence()] {
            note(&harmless);
            assert_eq!(lending.noted_since(), None);
        }
        for (error, finished) in &all {
            let lending = Lending::now();
            note(error);
            assert_eq!(lending.noted_since(), Some(*finished));
            assert_eq!(Lending::now().noted_since(), None);
        }
    }
}
