//! When a connection is finished: the one rule for the pool's connections, the waiters' and the
//! watchdog's.
//!
//! Each of them asks here and nowhere else, and then closes the connection. A reason more is a line
//! more in [`Finished::by_error`]; what follows from it for other connections is decided by their
//! owner.

use std::{
    cell::Cell,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use redis::{ErrorKind, RedisError, ServerErrorKind, Value};

/// Why a connection must not be used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finished {
    /// The socket failed, or no answer came in time, so that one is still owed.
    Broken,
    /// What came is no answer. redis-rs keeps the bytes, and finds them again instead of every
    /// later answer.
    Unreadable,
    /// The server is a replica by now: its address may lead to the new master.
    Replica,
    /// It was lent for as long as a wait for an answer takes, so that one may be owed.
    Overdue,
}

impl Finished {
    /// What an error says of the connection that it came on.
    pub(crate) fn by_error(error: &RedisError) -> Option<Self> {
        match error.kind() {
            ErrorKind::Io => Some(Self::Broken),
            ErrorKind::Parse => Some(Self::Unreadable),
            _ if is_of_a_replica(error) => Some(Self::Replica),
            _ => None,
        }
    }

    /// What an answer says of the connection that it came on.
    pub(crate) fn by_answer(answer: &Value) -> Option<Self> {
        match answer {
            Value::ServerError(error) => Self::by_error(&error.clone().into()),
            _ => None,
        }
    }

    /// What the time says for which a connection was lent. A sixteenth less than the time-out is
    /// enough, in case the socket's clock is the faster one.
    pub(crate) fn by_loan(lent: Duration, io_timeout: Duration) -> Option<Self> {
        (lent >= io_timeout / 16 * 15).then_some(Self::Overdue)
    }
}

/// Before Redis 7 a script's error hides the code in its text.
fn is_of_a_replica(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly)
        || error
            .detail()
            .is_some_and(|detail| detail.contains("-READONLY "))
}

/// Numbers the answers by which this process has learnt that a server is a replica, that a key has
/// moved, or that it cannot read what comes.
static SEEN: AtomicU64 = AtomicU64::new(0);
thread_local! {
    /// The number of the last such answer of a replica on this thread.
    static REPLICA: Cell<u64> = const { Cell::new(0) };
    /// The number of the last such answer, on this thread, of a node of a cluster that has not got
    /// the key.
    static MOVED: Cell<u64> = const { Cell::new(0) };
    /// The number of the last answer that this thread could not read.
    static UNREADABLE: Cell<u64> = const { Cell::new(0) };
}

/// A moment in the order of such answers.
///
/// The plain functions have a bare `redis::Connection` in hand and cannot tell the pool that lent
/// it. So they note what they met, and the pool asks, when a connection comes back, what its
/// borrower has met meanwhile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark(u64);

impl Mark {
    pub(crate) fn now() -> Self {
        Self(SEEN.load(Ordering::Relaxed))
    }

    /// Whether this thread has met a replica since.
    pub(crate) fn has_met_a_replica(self) -> bool {
        REPLICA.with(Cell::get) > self.0
    }

    /// Whether this thread has been told since that another node of a cluster has the key.
    pub(crate) fn has_met_a_move(self) -> bool {
        MOVED.with(Cell::get) > self.0
    }

    /// Whether this thread has met an answer since that it could not read.
    pub(crate) fn has_met_what_is_no_answer(self) -> bool {
        UNREADABLE.with(Cell::get) > self.0
    }
}

/// Notes what a function of ours has met on a connection that it does not own.
pub(super) fn note(error: &RedisError) {
    let kind = match Finished::by_error(error) {
        Some(Finished::Replica) => &REPLICA,
        Some(Finished::Unreadable) => &UNREADABLE,
        _ if error.kind() == ErrorKind::Server(ServerErrorKind::Moved) => &MOVED,
        _ => return,
    };
    kind.with(|last| last.set(SEEN.fetch_add(1, Ordering::Relaxed) + 1));
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

    fn by(line: &str) -> Option<Finished> {
        Finished::by_error(&error(line))
    }

    #[test]
    fn a_refusal_finishes_no_connection_but_that_of_a_replica_does() {
        assert_eq!(by("-ERR no\r\n"), None);
        assert_eq!(by("-NOPERM no\r\n"), None);
        assert_eq!(by("-LOADING not yet\r\n"), None);
        assert_eq!(by("-MOVED 1 a:2\r\n"), None);
        assert_eq!(by("-READONLY You can't write\r\n"), Some(Finished::Replica));
        let in_a_script =
            "-ERR Error running script: @user_script: 1: -READONLY You can't write\r\n";
        assert_eq!(by(in_a_script), Some(Finished::Replica));
    }

    #[test]
    fn silence_and_unreadable_bytes_finish_a_connection() {
        let silence = std::io::Error::from(std::io::ErrorKind::WouldBlock);
        assert_eq!(Finished::by_error(&silence.into()), Some(Finished::Broken));
        assert_eq!(
            Finished::by_error(&unreadable()),
            Some(Finished::Unreadable)
        );
    }

    #[test]
    fn what_another_thread_has_met_is_none_of_ours() {
        let all = [
            error("-READONLY no\r\n"),
            error("-MOVED 1 a:2\r\n"),
            unreadable(),
        ];
        let met = |mark: Mark| {
            [
                mark.has_met_a_replica(),
                mark.has_met_a_move(),
                mark.has_met_what_is_no_answer(),
            ]
        };
        let mark = Mark::now();
        std::thread::scope(|scope| {
            scope.spawn(|| all.each_ref().map(note));
        });
        assert_eq!(met(mark), [false; 3]);
        note(&error("-ERR no\r\n"));
        assert_eq!(met(mark), [false; 3]);
        for (kind, error) in all.iter().enumerate() {
            let mark = Mark::now();
            note(error);
            assert_eq!(met(mark), [0, 1, 2].map(|other| other == kind));
            assert_eq!(met(Mark::now()), [false; 3]);
        }
    }
}
