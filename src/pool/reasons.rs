//! The errors for a connection that was not opened, with hints for the URL and the password.

use std::{fmt::Display, time::Duration};

use redis::{ConnectionAddr, ErrorKind, RedisError, ServerErrorKind};

use crate::error::{Error, Result, refusal};

/// A server by its address, as the subject of a sentence.
pub(crate) fn redis_at(address: &ConnectionAddr) -> String {
    match address {
        ConnectionAddr::TcpTls { .. } => format!("redis at {address} (TLS)"),
        _ => format!("redis at {address}"),
    }
}

/// The system's own words for a time-out are "resource temporarily unavailable".
pub(crate) fn failure(server: &str, limit: Duration, error: RedisError) -> Error {
    if error.is_timeout() {
        return no_answer(server, limit, Some(error));
    }
    let reason = match error.kind() {
        ErrorKind::Io => format!("cannot reach {server}"),
        ErrorKind::Parse => format!("{server} does not answer like a Redis server"),
        _ if error.code() == Some("NOAUTH") => {
            format!(
                "{server} requires a password (NOAUTH), and the URL has none (redis://:PASSWORD@…)"
            )
        }
        _ => match refusal(&error) {
            "refused" => format!("{server} refused the connection"),
            refusal => format!("{server} {refusal}"),
        },
    };
    Error::Pool {
        reason,
        source: Some(error),
    }
}

pub(super) fn no_answer(server: &str, limit: Duration, source: Option<RedisError>) -> Error {
    let whole_millis = u64::try_from(limit.as_nanos().div_ceil(1_000_000));
    let limit = whole_millis.map_or(limit, Duration::from_millis);
    Error::Pool {
        reason: format!("no answer from {server} within {limit:?}"),
        source,
    }
}

/// The error of a sentinel or a node that gave no useful answer. The hints are for one that refuses
/// the login, and for a server of another kind. If nothing is known yet, both are errors of the
/// URL, since a retry cannot help.
pub(crate) fn asked_in_vain(
    wanted: &str,
    address: &impl Display,
    error: RedisError,
    [login, other_kind]: [&str; 2],
    knows_none_yet: bool,
) -> Error {
    let words = error.detail().unwrap_or_default();
    let words = words.split(", with args").next().unwrap_or_default();
    let (may_pass, why) = if matches!(error.code(), Some("NOAUTH" | "WRONGPASS")) {
        (false, format!("refuses the login ({words}): {login}"))
    } else if is_unknown_command(&error) || words.contains("cluster support disabled") {
        (false, format!("{other_kind} ({words})"))
    } else if error.kind() == ErrorKind::Client {
        (false, String::from("knows no master of this name"))
    } else if error.is_timeout() {
        // The system's own words are "resource temporarily unavailable".
        (true, String::from("did not answer in time"))
    } else if error.is_io_error() {
        (true, String::from("cannot be reached"))
    } else {
        (true, refusal(&error).to_owned())
    };
    let reason = format!("{wanted}: {address} {why}");
    if knows_none_yet && !may_pass {
        return Error::invalid("url", reason);
    }
    let source = may_pass.then_some(error);
    Error::Pool { reason, source }
}

/// The later of two errors, unless only the first may pass.
pub(crate) fn last_that_may_pass(first: Option<Error>, later: Error) -> Option<Error> {
    match (&first, &later) {
        (Some(Error::Pool { .. }), Error::Invalid { .. }) => first,
        _ => Some(later),
    }
}

pub(crate) fn is_unknown_command(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::ResponseError)
        && (error.detail()).is_some_and(|words| words.starts_with("unknown command"))
}

/// Refuses a server that reports in `INFO server` that it is a sentinel: it has no keys.
pub(super) fn refuse_sentinel(address: &ConnectionAddr, info: &str) -> Result<()> {
    // Redis calls the field `redis_mode`, Valkey `server_mode`.
    if !info.contains("_mode:sentinel") {
        return Ok(());
    }
    let reason = format!("{address} is a sentinel: the URL is `redis+sentinel://{address}/MASTER`");
    Err(Error::invalid("url", reason))
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn a_sentinel_that_is_silent_is_not_called_an_unavailable_resource() {
        let sentinel = ConnectionAddr::Tcp("127.0.0.1".to_owned(), 26_379);
        let silence = RedisError::from(io::Error::from(io::ErrorKind::WouldBlock));
        let error = asked_in_vain("nobody says", &sentinel, silence, ["", ""], true);
        let Error::Pool { reason, .. } = error else {
            unreachable!("{error}");
        };
        assert_eq!(
            reason,
            "nobody says: 127.0.0.1:26379 did not answer in time"
        );
    }
}
