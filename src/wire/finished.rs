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
    /// Bytes came that are no answer. redis-rs keeps them, and finds them again instead of every
    /// later answer.
    Unreadable,
    /// The server is a replica by now: its address may lead to the new master.
    Replica,
    /// It was lent for as long as a wait for an answer takes, so that one may be owed.
    Overdue,
    /// A plain function was told that another node of a cluster has the key.
    Moved,
}

impl Finished {
    /// Judges the connection that an error came on.
    pub(crate) fn by_error(error: &RedisError) -> Option<Self> {
        match error.kind() {
            ErrorKind::Io => Some(Self::Broken),
            ErrorKind::Parse => Some(Self::Unreadable),
            _ if is_of_a_replica(error) => Some(Self::Replica),
            _ => None,
        }
    }

    /// Judges the connection that an answer came on.
    pub(crate) fn by_answer(answer: &Value) -> Option<Self> {
        match answer {
            Value::ServerError(error) => Self::by_error(&error.clone().into()),
            _ => None,
        }
    }

    /// Judges a connection by the time for which it was lent. A sixteenth less than the time-out is
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

/// The number of the last note of any thread.
static NOTES: AtomicU64 = AtomicU64::new(0);
thread_local! {
    /// The last note of this thread, and its number.
    static NOTED: Cell<Option<(u64, Finished)>> = const { Cell::new(None) };
}

/// Notes an error that a function of ours has met on a connection that it does not own. A time-out
/// or a signal alone does not finish that connection: what is owed on it is counted, and skipped.
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
/// The plain functions have a bare `redis::Connection` in hand and cannot tell the pool that lent
/// it. So they [note] what they met, and the pool asks for the last note of the thread that gives
/// the connection back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lending(u64);

impl Lending {
    pub(crate) fn now() -> Self {
        Self(NOTES.load(Ordering::Relaxed))
    }

    /// The last note of this thread, if it is younger.
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
        std::io::Error::from(std::io::ErrorKind::WouldBlock).into()
    }

    fn reset() -> RedisError {
        std::io::Error::from(std::io::ErrorKind::ConnectionReset).into()
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
        assert_eq!(Finished::by_error(&silence()), Some(Finished::Broken));
        assert_eq!(
            Finished::by_error(&unreadable()),
            Some(Finished::Unreadable)
        );
    }

    #[test]
    fn a_note_is_for_its_thread_and_for_what_was_lent_before() {
        let all = [
            (error("-READONLY no\r\n"), Finished::Replica),
            (error("-MOVED 1 a:2\r\n"), Finished::Moved),
            (unreadable(), Finished::Unreadable),
            (reset(), Finished::Broken),
        ];
        let lending = Lending::now();
        std::thread::scope(|scope| {
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
