//! One attempt to connect, bounded, and in words why it failed.

use std::{net::ToSocketAddrs, time::Duration};

use redis::{
    Client, Connection, ConnectionAddr, ErrorKind, ProtocolVersion, RedisError, RedisResult,
    ServerErrorKind,
};

use crate::{
    error::{Error, Result},
    exchange::is_interrupted,
    time::Deadline,
};

/// The oldest server this library is tested with.
const OLDEST_REDIS: (u32, u32) = (6, 2);

/// Opens connections to one server.
pub(super) struct Opener {
    client: Client,
    pub(super) connect_timeout: Duration,
}

impl Opener {
    pub(super) fn new(client: &Client, connect_timeout: Duration) -> Result<Self> {
        let settings = client.get_connection_info().clone();
        let tcp = settings.tcp_settings().clone().set_nodelay(true);
        let mut login = settings.redis_settings().clone();
        if login.lib_name().is_none() {
            // Two replies fewer to wait for while the server is silent, and two commands fewer for an access list.
            login = login.set_skip_set_lib_name();
        }
        prepare_tls(settings.addr());
        let client = Client::open(settings.set_tcp_settings(tcp).set_redis_settings(login))
            .map_err(|error| Error::invalid("client", error.to_string()))?;
        Ok(Self {
            client,
            connect_timeout,
        })
    }

    /// Opens connections to the same server that speak RESP2.
    pub(super) fn to_listen(&self) -> Result<Self> {
        let settings = self.client.get_connection_info().clone();
        let login = settings.redis_settings().clone();
        let login = login.set_protocol(ProtocolVersion::RESP2);
        let client = Client::open(settings.set_redis_settings(login))
            .map_err(|error| Error::invalid("client", error.to_string()))?;
        Ok(Self {
            client,
            connect_timeout: self.connect_timeout,
        })
    }

    /// A connection to a server that is new enough. Its time-outs are those of the attempt.
    pub(super) fn open(&self) -> Result<Connection> {
        let limit = self.connect_timeout;
        let attempt = Deadline::after(limit);
        let (connection, info) = self
            .greeted(limit)
            .or_else(|error| match attempt.remaining() {
                // Nothing was asked for yet.
                left if is_interrupted(&error) && !left.is_zero() => self.greeted(left),
                _ => Err(error),
            })
            .map_err(|error| self.failure(limit, error))?;
        refuse_old_server(&info)?;
        Ok(connection)
    }

    /// A connection, and what the server says of itself.
    fn greeted(&self, limit: Duration) -> RedisResult<(Connection, String)> {
        let attempt = Deadline::after(limit);
        // redis-rs tries the addresses of a host one after another, each for so long.
        let each = limit / self.addresses();
        let mut connection = self.client.get_connection_with_timeout(each)?;
        set_timeouts(&connection, attempt.remaining_up_to(limit))?;
        match redis::cmd("INFO").arg("server").query(&mut connection) {
            Ok(info) => Ok((connection, info)),
            Err(error) if is_forbidden(&error) => Ok((connection, String::new())),
            Err(error) => Err(error),
        }
    }

    /// How many addresses the host has, at least one.
    fn addresses(&self) -> u32 {
        let (host, port) = match self.client.get_connection_info().addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                (host.as_str(), *port)
            }
            _ => return 1,
        };
        let found = (host, port).to_socket_addrs();
        let count = found.map_or(1, Iterator::count).max(1);
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// Why there is no connection. The system's own words for a time-out are "resource temporarily unavailable".
    pub(super) fn failure(&self, limit: Duration, error: RedisError) -> Error {
        if error.is_timeout() {
            return self.no_answer(limit, Some(error));
        }
        let server = self.client.get_connection_info().addr();
        let reason = match error.kind() {
            ErrorKind::Io => format!("could not connect to {server}"),
            ErrorKind::Parse => format!("{server} does not answer like a Redis server"),
            _ => format!("{server} refused the connection"),
        };
        Error::Pool {
            reason,
            source: Some(error),
        }
    }

    pub(super) fn no_answer(&self, limit: Duration, source: Option<RedisError>) -> Error {
        let server = self.client.get_connection_info().addr();
        let whole_millis = u64::try_from(limit.as_nanos().div_ceil(1_000_000));
        let limit = whole_millis.map_or(limit, Duration::from_millis);
        Error::Pool {
            reason: format!("no answer from {server} within {limit:?}"),
            source,
        }
    }
}

/// redis-rs takes the crypto provider of the process, and panics where there is none and rustls cannot choose. An
/// application that wants another one installs it before it makes a pool.
#[cfg(feature = "tls-rustls")]
fn prepare_tls(server: &ConnectionAddr) {
    use rustls::crypto::{CryptoProvider, ring};

    if matches!(server, ConnectionAddr::TcpTls { .. }) && CryptoProvider::get_default().is_none() {
        // An error means that another thread was faster.
        let _ = ring::default_provider().install_default();
    }
}

#[cfg(not(feature = "tls-rustls"))]
fn prepare_tls(_: &ConnectionAddr) {}

pub(super) fn set_timeouts(connection: &Connection, timeout: Duration) -> RedisResult<()> {
    connection.set_read_timeout(Some(timeout))?;
    connection.set_write_timeout(Some(timeout))
}

/// An access list, or a proxy, does not let us ask: no reason to refuse the connection.
pub(super) fn is_forbidden(error: &RedisError) -> bool {
    match error.kind() {
        ErrorKind::Server(ServerErrorKind::NoPerm) => true,
        ErrorKind::Server(ServerErrorKind::ResponseError) => error
            .detail()
            .is_some_and(|detail| detail.starts_with("unknown command")),
        _ => false,
    }
}

/// Refuses a server that says it is older than what this library is tested with. One that says nothing is taken.
fn refuse_old_server(info: &str) -> Result<()> {
    match version_in(info) {
        Some((version, numbers)) if numbers < OLDEST_REDIS => Err(Error::TooOld {
            found: format!("it says {version}"),
        }),
        _ => Ok(()),
    }
}

/// Valkey gives a `redis_version` of 7.2 or more beside its own.
fn version_in(info: &str) -> Option<(&str, (u32, u32))> {
    let version = info
        .lines()
        .find_map(|line| line.strip_prefix("redis_version:"))?
        .trim();
    let mut numbers = version.split('.').map(str::parse);
    match (numbers.next()?, numbers.next()?) {
        (Ok(major), Ok(minor)) => Some((version, (major, minor))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_socket_sends_without_delay() {
        let client = Client::open("redis://127.0.0.1/").unwrap();
        assert!(!client.get_connection_info().tcp_settings().nodelay());
        let opener = Opener::new(&client, Duration::from_secs(1)).unwrap();
        let settings = opener.client.get_connection_info();
        assert!(settings.tcp_settings().nodelay());
    }

    #[test]
    fn the_clients_own_settings_are_kept() {
        let client = Client::open("redis://me:secret@example.org:7000/3?protocol=resp3").unwrap();
        let settings = client.get_connection_info().clone();
        let login = settings.redis_settings().clone().set_lib_name("mine", "1");
        prepare_tls(settings.addr());
        let client = Client::open(settings.set_redis_settings(login)).unwrap();

        let opener = Opener::new(&client, Duration::from_secs(1)).unwrap();
        let settings = opener.client.get_connection_info();
        let login = settings.redis_settings();
        assert_eq!(settings.addr().to_string(), "example.org:7000");
        assert_eq!(
            (login.username(), login.password()),
            (Some("me"), Some("secret"))
        );
        assert_eq!((login.db(), login.lib_name()), (3, Some("mine")));
        assert!(login.protocol().supports_resp3() && !login.skip_set_lib_name());
    }

    #[test]
    fn a_host_has_at_least_one_address() {
        for url in [
            "redis://127.0.0.1/",
            "redis://[::1]/",
            "redis+unix:///nowhere",
            "redis://no.such.host.invalid/",
        ] {
            let opener = Opener::new(&Client::open(url).unwrap(), Duration::from_secs(1)).unwrap();
            assert_eq!(opener.addresses(), 1, "{url}");
        }
    }

    #[test]
    fn a_version_is_found_or_not() {
        let info = |version| format!("# Server\r\nredis_version:{version}\r\nredis_git_sha1:0\r\n");
        for old in ["5.0.14", "6.0.16", "2.8.0", "6.1.240"] {
            assert!(matches!(
                refuse_old_server(&info(old)),
                Err(Error::TooOld { found }) if found == format!("it says {old}")
            ));
        }
        for new in [
            "6.2.0",
            "7.0.15",
            "8.4.0",
            "10.0.0",
            "255.255.255",
            "",
            "x.y",
            "7",
        ] {
            assert!(refuse_old_server(&info(new)).is_ok(), "{new}");
        }
        assert!(refuse_old_server("").is_ok());
    }
}
