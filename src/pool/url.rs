//! Reads URLs: one server, a socket, sentinels, or some nodes of a cluster.
//!
//! redis-rs parses the URL of each single host. Parts that it would ignore are errors here: with an
//! ignored database or master, two programs could use two places, where they do not exclude each
//! other. No error repeats a part that may belong to a password.

use redis::Client;

use super::dial::client_by;
use crate::error::{Error, Result};

const PORT: u16 = 6_379;
const SENTINEL_PORT: u16 = 26_379;

/// The reason why the URL of a cluster leads to no pool.
#[cfg(feature = "cluster")]
const NO_POOL: &str = "a Redis Cluster has no one server that has all keys: take `Locks`, or `Nodes` for a connection to each master";
#[cfg(not(feature = "cluster"))]
const NO_POOL: &str = "this is a Redis Cluster, which this build is without: enable the feature `cluster` of leasehold";

const FORMS: &str = "\
    redis://[[user]:password@]host[:port][/database], \
    redis+unix:///path[?db=database&user=user&pass=password], \
    redis+sentinel://[[user]:password@]sentinel[:port][,sentinel[:port]…]/master[/database], the password that of the servers, or \
    redis+cluster://[[user]:password@]node[:port][,node[:port]…]; \
    with `rediss` for TLS, the password percent-encoded, and after `?` \
    protocol, of sentinels sentinel_user and sentinel_password";

const UNENCODED: &str = "a `/`, `?`, `#` or `@` in a password has to be percent-encoded";

/// The target of the connections.
pub(super) enum Target {
    Server(Client),
    /// The server that these sentinels name.
    Watched {
        sentinels: Vec<Client>,
        master: String,
        /// Login, database and TLS of the master; its address is not used.
        server: Client,
    },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum UrlKind {
    Server,
    Socket,
    Sentinels,
    Cluster,
}

/// A URL, taken apart.
struct Parts<'a> {
    kind: UrlKind,
    /// `redis` or, for TLS, `rediss`.
    scheme: &'static str,
    /// The user and the password with the `@` after them, if there are any.
    login: &'a str,
    hosts: Vec<&'a str>,
    /// The path of a socket includes its first `/`.
    path: &'a str,
    /// Includes the `?` that it begins with, if there is any.
    query: &'a str,
}

impl Target {
    /// # Errors
    /// [`Error::Invalid`] if the URL cannot be read. The error does not repeat the URL, which may
    /// hold a password.
    pub(super) fn of(url: &str) -> Result<Self> {
        let parts = Parts::of(url)?;
        match parts.kind {
            UrlKind::Server => Ok(Self::Server(parts.client(parts.hosts[0], parts.path)?)),
            UrlKind::Socket => {
                let url = format!("redis+unix://{}{}", parts.path, parts.query);
                Ok(Self::Server(checked(open(&url, PORT)?)?))
            }
            UrlKind::Sentinels => parts.watched(),
            UrlKind::Cluster => Err(Error::invalid("url", NO_POOL)),
        }
    }
}

/// True for the URL of a cluster, readable or not.
#[cfg(feature = "cluster")]
pub(crate) fn is_of_a_cluster(url: &str) -> bool {
    let scheme = url
        .split_once("://")
        .and_then(|(scheme, _)| kind_of(scheme));
    scheme.is_some_and(|(_, kind)| kind == UrlKind::Cluster)
}

/// The nodes in the URL of a cluster, each with the user and the password.
///
/// # Errors
/// [`Error::Invalid`] if the URL cannot be read. The error does not repeat the URL, which may hold
/// a password.
#[cfg(feature = "cluster")]
pub(crate) fn nodes_of(url: &str) -> Result<Vec<Client>> {
    let parts = Parts::of(url)?;
    if parts.kind != UrlKind::Cluster {
        return Err(unreadable("this is no URL of a cluster"));
    }
    let node = |host: &&str| parts.client(host, parts.path);
    parts.hosts.iter().map(node).collect()
}

fn kind_of(scheme: &str) -> Option<(&'static str, UrlKind)> {
    Some(match scheme {
        "redis" => ("redis", UrlKind::Server),
        "rediss" => ("rediss", UrlKind::Server),
        "redis+unix" | "unix" => ("redis", UrlKind::Socket),
        "redis+sentinel" => ("redis", UrlKind::Sentinels),
        "rediss+sentinel" => ("rediss", UrlKind::Sentinels),
        "redis+cluster" => ("redis", UrlKind::Cluster),
        "rediss+cluster" => ("rediss", UrlKind::Cluster),
        _ => return None,
    })
}

impl<'a> Parts<'a> {
    fn of(url: &'a str) -> Result<Self> {
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        let (scheme, kind) = kind_of(scheme).ok_or_else(|| unreadable("it is no URL of Redis"))?;
        if rest.contains('#') {
            return Err(unreadable(UNENCODED));
        }
        let (rest, query) = cut(rest, '?');
        let (authority, path) = cut(rest, '/');
        let login = authority.rfind('@').map_or("", |at| &authority[..=at]);
        let hosts: Vec<_> = authority[login.len()..].split(',').collect();
        let parts = Self {
            kind,
            scheme,
            login,
            hosts,
            path: match kind {
                UrlKind::Socket => path,
                _ => path.trim_matches('/'),
            },
            query,
        };
        parts.check()?;
        Ok(parts)
    }

    /// Refuses parts that redis-rs would ignore.
    fn check(&self) -> Result<()> {
        let is_socket = self.kind == UrlKind::Socket;
        if !is_socket && self.path.contains('@') {
            return Err(unreadable(UNENCODED));
        }
        if is_socket && (self.hosts != [""] || !self.login.is_empty()) {
            return Err(unreadable("the path of a socket has to begin with `/`"));
        }
        let has_several = matches!(self.kind, UrlKind::Sentinels | UrlKind::Cluster);
        if has_several && self.login.matches('@').count() > 1 {
            // Of hosts with a login each, all but the last would be taken for a password.
            let why =
                "the login stands once, before all hosts, and an `@` in it is percent-encoded";
            return Err(unreadable(why));
        }
        if self.kind == UrlKind::Server && self.hosts.len() > 1 {
            let why = "with several hosts it has to be redis+sentinel:// or redis+cluster://";
            return Err(unreadable(why));
        }
        let known: &[_] = match self.kind {
            UrlKind::Socket => &["db", "user", "pass", "protocol"],
            UrlKind::Sentinels => &["sentinel_user", "sentinel_password", "protocol"],
            UrlKind::Server | UrlKind::Cluster => &["protocol"],
        };
        let mut names: Vec<_> = self.parameters()?.map(|(name, _)| name).collect();
        // The error omits an unknown name: it may be the rest of a password.
        if !names.iter().all(|name| known.contains(&&**name)) {
            return Err(unreadable("a parameter has no meaning"));
        }
        names.sort();
        if names.windows(2).any(|two| two[0] == two[1]) {
            return Err(unreadable("a parameter is there twice"));
        }
        Ok(())
    }

    fn parameters(&self) -> Result<impl Iterator<Item = (String, String)>> {
        let url = redis::parse_redis_url(&format!("redis://host/{}", self.query));
        let url = url.ok_or_else(|| unreadable("what follows `?` cannot be read"))?;
        let pairs = url.query_pairs().into_owned();
        Ok(pairs.collect::<Vec<_>>().into_iter())
    }

    fn watched(&self) -> Result<Target> {
        let (master, database) = self.path.split_once('/').unwrap_or((self.path, ""));
        let is_number = master.bytes().all(|sign| sign.is_ascii_digit());
        if is_number && database.is_empty() {
            return Err(unreadable("the master has no name"));
        }
        Ok(Target::Watched {
            sentinels: self
                .hosts
                .iter()
                .map(|host| self.sentinel(host))
                .collect::<Result<_>>()?,
            master: master.to_owned(),
            server: self.client("server", database)?,
        })
    }

    fn sentinel(&self, host: &str) -> Result<Client> {
        let url = format!("{}://{host}/{}", self.scheme, self.query);
        let settings = open(&url, SENTINEL_PORT)?.get_connection_info().clone();
        let mut login = settings.redis_settings().clone();
        for (name, value) in self.parameters()? {
            login = match &*name {
                "sentinel_user" => login.set_username(value),
                "sentinel_password" => login.set_password(value),
                _ => login,
            };
        }
        checked(client_by(settings.set_redis_settings(login))?)
    }

    /// The client for one host, with the login, the protocol and this database.
    fn client(&self, host: &str, database: &str) -> Result<Client> {
        let (scheme, login, query) = (self.scheme, self.login, self.query);
        let url = format!("{scheme}://{login}{host}/{database}{query}");
        checked(open(&url, PORT)?)
    }
}

/// The client for the URL of one host, with this port unless the URL has another.
fn open(url: &str, port: u16) -> Result<Client> {
    if url.starts_with("rediss:") && !cfg!(feature = "tls-rustls") {
        let reason = "`rediss` takes TLS, which this build is without: enable the feature `tls-rustls` of leasehold";
        return Err(Error::invalid("url", reason));
    }
    let mut url = redis::parse_redis_url(url).ok_or_else(|| unreadable("it did not parse"))?;
    if url.port().is_none() {
        let _ = url.set_port(Some(port));
    }
    // After the colon redis-rs repeats a part of the URL.
    Client::open(url).map_err(|error| unreadable(cut(&error.to_string(), ':').0))
}

/// Refuses a user without a password: redis-rs would send neither, and the server would log us in
/// as another user than intended.
fn checked(client: Client) -> Result<Client> {
    let login = client.get_connection_info().redis_settings();
    if login.username().is_some() && login.password().unwrap_or_default().is_empty() {
        let why =
            "it has a user and no password: a password alone is written redis://:PASSWORD@host";
        return Err(unreadable(why));
    }
    Ok(client)
}

/// The error for a URL that cannot be read, with the valid forms.
fn unreadable(what: &str) -> Error {
    Error::invalid("url", format!("{what} (it has to be {FORMS})"))
}

/// Splits a text before the sign.
fn cut(text: &str, sign: char) -> (&str, &str) {
    text.split_at(text.find(sign).unwrap_or(text.len()))
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
            ("redis+sentinel://:secret@a,b/0", "master has no name"),
            ("redis+sentinel://:secret@a/?db=1", "no meaning"),
            (
                "redis+sentinel://:secret@a,:secret@b/m",
                "login stands once",
            ),
            ("redis+sentinel://:secret@m@a/0", "login stands once"),
            ("redis+sentinel://:secret@a,,b/m", "Missing hostname"),
            ("redis+sentinel://:secret@/m", "Missing hostname"),
            ("redis+sentinel://:secret@a:x/m", "did not parse"),
            ("redis+sentinel://:secret@a/m/x", "database"),
            ("redis+sentinel://:secret@a/3#m", "`#`"),
            ("redis+sentinel://a/m?sentinel_user=me", "redis://:PASSWORD"),
            ("redis-sentinel://:secret@a/m", "redis+sentinel://"),
            ("redis+sentinel://:secret@a/3?master=m", "no meaning"),
            ("redis://:secret@a/x", "database number"),
            ("redis://:secret@a/?db=1", "/database"),
            ("unix:///path?user=me", "redis://:PASSWORD@host"),
            ("redis://:secret@a/?timeout=3", "after `?` protocol"),
            ("redis://:secret@a/?sentinel_user=me", "no meaning"),
            ("redis://a/?secret", "no meaning"),
            ("redis://a/?protocol=resp3&secret", "no meaning"),
            ("redis://me:12?secret=1@a", "percent-encoded"),
            ("redis://me:12#secret@a", "percent-encoded"),
            ("redis://me:12?protocol=secret@a", "protocol version"),
            ("unix:///path?db=1&db=2", "twice"),
            ("redis://:secret@a/?protocol=resp2&protocol=resp3", "twice"),
            ("redis://:secret@a/#x", "`#`"),
            ("redis://secret@a", "redis://:PASSWORD@host"),
            ("redis://secret:@a", "redis://:PASSWORD@host"),
            ("redis://:secret@a,b:1/", "several hosts"),
            ("sentinel://a:1;sentinel://:secret@b:1", "redis+sentinel://"),
            ("redis+srv://:secret@a", "redis+cluster://"),
            ("unix://:secret@a/path", "begin with `/`"),
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
    fn a_url_of_one_server_is_as_redis_rs_has_it() {
        for url in ["redis://me:p%20%40@a:1/3", "redis://me:p%20%40@a:1/3/"] {
            let Ok(Target::Server(client)) = Target::of(url) else {
                unreachable!("{url}");
            };
            let settings = client.get_connection_info();
            let login = settings.redis_settings();
            assert_eq!(settings.addr().to_string(), "a:1");
            let said = (login.username(), login.password(), login.db());
            assert_eq!(said, (Some("me"), Some("p @"), 3), "{url}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_socket_has_a_login_too() {
        for url in [
            "redis+unix:///run/r@1.sock?db=3&user=me&pass=p",
            "unix:///run/r@1.sock?pass=p&db=3&user=me",
        ] {
            let Ok(Target::Server(client)) = Target::of(url) else {
                unreachable!("{url}");
            };
            let settings = client.get_connection_info();
            let login = settings.redis_settings();
            assert_eq!(settings.addr().to_string(), "/run/r@1.sock", "{url}");
            let said = (login.username(), login.password(), login.db());
            assert_eq!(said, (Some("me"), Some("p"), 3), "{url}");
        }
    }

    #[test]
    fn sentinels_may_have_a_login_of_their_own() {
        let url = "redis+sentinel://:p@a/m?sentinel_user=me&sentinel_password=q";
        let Ok(Target::Watched {
            sentinels, server, ..
        }) = Target::of(url)
        else {
            unreachable!();
        };
        let login = |client: &Client| {
            let login = client.get_connection_info().redis_settings();
            let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
            (text(login.username()), text(login.password()))
        };
        assert_eq!(login(&sentinels[0]), ("me".to_owned(), "q".to_owned()));
        assert_eq!(login(&server), (String::new(), "p".to_owned()));
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
            ("redis+cluster://:secret@a,,b", "did not parse"),
            ("redis+cluster://:secret@", "did not parse"),
            ("redis+cluster://:secret@a/x", "database"),
            ("redis+cluster://:secret@a:x", "did not parse"),
            ("redis+cluster://:secret@a,:secret@b", "login stands once"),
            ("redis://:secret@a", "no URL of a cluster"),
            ("x+cluster://:secret@a", "no URL of Redis"),
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
