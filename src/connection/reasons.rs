//! Says in words why no connection was opened, and which URL or password is missing.

use std::{fmt::Display, time::Duration};

use redis::{ConnectionAddr, ErrorKind, RedisError, ServerErrorKind};

use crate::error::{Error, Result};

/// The system's own words for a time-out are "resource temporarily unavailable".
pub(super) fn failure(server: &impl ToString, limit: Duration, error: RedisError) -> Error {
    let server = server.to_string();
    if error.is_timeout() {
        return no_answer(&server, limit, Some(error));
    }
    let reason = match error.kind() {
        ErrorKind::Io => format!("could not connect to {server}"),
        ErrorKind::Parse => format!("{server} does not answer like a Redis server"),
        _ if error.code() == Some("NOAUTH") => format!(
            "{server} refused the connection: it wants a password, and the URL has none (redis://:PASSWORD@{server})"
        ),
        _ => format!("{server} refused the connection"),
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

/// Why a sentinel has not said where the master is.
pub(super) fn of_sentinel(address: &ConnectionAddr, error: &RedisError) -> String {
    if is_login_refused(error) {
        let words = words(error);
        format!(
            "{address} refuses the login ({words}): a password of the sentinels is `?sentinel_password=…` in the URL"
        )
    } else if is_unknown_command(error) {
        format!("{address} is no sentinel; for a server the URL is `redis://{address}/`")
    } else if error.kind() == ErrorKind::Client {
        format!("{address}: it knows no master of this name")
    } else {
        has_failed(address, error)
    }
}

/// Why a node has not said who has which keys.
#[cfg(feature = "cluster")]
pub(super) fn of_node(address: &impl Display, error: &RedisError) -> String {
    if is_login_refused(error) {
        let words = words(error);
        format!("{address} refuses the login ({words}): the URL is `redis+cluster://:PASSWORD@…`")
    } else if is_unknown_command(error) {
        format!(
            "{address} is no node of a cluster; for a sentinel the URL is `redis+sentinel://{address}/MASTER`"
        )
    } else if is_alone(error) {
        let words = words(error);
        format!(
            "{address} is no node of a cluster ({words}); for one server the URL is `redis://{address}/`"
        )
    } else {
        has_failed(address, error)
    }
}

/// The system's own words for a time-out are "resource temporarily unavailable".
fn has_failed(address: &impl Display, error: &RedisError) -> String {
    if error.is_timeout() {
        format!("{address} did not answer in time")
    } else {
        format!("{address} failed")
    }
}

/// Whether asking again cannot help: the URL has to change, or the server. Then the reason has the
/// server's words.
pub(super) fn is_misuse(error: &RedisError) -> bool {
    is_login_refused(error)
        || is_unknown_command(error)
        || is_alone(error)
        || error.kind() == ErrorKind::Client
}

/// The error that ends every wait for a connection.
pub(super) fn misuse(why: Error) -> Error {
    match why {
        Error::Pool { reason, .. } => Error::invalid("url", reason),
        why => why,
    }
}

/// The server wants a password, or another one.
fn is_login_refused(error: &RedisError) -> bool {
    matches!(error.code(), Some("NOAUTH" | "WRONGPASS"))
}

/// A server that is in no cluster.
fn is_alone(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::ResponseError)
        && words(error).contains("cluster support disabled")
}

pub(super) fn is_unknown_command(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::ResponseError)
        && words(error).starts_with("unknown command")
}

fn words(error: &RedisError) -> &str {
    error.detail().unwrap_or_default()
}

/// Refuses a server that says it is a sentinel, by `INFO server`: it has no keys.
pub(super) fn refuse_sentinel(address: &ConnectionAddr, info: &str) -> Result<()> {
    if !info.contains("redis_mode:sentinel") {
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
        let reason = of_sentinel(&sentinel, &silence);
        assert_eq!(reason, "127.0.0.1:26379 did not answer in time");
    }
}
