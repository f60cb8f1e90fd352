//! Opens a connection to one address, with settings and time-outs, and refuses servers that cannot
//! be used for locks.

use std::{
    io,
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    sync::Arc,
    time::Duration,
};

use redis::{
    Client, Connection, ConnectionAddr, ConnectionInfo, ErrorKind, ProtocolVersion,
    RedisConnectionInfo, RedisError, RedisResult, ServerErrorKind, Value,
};

use super::reasons::{failure, is_unknown_command, redis_at, refuse_sentinel, shown};
#[cfg(feature = "tls-rustls")]
use super::tls::prepare_tls;
use crate::{
    error::{Error, Result, makes_no_sense},
    time::Deadline,
    wire::{exchange, is_interrupted, within},
};

/// The reply to `INFO server`, and the role if it was requested.
type Greeting = (String, Option<String>);

/// The oldest server that this library is tested with.
const OLDEST_REDIS: (u32, u32) = (6, 2);

/// A client with these settings.
pub(super) fn client_by(settings: ConnectionInfo) -> Result<Client> {
    Client::open(settings).map_err(|error| Error::invalid("client", error.to_string()))
}

/// The client with the settings that we add.
pub(crate) fn prepared(client: &Client) -> Result<Client> {
    let settings = client.get_connection_info().clone();
    let tcp = settings.tcp_settings().clone().set_nodelay(true);
    let mut login = settings.redis_settings().clone();
    if login.lib_name().is_none() {
        // Saves two replies to wait for if the server is silent, and two commands in an access
        // list.
        login = login.set_skip_set_lib_name();
    }
    #[cfg(feature = "tls-rustls")]
    prepare_tls(settings.addr());
    client_by(settings.set_tcp_settings(tcp).set_redis_settings(login))
}

/// Returns the client with another protocol.
pub(super) fn speaking(client: &Client, protocol: ProtocolVersion) -> Result<Client> {
    let settings = client.get_connection_info().clone();
    let login = settings.redis_settings().clone().set_protocol(protocol);
    client_by(settings.set_redis_settings(login))
}

/// Returns the client for another address, with the same TLS settings.
pub(crate) fn with_address(client: &Client, host: &str, port: u16) -> RedisResult<Client> {
    let settings = client.get_connection_info().clone();
    let host = host.to_owned();
    let address = match settings.addr().clone() {
        ConnectionAddr::TcpTls {
            insecure,
            tls_params,
            ..
        } => ConnectionAddr::TcpTls {
            host,
            port,
            insecure,
            tls_params,
        },
        _ => ConnectionAddr::Tcp(host, port),
    };
    Client::open(settings.set_addr(address))
}

/// Opens a connection to a server that is new enough and, if required, a master. Ends by the
/// deadline, and within `limit`.
pub(super) fn open(
    client: &Client,
    attempt: Deadline,
    limit: Duration,
    has_to_be_master: bool,
) -> Result<Connection> {
    let server = client.get_connection_info().addr();
    let greet = || {
        asked(client, attempt.remaining_up_to(limit), move |connection| {
            greeted(connection, has_to_be_master)
        })
    };
    let mut greeted = greet();
    if greeted.as_ref().is_err_and(is_interrupted) && !attempt.has_passed() {
        // None of our calls was sent yet, so a retry is safe.
        greeted = greet();
    }
    let (connection, (info, role)) =
        greeted.map_err(|error| failure(&redis_at(server), limit, error))?;
    if let Some(role) = role.filter(|role| role != "master") {
        let role = if role == "slave" { "replica" } else { &role };
        let server = redis_at(server);
        let reason = format!("{server} is named as the master, but is a {role}");
        return Err(Error::pool(reason, None));
    }
    refuse_sentinel(server, &info)?;
    refuse_old_server(&info)?;
    Ok(connection)
}

/// Reads the server's `INFO server`, and its role if requested.
fn greeted(connection: &mut Connection, asks_for_role: bool) -> RedisResult<Greeting> {
    let mut questions = redis::pipe();
    questions.cmd("INFO").arg("server");
    if asks_for_role {
        questions.cmd("ROLE");
    }
    let count = questions.len();
    let replies = exchange(connection, &questions.get_packed_pipeline(), count)?;
    let mut replies = replies.into_iter().map(Value::extract_error);
    let info = match replies.next().ok_or_else(makes_no_sense)? {
        Ok(info) => redis::from_redis_value(info)?,
        Err(error) if is_forbidden(&error) => String::new(),
        Err(error) => return Err(error),
    };
    let role = match replies.next().transpose()? {
        Some(Value::Array(parts)) => parts.into_iter().next(),
        role => role,
    };
    let role = role.map(redis::from_redis_value).transpose()?;
    Ok((info, role))
}

/// Opens a connection and asks the first questions on it, all within the limit. The rest of the
/// limit becomes the connection's time-outs.
///
/// A host's addresses are tried one after another, each with its share of the time, until a server
/// has answered at one of them. With TLS redis-rs tries them, because it checks the certificate
/// against the host that it connects to: there an address that gives no answer uses up the time.
pub(crate) fn asked<T: Send + 'static>(
    client: &Client,
    limit: Duration,
    ask: impl Fn(&mut Connection) -> RedisResult<T> + Send + Sync + 'static,
) -> RedisResult<(Connection, T)> {
    let deadline = Deadline::after(limit);
    let peer = shown(client.get_connection_info().addr());
    let clients = at_each_address(client, &peer, limit)?;
    first_that_answers(clients, &peer, deadline, ask)
}

fn first_that_answers<T: Send + 'static>(
    clients: Vec<Client>,
    peer: &str,
    deadline: Deadline,
    ask: impl Fn(&mut Connection) -> RedisResult<T> + Send + Sync + 'static,
) -> RedisResult<(Connection, T)> {
    let (ask, mut count, mut failure) = (Arc::new(ask), clients.len(), None);
    for client in clients {
        let share = deadline.remaining() / u32::try_from(count).unwrap_or(u32::MAX);
        let ask = Arc::clone(&ask);
        let asked = within(peer, share, move || {
            let deadline = Deadline::after(share);
            let mut connection = logged_in(&client, share)?;
            set_timeouts(&connection, deadline.remaining_up_to(share))?;
            let answer = ask(&mut connection)?;
            Ok((connection, answer))
        });
        match asked {
            Err(error) if error.is_io_error() => failure = Some(error),
            asked => return asked,
        }
        count -= 1;
    }
    Err(failure.unwrap_or_else(|| io::Error::other("the host has no address").into()))
}

/// The client for each address of its host, or the client itself if it has no host name.
fn at_each_address(client: &Client, peer: &str, limit: Duration) -> RedisResult<Vec<Client>> {
    let (host, port) = match client.get_connection_info().addr() {
        ConnectionAddr::Tcp(host, port) if host.parse::<IpAddr>().is_err() => (host.clone(), *port),
        _ => return Ok(vec![client.clone()]),
    };
    let found = within(peer, limit, move || {
        Ok((host.as_str(), port).to_socket_addrs()?.collect::<Vec<_>>())
    })?;
    let client_at = |at: &SocketAddr| with_address(client, &at.ip().to_string(), at.port());
    found.iter().map(client_at).collect()
}

/// Connects and logs in. redis-rs reports any error at login as a wrong password, even one about
/// too many clients: a second login gets the server's own error.
fn logged_in(client: &Client, limit: Duration) -> RedisResult<Connection> {
    let deadline = Deadline::after(limit);
    let opened = client.get_connection_with_timeout(limit);
    let opened = opened.map_err(|error| {
        if error.kind() != ErrorKind::AuthenticationFailed {
            return error;
        }
        let words = log_in(client, deadline.remaining()).err();
        words.filter(|words| !words.is_io_error()).unwrap_or(error)
    });
    opened.map_err(without_arguments)
}

/// Removes the arguments from the error of a server that does not know `AUTH` or `HELLO`: the
/// server repeats them, password included.
fn without_arguments(error: RedisError) -> RedisError {
    let words = error.detail().and_then(|it| it.split(", with args").next());
    match words {
        Some(words) if is_unknown_command(&error) => {
            RedisError::from((error.kind(), "the login is refused", words.to_owned()))
        }
        _ => error,
    }
}

fn log_in(client: &Client, limit: Duration) -> RedisResult<()> {
    let settings = client.get_connection_info().clone();
    let login = settings.redis_settings().clone();
    let anonymous = RedisConnectionInfo::default().set_skip_set_lib_name();
    let client = Client::open(settings.set_redis_settings(anonymous))?;
    let mut connection = client.get_connection_with_timeout(limit)?;
    set_timeouts(&connection, limit)?;
    let mut auth = redis::cmd("AUTH");
    auth.arg(login.username()).arg(login.password());
    auth.exec(&mut connection)
}

pub(super) fn set_timeouts(connection: &Connection, timeout: Duration) -> RedisResult<()> {
    connection.set_read_timeout(Some(timeout))?;
    connection.set_write_timeout(Some(timeout))
}

/// Returns true if an access list or a proxy forbids the command, which is no reason to refuse the
/// connection.
pub(super) fn is_forbidden(error: &RedisError) -> bool {
    match error.kind() {
        ErrorKind::Server(ServerErrorKind::NoPerm) => true,
        _ => is_unknown_command(error),
    }
}

/// Refuses a server whose version is older than those this library is tested with. A server that
/// reports no version is accepted.
fn refuse_old_server(info: &str) -> Result<()> {
    match version_in(info) {
        Some((version, numbers)) if numbers < OLDEST_REDIS => {
            Err(Error::too_old(format!("version {version}")))
        }
        _ => Ok(()),
    }
}

/// Valkey reports a `redis_version` of 7.2 or more as well as its own version.
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
    use std::{io::Write, net::TcpListener, thread};

    use super::*;
    use crate::time;

    fn settings_of(client: &Client) -> ConnectionInfo {
        let prepared = prepared(client).unwrap();
        prepared.get_connection_info().clone()
    }

    #[test]
    fn every_socket_sends_without_delay() {
        let client = Client::open("redis://127.0.0.1/").unwrap();
        assert!(!client.get_connection_info().tcp_settings().nodelay());
        assert!(settings_of(&client).tcp_settings().nodelay());
    }

    #[test]
    fn the_callers_client_settings_are_kept() {
        let client = Client::open("redis://me:secret@example.org:7000/3?protocol=resp3").unwrap();
        let settings = client.get_connection_info().clone();
        let login = settings.redis_settings().clone().set_lib_name("mine", "1");
        let client = Client::open(settings.set_redis_settings(login)).unwrap();

        let settings = settings_of(&client);
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
    fn only_a_host_name_has_several_addresses() {
        let limit = Duration::from_secs(20);
        for url in [
            "redis://127.0.0.1/",
            "redis://[::1]/",
            "redis+unix:///nowhere",
        ] {
            let client = Client::open(url).unwrap();
            let clients = at_each_address(&client, "", limit).unwrap();
            let addresses = clients.iter().map(|it| it.get_connection_info().addr());
            let own = client.get_connection_info().addr();
            assert!(addresses.eq([own]), "{url}");
        }
        let nowhere = Client::open("redis://no.such.host.invalid/").unwrap();
        assert!(at_each_address(&nowhere, "", limit).is_err());
    }

    #[test]
    fn an_address_that_does_not_answer_costs_only_its_share() {
        let at = |listener: &TcpListener| {
            let port = listener.local_addr().unwrap().port();
            // A prepared client sends no command of redis-rs.
            prepared(&Client::open(format!("redis://127.0.0.1:{port}/")).unwrap()).unwrap()
        };
        let [silent, closed, alive] = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let clients = [at(&silent), at(&closed), at(&alive)];
        drop(closed);
        let pong = thread::spawn(move || {
            let (mut client, _) = alive.accept().unwrap();
            client.write_all(b"+PONG\r\n").unwrap();
            client
        });
        let ask = |connection: &mut Connection| redis::cmd("PING").query::<String>(connection);
        let limit = Duration::from_secs(6);
        let begun = time::now();
        let asked = first_that_answers(clients.to_vec(), "", Deadline::after(limit), ask);
        assert_eq!(asked.unwrap().1, "PONG");
        assert!(begun.elapsed() >= limit / 4, "{:?}", begun.elapsed());
        pong.join().unwrap();
        let asked = first_that_answers(clients[1..2].to_vec(), "", Deadline::after(limit), ask);
        assert!(asked.is_err_and(|error| error.is_connection_refusal()));
    }

    /// If rustls has two providers to choose from, it panics unless one is set before it connects.
    #[cfg(feature = "tls-rustls")]
    #[test]
    fn the_process_has_a_crypto_provider_before_tls() {
        use rustls::crypto::CryptoProvider;

        prepared(&Client::open("rediss://127.0.0.1/").unwrap()).unwrap();
        assert!(CryptoProvider::get_default().is_some());
    }

    #[test]
    fn a_version_is_parsed_or_missing() {
        let info = |version| format!("# Server\r\nredis_version:{version}\r\nredis_git_sha1:0\r\n");
        for old in ["5.0.14", "6.0.16", "2.8.0", "6.1.240"] {
            assert!(matches!(
                refuse_old_server(&info(old)),
                Err(Error::TooOld { found, .. }) if found == format!("version {old}")
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
