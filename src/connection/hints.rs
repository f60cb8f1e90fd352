//! What the first answer of a server says of a URL that leads to a server of another kind, or has
//! no password for it.

use std::fmt::Display;

use redis::{Client, ErrorKind, RedisError, ServerErrorKind};

#[cfg(feature = "cluster")]
use super::cluster::Address;
use super::dial::is_unknown_command;
use crate::error::{Error, Result};

/// Why a sentinel has not said where the master is.
pub(super) fn of_sentinel(sentinel: &Client, error: &RedisError) -> String {
    let address = sentinel.get_connection_info().addr();
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
pub(super) fn of_node(address: &Address, error: &RedisError) -> String {
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

/// The same as an error that nobody waits to pass.
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

fn words(error: &RedisError) -> &str {
    error.detail().unwrap_or_default()
}

/// Refuses a server that says it is a sentinel, by `INFO server`: it has no keys.
pub(super) fn refuse_sentinel(server: &Client, info: &str) -> Result<()> {
    if !info.contains("redis_mode:sentinel") {
        return Ok(());
    }
    let address = server.get_connection_info().addr();
    let reason = format!("{address} is a sentinel: the URL is `redis+sentinel://{address}/MASTER`");
    Err(Error::invalid("url", reason))
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn a_sentinel_that_is_silent_is_not_called_an_unavailable_resource() {
        let sentinel = Client::open("redis://127.0.0.1:26379/").unwrap();
        let silence = RedisError::from(io::Error::from(io::ErrorKind::WouldBlock));
        let reason = of_sentinel(&sentinel, &silence);
        assert_eq!(reason, "127.0.0.1:26379 did not answer in time");
    }
}
