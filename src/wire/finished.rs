//! Decides when to close a connection: one rule for the connections of the pool, the waiters and
//! the watchdog.
//!
//! A new reason is a new line in [`Finished::by_error`]. The owner of the connection decides
//! whether it closes other connections too.

use redis::{ErrorKind, RedisError, ServerErrorKind};

/// The reason to close a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finished {
    /// The socket failed, or a reply timed out and is still owed.
    Broken,
    /// The bytes are not a valid reply. redis-rs keeps them in its buffer and fails on them again
    /// at every later read.
    Unreadable,
    /// The server is now a replica: its address may lead to the new master.
    Replica,
    /// The caller had the connection for as long as a read time-out, so a reply may still be owed.
    Overdue,
    /// A plain function was redirected to another node of the cluster.
    Moved,
}

impl Finished {
    /// Judges a connection by an error on it.
    pub(crate) fn by_error(error: &RedisError) -> Option<Self> {
        match error.kind() {
            ErrorKind::Io => Some(Self::Broken),
            ErrorKind::Parse => Some(Self::Unreadable),
            _ if is_from_replica(error) => Some(Self::Replica),
            _ => None,
        }
    }
}

/// True if a replica refused to write, or to answer while its master is out of reach. Before Redis
/// 7 an error inside a script has its code in the text only.
pub(crate) fn is_from_replica(error: &RedisError) -> bool {
    let code = error.kind();
    code == ErrorKind::Server(ServerErrorKind::ReadOnly)
        || code == ErrorKind::Server(ServerErrorKind::MasterDown)
        || error
            .detail()
            .is_some_and(|detail| detail.contains("-READONLY "))
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

    fn by(line: &str) -> Option<Finished> {
        Finished::by_error(&error(line))
    }

    #[test]
    fn only_the_refusal_of_a_replica_finishes_a_connection() {
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
    fn silence_and_unreadable_bytes_retire_a_connection() {
        assert_eq!(Finished::by_error(&silence()), Some(Finished::Broken));
        assert_eq!(
            Finished::by_error(&unreadable()),
            Some(Finished::Unreadable)
        );
    }
}
