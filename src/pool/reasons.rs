//! The errors for a connection that was not opened, with hints for the URL and the password.

use std::{fmt::Display, time::Duration};

use redis::{ConnectionAddr, ErrorKind, RedisError, ServerErrorKind};

use crate::error::{Error, Result, in_words, refusal};

/// Formats a server by its address, as the subject of a sentence.
pub(crate) fn redis_at(address: &ConnectionAddr) -> String {
    let tls = match address {
        ConnectionAddr::TcpTls { .. } => " (TLS)",
        _ => "",
    };
    format!("redis at {}{tls}", shown(address))
}

/// Formats an address, with brackets around an IPv6 address: redis-rs prints none.
pub(super) fn shown(address: &ConnectionAddr) -> String {
    match address {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            host_and_port(host, *port)
        }
        _ => address.to_string(),
    }
}

pub(super) fn host_and_port(host: &str, port: u16) -> String {
    if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

/// Returns the error for a failed connection. For a time-out the system says only "resource
/// temporarily unavailable".
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
    Error::pool(reason, Some(in_words(error)))
}

pub(super) fn no_answer(server: &str, limit: Duration, source: Option<RedisError>) -> Error {
    let whole_millis = u64::try_from(limit.as_nanos().div_ceil(1_000_000));
    let limit = whole_millis.map_or(limit, Duration::from_millis);
    Error::pool(format!("no answer from {server} within {limit:?}"), source)
}

/// Returns the error for a sentinel or node that gave no useful answer. `login` and `other_kind`
/// are hints for a refused login and for a server of another kind. If `knows_none_yet`, these two
/// are [`Error::Invalid`], since the URL is wrong and a retry cannot help.
pub(crate) fn no_useful_answer(
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
        // The system says only "resource temporarily unavailable".
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
    let source = may_pass.then(|| in_words(error));
    Error::pool(reason, source)
}

/// Returns the later of two errors, unless only the first may pass.
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
    let address = shown(address);
    let reason = format!("{address} is a sentinel: use `redis+sentinel://{address}/MASTER`");
    Err(Error::invalid("url", reason))
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn a_silent_sentinel_is_not_called_an_unavailable_resource() {
        let sentinel = ConnectionAddr::Tcp("127.0.0.1".to_owned(), 26_379);
        let silence = RedisError::from(io::Error::from(io::ErrorKind::WouldBlock));
        let error = no_useful_answer("no master", &sentinel, silence, ["", ""], true);
        let Error::Pool { reason, .. } = error else {
            unreachable!("{error}");
        };
        assert_eq!(reason, "no master: 127.0.0.1:26379 did not answer in time");
    }

    #[test]
    fn an_ipv6_address_is_in_brackets() {
        let addresses = [
            ("redis://[::1]:7000/", "redis at [::1]:7000"),
            ("redis://10.0.0.1/", "redis at 10.0.0.1:6379"),
            ("redis://example.org/", "redis at example.org:6379"),
            ("redis+unix:///run/redis.sock", "redis at /run/redis.sock"),
        ];
        for (url, expected) in addresses {
            let client = redis::Client::open(url).unwrap();
            assert_eq!(redis_at(client.get_connection_info().addr()), expected);
        }
    }
}
