//! What a URL says of where to connect to.

use redis::{Client, RedisError};

use crate::error::{Error, Result};

const PORT: u16 = 6_379;
const SENTINEL_PORT: u16 = 26_379;
const SHAPE: &str =
    "redis://[[user]:password@]host[:port][/database], the password percent-encoded";
const CLUSTER_SHAPE: &str =
    "redis+cluster://[[user]:password@]node[:port][,node[:port]…], the password percent-encoded";
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
            _ if is_of_a_cluster(url) => Err(Error::invalid(
                "url",
                "a Redis Cluster has no one server that has all keys: take `Locks`, or `Nodes` for a connection to each master",
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
        let host = with_port(host, SENTINEL_PORT);
        let url = format!("{scheme}://{host}/{fragment}");
        sentinels.push(open(&url, SENTINEL_SHAPE)?);
    }
    let server = format!("{scheme}://{login}server{database}{query}{fragment}");
    Ok(Target::Watched {
        sentinels,
        master: master.to_owned(),
        server: open(&server, SENTINEL_SHAPE)?,
    })
}

/// Whether a URL is that of a cluster, readable or not.
pub(crate) fn is_of_a_cluster(url: &str) -> bool {
    let scheme = url.split_once("://").map(|(scheme, _)| scheme);
    matches!(scheme, Some("redis+cluster" | "rediss+cluster"))
}

/// The nodes that the URL of a cluster names: each with the user and the password.
///
/// # Errors
/// [`Error::Invalid`] if the URL cannot be read. It does not repeat the URL, which may hold a password.
pub(super) fn nodes_of(url: &str) -> Result<Vec<Client>> {
    let unreadable =
        |what: &str| Error::invalid("url", format!("{what} (it has to be {CLUSTER_SHAPE})"));
    let (scheme, rest) = match url.split_once("+cluster://") {
        Some((scheme, rest)) if is_of_a_cluster(url) => (scheme, rest),
        _ => return Err(unreadable("this is no URL of a cluster")),
    };
    let (rest, fragment) = cut(rest, '#');
    let (rest, query) = cut(rest, '?');
    let (authority, path) = cut(rest, '/');
    if !matches!(path, "" | "/" | "/0") {
        return Err(unreadable("a cluster has no other database than 0"));
    }
    let (login, hosts) = match authority.rsplit_once('@') {
        Some((login, hosts)) => (format!("{login}@"), hosts),
        None => (String::new(), authority),
    };
    let node = |host: &str| {
        if host.is_empty() {
            return Err(unreadable("a node has no host"));
        }
        let host = with_port(host, PORT);
        let url = format!("{scheme}://{login}{host}/{query}{fragment}");
        open(&url, CLUSTER_SHAPE)
    };
    hosts.split(',').map(node).collect()
}

/// The host with its port, or this one if it has none.
fn with_port(host: &str, port: u16) -> String {
    let has_port = host
        .rsplit_once(':')
        .is_some_and(|(_, port)| !port.contains(']'));
    if has_port {
        host.to_owned()
    } else {
        format!("{host}:{port}")
    }
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
            ("redis+cluster://:secret@a,b", "`Nodes`"),
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
    #[test]
    fn a_url_of_a_cluster_names_nodes_and_how_to_log_in_there() {
        let nodes = nodes_of("redis+cluster://me:p%40ss@a:1,b,[::1]/?protocol=resp3").unwrap();
        let address = |client: &Client| client.get_connection_info().addr().to_string();
        let addresses: Vec<_> = nodes.iter().map(address).collect();
        assert_eq!(addresses, ["a:1", "b:6379", "::1:6379"]);
        for node in &nodes {
            let login = node.get_connection_info().redis_settings();
            let expected = (Some("me"), Some("p@ss"));
            assert_eq!((login.username(), login.password()), expected);
            assert!(login.protocol().supports_resp3());
        }
        for (url, why) in [
            ("redis+cluster://:secret@a,,b", "node has no host"),
            ("redis+cluster://:secret@", "node has no host"),
            ("redis+cluster://:secret@a/1", "database"),
            ("redis+cluster://:secret@a:x", "did not parse"),
            ("redis://:secret@a", "no URL of a cluster"),
            ("x+cluster://:secret@a", "no URL of a cluster"),
        ] {
            let Err(Error::Invalid { reason, .. }) = nodes_of(url) else {
                unreachable!("{url}");
            };
            assert!(
                reason.contains(why) && !reason.contains("sec"),
                "{url}: {reason}"
            );
        }
    }
}
