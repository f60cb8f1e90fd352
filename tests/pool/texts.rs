//! The settings, URLs and passwords that the pool refuses or accepts, and its texts about servers.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener},
    thread,
    time::Duration,
};

use crate::common::{Server, clients, tell, wait::unless_halted};
use leasehold::{Error, Locks, Pool, PoolBuilder, Token, acquire_lock, redis, release_lock};
use redis::{Client, Commands};

/// Must not appear in any text.
const SENTINEL: &str = "Sentinel-Passw0rd";

fn texts(error: Error) -> String {
    let debug = format!("{error:?}");
    format!("{debug} {:#}", anyhow::Error::from(error))
}

#[test]
fn an_invalid_size_or_timeout_is_refused() {
    let client = Client::open("redis://127.0.0.1/").unwrap();
    let refused = |builder: PoolBuilder, name: &str| match builder.build(&client) {
        Err(Error::Invalid { argument, .. }) => assert_eq!(argument, name),
        other => panic!("{name}: {other:?}"),
    };
    for size in [0, 10_001, u32::MAX] {
        refused(Pool::builder().max_size(size), "max_size");
    }
    let nonsense = [
        Duration::ZERO,
        Duration::from_nanos(1),
        Duration::from_nanos(999_999),
        Duration::from_nanos(86_400_000_000_001),
        Duration::MAX,
    ];
    for timeout in nonsense {
        refused(Pool::builder().get_timeout(timeout), "get_timeout");
        refused(Pool::builder().connect_timeout(timeout), "connect_timeout");
        refused(Pool::builder().io_timeout(timeout), "io_timeout");
    }
    for (size, timeout) in [
        (1, Duration::from_millis(1)),
        (10_000, Duration::from_hours(24)),
    ] {
        let builder = Pool::builder()
            .max_size(size)
            .get_timeout(timeout)
            .connect_timeout(timeout)
            .io_timeout(timeout);
        builder.build(&client).unwrap();
    }
}

#[test]
fn an_invalid_url_is_refused_and_not_repeated() {
    for url in [
        "",
        "nonsense",
        "127.0.0.1:6379",
        "http://:Sentinel-Passw0rd@127.0.0.1/",
        "redis://",
        "redis://:Sentinel-Passw0rd@127.0.0.1:port/",
        "redis://:Sentinel-Passw0rd@127.0.0.1:99999/",
        "redis://:Sentinel-Passw0rd@127.0.0.1/database",
        "redis://:Sentinel-Passw0rd@127.0.0.1/?protocol=9",
        "redis://:Sentinel-Passw0rd%ff@127.0.0.1/",
        "redis://:Sentinel-Passw0rd@0.0.0.0/",
    ] {
        let error = Pool::connect(url).unwrap_err();
        assert!(
            matches!(
                error,
                Error::Invalid {
                    argument: "url",
                    ..
                }
            ),
            "{url}: {error}"
        );
        let texts = texts(error);
        assert!(
            texts.contains("invalid url") && !texts.contains(SENTINEL),
            "{texts}"
        );
    }
}

#[cfg(not(feature = "tls-rustls"))]
#[test]
fn tls_without_its_feature_names_the_feature() {
    for url in ["rediss://127.0.0.1/", "rediss+sentinel://127.0.0.1/master"] {
        let error = Pool::connect(url).unwrap_err();
        assert!(matches!(
            error,
            Error::Invalid {
                argument: "url",
                ..
            }
        ));
        assert!(error.to_string().contains("`tls-rustls`"), "{error}");
    }
}

#[test]
fn a_server_of_another_kind_is_named() {
    for (answer, what) in [
        (
            "HTTP/1.1 400 Bad Request\r\n\r\n",
            "HERE does not answer like a Redis server",
        ),
        ("", "cannot reach redis at HERE: the connection was closed"),
    ] {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for connection in listener.incoming() {
                let mut connection = connection.unwrap();
                let _ = connection.read(&mut [0; 1_000]);
                let _ = connection.write_all(answer.as_bytes());
            }
        });
        let pool = Pool::connect(&format!("redis://:password@{address}/")).unwrap();
        let texts = texts(pool.get().unwrap_err());
        let wanted = what.replace("HERE", &address.to_string());
        assert!(texts.contains(&wanted), "{texts}");
    }
}

#[test]
fn no_error_shows_the_password() {
    let server = Server::start_with(&["--requirepass", SENTINEL]).unwrap();
    let address = format!("127.0.0.1:{}", server.port());
    let pool = Pool::connect(&format!("redis://:{SENTINEL}@{address}/")).unwrap();
    let conn = pool.get().unwrap();
    let builder = Pool::builder();
    let shown = format!("{pool:?} {pool:#?} {conn:?} {builder:?}");
    assert!(
        shown.contains("Pool") && !shown.contains(SENTINEL),
        "{shown}"
    );

    for (url, why) in [
        (
            format!("redis://:not-{SENTINEL}@{address}/"),
            "invalid username-password pair",
        ),
        (
            format!("redis://nobody:{SENTINEL}@{address}/"),
            "invalid username-password pair",
        ),
        (format!("redis://{address}/"), "NOAUTH"),
        (
            format!("redis://:{SENTINEL}@{address}/99"),
            "refused to switch database",
        ),
    ] {
        let error = Pool::connect(&url).unwrap().get().unwrap_err();
        assert!(
            matches!(
                error,
                Error::Pool {
                    source: Some(_),
                    ..
                }
            ),
            "{error}"
        );
        let texts = texts(error);
        assert!(texts.contains(why) && !texts.contains(SENTINEL), "{texts}");
        assert!(texts.contains(&format!("redis at {address} ")), "{texts}");
    }
}

#[test]
fn a_server_with_too_many_clients_for_a_login_says_so() {
    let server = Server::start_with(&["--requirepass", SENTINEL]).unwrap();
    let url = format!("redis://:{SENTINEL}@127.0.0.1:{}/", server.port());
    let client = Client::open(url.as_str()).unwrap();
    let mut only = client.get_connection().unwrap();
    tell(&mut only, "CONFIG SET maxclients 1");
    let texts = texts(Pool::connect(&url).unwrap().get().unwrap_err());
    assert!(texts.contains("max number of clients reached"), "{texts}");
    assert!(!texts.contains(SENTINEL), "{texts}");
}

#[test]
fn a_server_that_hides_its_version_is_accepted() {
    let server = Server::start().unwrap();
    let mut admin = server.connection().unwrap();
    let rules = [
        "SETUSER", "worker", "on", ">pw", "~*", "+@all", "-info", "-ping",
    ];
    redis::cmd("ACL").arg(&rules).exec(&mut admin).unwrap();
    let pool = Pool::connect(&server.url().replace("//", "//worker:pw@")).unwrap();

    let mut first = pool.get().unwrap();
    let second = clients::id(&mut pool.get().unwrap());
    let first_id = clients::id(&mut first);
    clients::kill(&mut admin, first_id);
    release_lock(&mut first, "a", &Token::random()).unwrap_err();
    drop(first);
    // The second connection is tested now: a refused PING shows that it works.
    assert_eq!(clients::id(&mut pool.get().unwrap()), second);
}

#[test]
fn a_unix_socket_is_used_by_its_path() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("redis.sock");
    let path = path.to_str().unwrap();
    let _server = Server::start_with(&["--unixsocket", path]).unwrap();
    for scheme in ["redis+unix", "unix"] {
        let pool = Pool::connect(&format!("{scheme}://{path}?db=3")).unwrap();
        let mut conn = pool.get().unwrap();
        let token = acquire_lock(&mut conn, "a", Duration::ZERO)
            .unwrap()
            .unwrap();
        assert!(release_lock(&mut conn, "a", &token).unwrap());
    }
    let error = Pool::connect(&format!("redis+unix://{path}.not"))
        .unwrap()
        .get();
    let texts = texts(error.unwrap_err());
    assert!(
        texts.contains(&format!("cannot reach redis at {path}.not")),
        "{texts}"
    );
}

#[test]
fn a_database_applies_to_the_connection_or_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("redis.sock");
    let path = path.to_str().unwrap();
    let server = Server::start_with(&["--unixsocket", path]).unwrap();
    let address = format!("127.0.0.1:{}", server.port());
    let mut third = Client::open(format!("redis://{address}/3"))
        .unwrap()
        .get_connection()
        .unwrap();
    for url in [
        format!("redis://{address}/3"),
        format!("redis+unix://{path}?db=3"),
    ] {
        let mut conn = Pool::connect(&url).unwrap().get().unwrap();
        let token = acquire_lock(&mut conn, "a", Duration::ZERO).unwrap();
        assert!(third.exists::<_, bool>("lock:a").unwrap(), "{url}");
        assert!(release_lock(&mut conn, "a", &token.unwrap()).unwrap());
    }
    for url in [
        format!("redis://{address}/?database=3"),
        format!("redis+unix://{path}?database=3"),
    ] {
        let refused = Pool::connect(&url).unwrap_err().to_string();
        assert!(refused.contains("known: "), "{refused}");
    }
    let url = format!("redis://{address}/?db=3");
    let refused = Pool::connect(&url).unwrap_err().to_string();
    assert!(refused.contains("known: protocol"), "{refused}");
}

#[test]
fn the_error_for_an_invalid_url_is_short_and_names_what_fits_its_scheme() {
    let every_scheme = "redis://, rediss://, redis+unix://, redis+sentinel:// or redis+cluster://";
    for (url, named) in [
        ("nonsense", every_scheme),
        ("redis+srv://127.0.0.1/", every_scheme),
        ("redis://127.0.0.1/?timeout=3", "known: protocol"),
        ("redis://", "redis://[[user]:password@]host[:port]"),
        ("redis+unix://path", "redis+unix:///path"),
        ("redis+sentinel://127.0.0.1/", "/master[/database]"),
        (
            "redis+sentinel://127.0.0.1/m?timeout=3",
            "known: protocol, sentinel_user, sentinel_password",
        ),
        ("redis+cluster://127.0.0.1/?db=0", "known: protocol"),
        (
            "redis+cluster://,",
            "redis+cluster://[[user]:password@]node",
        ),
    ] {
        let error = Locks::connect(url).map(drop).unwrap_err().to_string();
        assert!(error.contains(named), "{named} for {url}: {error}");
        assert!(error.chars().count() <= 160, "{url}: {error}");
    }
}

#[test]
fn a_server_that_is_too_old_is_reported() {
    unless_halted(a_version_is_asked_for);
}

fn a_version_is_asked_for() {
    for (version, is_taken) in [("5.0.14", false), ("6.0.16", false), ("6.2.0", true)] {
        let port = server_of_version(version);
        let pool = Pool::connect(&format!("redis://127.0.0.1:{port}/")).unwrap();
        match pool.get() {
            Ok(_) => assert!(is_taken),
            Err(error) => assert_eq!(
                error.to_string(),
                format!(
                    "the server is too old (version {version}): Redis 6.2 or Valkey 7.2 is required"
                )
            ),
        }
    }
}

/// Answers every command like a server of this version answers INFO.
fn server_of_version(version: &str) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let info = format!("# Server\r\nredis_version:{version}\r\nredis_mode:standalone\r\n");
    let answer = format!("${}\r\n{info}\r\n", info.len());
    thread::spawn(move || {
        // The pool retries while a call waits, possibly before the previous attempt has ended.
        for stream in listener.incoming() {
            let (mut stream, mut question) = (stream.unwrap(), [0; 1024]);
            let answer = answer.clone();
            thread::spawn(move || {
                while stream.read(&mut question).unwrap_or(0) > 0 {
                    let _ = stream.write_all(answer.as_bytes());
                }
            });
        }
    });
    port
}
