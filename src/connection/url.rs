//! What a URL says of where to connect to.

use redis::{Client, RedisError};

use crate::error::{Error, Result};

const SENTINEL_PORT: u16 = 26_379;
const SHAPE: &str =
    "redis://[[user]:password@]host[:port][/database], the password percent-encoded";
const SENTINEL_SHAPE: &str = "redis+sentinel://[[user]:password@]sentinel[:port][,sentinel[:port]…]/master[/database], the user and the \
                              password those of the servers";

/// Where to connect to.
pub(super) enum Target {
    Server(Client),
    /// To whichever server these sentinels name.
    Watched {
        sentinels: Vec<Client>,
        master: String,
        /// How to connect to it; its address counts for nothing.
        server: Client,
    },
}

impl Target {
    /// # Errors
    /// [`Error::Invalid`] if the URL cannot be read. It does not repeat the URL, which may hold a password.
    pub(super) fn of(url: &str) -> Result<Self> {
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        match scheme {
            "redis+sentinel" => watched("redis", rest),
            "rediss+sentinel" => watched("rediss", rest),
            "redis+cluster" | "rediss+cluster" => Err(Error::invalid(
                "url",
                "a Redis Cluster has no one server that has all keys, which is what this library works on",
            )),
            _ => open(url, SHAPE).map(Self::Server),
        }
    }
}

/// redis-rs reads URLs of one host: each sentinel gets one, and so does the master.
fn watched(scheme: &str, rest: &str) -> Result<Target> {
    let unreadable =
        |what: &str| Error::invalid("url", format!("{what} (it has to be {SENTINEL_SHAPE})"));
    let (rest, fragment) = cut(rest, '#');
    let (rest, query) = cut(rest, '?');
    let (authority, path) = cut(rest, '/');
    let (login, hosts) = match authority.rsplit_once('@') {
        Some((login, hosts)) => (format!("{login}@"), hosts),
        None => (String::new(), authority),
    };
    let (master, database) = cut(path.strip_prefix('/').unwrap_or_default(), '/');
    if master.is_empty() {
        return Err(unreadable("the master has no name"));
    }
    let mut sentinels = Vec::new();
    for host in hosts.split(',') {
        if host.is_empty() {
            return Err(unreadable("a sentinel has no host"));
        }
        let has_port = host
            .rsplit_once(':')
            .is_some_and(|(_, port)| !port.contains(']'));
        let port = if has_port {
            String::new()
        } else {
            format!(":{SENTINEL_PORT}")
        };
        let url = format!("{scheme}://{host}{port}/{fragment}");
        sentinels.push(open(&url, SENTINEL_SHAPE)?);
    }
    let server = format!("{scheme}://{login}server{database}{query}{fragment}");
    Ok(Target::Watched {
        sentinels,
        master: master.to_owned(),
        server: open(&server, SENTINEL_SHAPE)?,
    })
}

/// What comes before the sign, and what begins with it.
fn cut(text: &str, sign: char) -> (&str, &str) {
    text.split_at(text.find(sign).unwrap_or(text.len()))
}

/// Mostly it is a password that is not encoded.
fn open(url: &str, shape: &str) -> Result<Client> {
    if url.starts_with("rediss:") && !cfg!(feature = "tls-rustls") {
        let reason = "`rediss` takes TLS, which this build is without: enable the feature `tls-rustls` of leasehold";
        return Err(Error::invalid("url", reason));
    }
    Client::open(url).map_err(|error: RedisError| {
        Error::invalid("url", format!("{error} (it has to be {shape})"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watched(url: &str) -> (Vec<String>, String, Client) {
        let Ok(Target::Watched {
            sentinels,
            master,
            server,
        }) = Target::of(url)
        else {
            unreachable!("{url}");
        };
        let address = |client: &Client| client.get_connection_info().addr().to_string();
        (sentinels.iter().map(address).collect(), master, server)
    }

    #[test]
    fn a_url_names_sentinels_the_master_and_how_to_log_in_there() {
        let (sentinels, master, server) = watched(
            "redis+sentinel://me:p%40ss@a:1,b,[::1],[::2]:4/my.master-1_x/3?protocol=resp3",
        );
        assert_eq!(sentinels, ["a:1", "b:26379", "::1:26379", "::2:4"]);
        assert_eq!(master, "my.master-1_x");
        let login = server.get_connection_info().redis_settings();
        assert_eq!(
            (login.username(), login.password()),
            (Some("me"), Some("p@ss"))
        );
        assert!(login.db() == 3 && login.protocol().supports_resp3());
        let (sentinels, master, server) = watched("redis+sentinel://a/m");
        assert_eq!((sentinels.len(), master.as_str()), (1, "m"));
        let login = server.get_connection_info().redis_settings();
        assert_eq!((login.db(), login.password()), (0, None));
    }

    #[test]
    fn what_is_missing_is_named_and_no_password_is_repeated() {
        for (url, why) in [
            ("redis+sentinel://:secret@a,b", "master has no name"),
            ("redis+sentinel://:secret@a,b/", "master has no name"),
            ("redis+sentinel://:secret@a,,b/m", "sentinel has no host"),
            ("redis+sentinel://:secret@/m", "sentinel has no host"),
            ("redis+sentinel://:secret@a:x/m", "did not parse"),
            ("redis+sentinel://:secret@a/m/x", "database"),
            ("redis+cluster://:secret@a,b", "Redis Cluster"),
            ("redis://:sec/ret@a", "redis://[[user]"),
        ] {
            let Err(Error::Invalid { argument, reason }) = Target::of(url) else {
                unreachable!("{url}");
            };
            assert_eq!(argument, "url");
            assert!(reason.contains(why), "{url}: {reason}");
            assert!(!reason.contains("sec"), "{url}: {reason}");
        }
    }
}
