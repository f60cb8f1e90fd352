//! Reads URLs: one server, a socket, sentinels, or some nodes of a cluster.
//!
//! redis-rs reads the URL of each single host. Every part has a meaning or is refused: a database or
//! a master that was ignored would send two programs to two places, where they do not exclude each
//! other. No error repeats a part that may belong to a password.

use std::collections::HashMap;

use redis::{Client, ProtocolVersion, RedisConnectionInfo};

use super::dial::client_by;
use crate::error::{Error, Result};

const PORT: u16 = 6_379;
const SENTINEL_PORT: u16 = 26_379;

/// Why the URL of a cluster leads to no pool.
#[cfg(feature = "cluster")]
const NO_POOL: &str = "a Redis Cluster has no one server that has all keys: take `Locks`, or `Nodes` for a connection to each master";
#[cfg(not(feature = "cluster"))]
const NO_POOL: &str = "this is a Redis Cluster, which this build is without: enable the feature `cluster` of leasehold";

const FORMS: &str = "\
    redis://[[user]:password@]host[:port][/database], \
    redis+unix:///path[?db=database], \
    redis+sentinel://[[user]:password@]sentinel[:port][,sentinel[:port]…]/master[/database], the password that of the servers, or \
    redis+cluster://[[user]:password@]node[:port][,node[:port]…]; \
    with `rediss` for TLS, the password percent-encoded, and after `?` \
    db, user, password and protocol, of sentinels sentinel_user and sentinel_password";

/// Parameters of every URL.
const PARAMETERS: [&str; 4] = ["db", "user", "password", "protocol"];
const OF_SENTINELS: [&str; 2] = ["sentinel_user", "sentinel_password"];

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
    /// The user and the password with the `@` that ends them, if there are any.
    login: &'a str,
    hosts: Vec<&'a str>,
    /// Of a socket with the `/` that it begins with.
    path: &'a str,
    /// `#insecure`, or nothing.
    fragment: &'a str,
    parameters: HashMap<String, String>,
}

impl Target {
    /// # Errors
    /// [`Error::Invalid`] if the URL cannot be read. The error does not repeat the URL, which may
    /// hold a password.
    pub(super) fn of(url: &str) -> Result<Self> {
        let parts = Parts::of(url)?;
        match parts.kind {
            UrlKind::Server => parts.client(parts.hosts[0], PORT, parts.path),
            UrlKind::Socket => parts.socket(),
            UrlKind::Sentinels => return parts.watched(),
            UrlKind::Cluster => Err(Error::invalid("url", NO_POOL)),
        }
        .map(Self::Server)
    }
}

/// Whether a URL is that of a cluster, readable or not.
#[cfg(feature = "cluster")]
pub(crate) fn is_of_a_cluster(url: &str) -> bool {
    let scheme = url
        .split_once("://")
        .and_then(|(scheme, _)| kind_of(scheme));
    scheme.is_some_and(|(_, kind)| kind == UrlKind::Cluster)
}

/// The nodes that the URL of a cluster names: each with the user and the password.
///
/// # Errors
/// [`Error::Invalid`] if the URL cannot be read. The error does not repeat the URL, which may hold a
/// password.
#[cfg(feature = "cluster")]
pub(super) fn nodes_of(url: &str) -> Result<Vec<Client>> {
    let parts = Parts::of(url)?;
    if parts.kind != UrlKind::Cluster {
        return Err(unreadable("this is no URL of a cluster"));
    }
    let node = |host: &&str| parts.client(host, PORT, parts.path);
    let nodes: Vec<_> = parts.hosts.iter().map(node).collect::<Result<_>>()?;
    let has_database = |node: &Client| node.get_connection_info().redis_settings().db() != 0;
    if nodes.iter().any(has_database) {
        return Err(unreadable("a cluster has no other database than 0"));
    }
    Ok(nodes)
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
        let (rest, fragment) = cut(rest, '#');
        let (rest, query) = cut(rest, '?');
        let (authority, path) = cut(rest, '/');
        let is_socket = kind == UrlKind::Socket;
        if !is_socket && [fragment, query, path].concat().contains('@') {
            let why = "a `/`, `?`, `#` or `@` in a password has to be percent-encoded";
            return Err(unreadable(why));
        }
        if !matches!((scheme, fragment), (_, "") | ("rediss", "#insecure")) {
            return Err(unreadable("what follows `#` has no meaning"));
        }
        if scheme == "rediss" && !cfg!(feature = "tls-rustls") {
            let reason = "`rediss` takes TLS, which this build is without: enable the feature `tls-rustls` of leasehold";
            return Err(Error::invalid("url", reason));
        }
        let login = authority.rfind('@').map_or("", |at| &authority[..=at]);
        let hosts: Vec<_> = authority[login.len()..].split(',').collect();
        if kind == UrlKind::Server && hosts.len() > 1 {
            let why = "with several hosts it has to be redis+sentinel:// or redis+cluster://";
            return Err(unreadable(why));
        }
        Ok(Self {
            kind,
            scheme,
            login,
            hosts,
            path: if is_socket {
                path
            } else {
                path.trim_matches('/')
            },
            fragment,
            parameters: parameters(query, kind)?,
        })
    }

    fn watched(&self) -> Result<Target> {
        let (master, database) = self.path.split_once('/').unwrap_or((self.path, ""));
        if master.is_empty() {
            return Err(unreadable("the master has no name"));
        }
        let sentinel = |host: &&str| {
            let text = format!("{}://{host}/{}", self.scheme, self.fragment);
            self.with_login(&text, SENTINEL_PORT, OF_SENTINELS)
        };
        Ok(Target::Watched {
            sentinels: self.hosts.iter().map(sentinel).collect::<Result<_>>()?,
            master: master.to_owned(),
            server: self.client("server", PORT, database)?,
        })
    }

    /// A socket has the login, the database and the protocol that any server has.
    fn socket(&self) -> Result<Client> {
        if self.hosts != [""] {
            return Err(unreadable("the path of a socket has to begin with `/`"));
        }
        let path = format!("redis+unix://{}", self.path);
        let path = Client::open(path).map_err(|error| unreadable(&error.to_string()))?;
        let login = self
            .client("socket", PORT, "")?
            .get_connection_info()
            .clone();
        client_by(login.set_addr(path.get_connection_info().addr().clone()))
    }

    /// The client for one host, with the login, the database and the protocol of the URL.
    fn client(&self, host: &str, port: u16, path: &str) -> Result<Client> {
        let (parameter, has_path) = (self.parameters.get("db"), !path.is_empty());
        let database = match (parameter, has_path) {
            (Some(_), true) => return Err(unreadable("it names two databases")),
            (Some(database), false) => database,
            (None, true) => path,
            (None, false) => "0",
        };
        if database.parse::<u32>().is_err() {
            return Err(unreadable("the database is no number"));
        }
        let (scheme, login) = (self.scheme, self.login);
        let text = format!("{scheme}://{login}{host}/{database}{}", self.fragment);
        self.with_login(&text, port, ["user", "password"])
    }

    /// The client for the URL of one host, with the user and the password of these parameters.
    fn with_login(&self, text: &str, port: u16, [user, password]: [&str; 2]) -> Result<Client> {
        let mut url = redis::parse_redis_url(text).ok_or_else(|| unreadable("it did not parse"))?;
        if url.port().is_none() {
            let _ = url.set_port(Some(port));
        }
        let client = Client::open(url).map_err(|error| unreadable(&error.to_string()))?;
        let settings = client.get_connection_info().clone();
        let mut login = settings.redis_settings().clone();
        if let Some(user) = self.parameters.get(user) {
            login = login.set_username(user);
        }
        if let Some(password) = self.parameters.get(password) {
            login = login.set_password(password);
        }
        login = login.set_protocol(match self.parameters.get("protocol").map(String::as_str) {
            None | Some("resp2") => ProtocolVersion::RESP2,
            Some("resp3") => ProtocolVersion::RESP3,
            Some(_) => return Err(unreadable("the protocol is `resp2` or `resp3`")),
        });
        check_login(&login)?;
        client_by(settings.set_redis_settings(login))
    }
}

/// Refuses a user without a password: redis-rs would send neither, and the server would let us in
/// as another user than is meant.
fn check_login(login: &RedisConnectionInfo) -> Result<()> {
    if login.username().is_some() && login.password().unwrap_or_default().is_empty() {
        let why =
            "it has a user and no password: a password alone is written redis://:PASSWORD@host";
        return Err(unreadable(why));
    }
    Ok(())
}

fn parameters(query: &str, kind: UrlKind) -> Result<HashMap<String, String>> {
    let read = redis::parse_redis_url(&format!("redis://host/{query}"));
    let read = read.ok_or_else(|| unreadable("what follows `?` cannot be read"))?;
    let mut parameters = HashMap::new();
    for (name, value) in read.query_pairs() {
        let is_of_sentinels = kind == UrlKind::Sentinels && OF_SENTINELS.contains(&&*name);
        let is_known = is_of_sentinels || PARAMETERS.contains(&&*name);
        // The error leaves an unknown name out: it may be the rest of a password.
        if !is_known || value.is_empty() {
            return Err(unreadable("a parameter has no meaning, or no value"));
        }
        if parameters
            .insert(name.into_owned(), value.into_owned())
            .is_some()
        {
            return Err(unreadable("a parameter comes twice"));
        }
    }
    Ok(parameters)
}

/// A URL that cannot be read, with all the forms that can.
fn unreadable(what: &str) -> Error {
    Error::invalid("url", format!("{what} (it has to be {FORMS})"))
}

/// What comes before the sign, and what begins with it.
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
            ("redis+sentinel://:secret@a,,b/m", "Missing hostname"),
            ("redis+sentinel://:secret@/m", "Missing hostname"),
            ("redis+sentinel://:secret@a:x/m", "did not parse"),
            ("redis+sentinel://:secret@a/m/x", "database"),
            ("redis+sentinel://:secret@a/m/1?db=2", "two databases"),
            ("redis+sentinel://:secret@a/3#m", "`#`"),
            ("redis+sentinel://a/m?sentinel_user=me", "redis://:PASSWORD"),
            ("redis-sentinel://:secret@a/m", "redis+sentinel://"),
            (
                "redis+sentinel://:secret@a/3?master=m",
                "no meaning, or no value",
            ),
            ("redis://:secret@a/1?db=2", "two databases"),
            ("redis://:secret@a/?db=1&db=2", "twice"),
            ("redis://:secret@a/?db=x", "no number"),
            ("redis://:secret@a/-1", "no number"),
            (
                "redis://:secret@a/?timeout=3",
                "db, user, password and protocol",
            ),
            ("redis://:secret@a/?sentinel_user=me", "no meaning"),
            ("redis://a/?secret", "no value"),
            ("redis://a/?password=x&secret", "no value"),
            ("redis://me:12?secret=1@a", "percent-encoded"),
            ("redis://me:12#secret@a", "percent-encoded"),
            ("redis://:secret@a/#x", "`#`"),
            ("redis://secret@a", "redis://:PASSWORD@host"),
            ("redis://secret:@a", "redis://:PASSWORD@host"),
            ("redis://a/?user=me", "redis://:PASSWORD@host"),
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
    fn a_parameter_says_what_another_part_of_the_url_may_say() {
        for url in [
            "redis+sentinel://:p@a:1,b/m/3",
            "redis+sentinel://:p@a:1,b/m/3/",
            "redis+sentinel://:p@a:1,b/m?db=3",
            "redis+sentinel://a:1,b/m/3?password=p",
        ] {
            let (sentinels, master, server) = watched(url);
            assert_eq!(sentinels, ["a:1", "b:26379"], "{url}");
            let login = server.get_connection_info().redis_settings();
            let login = (login.db(), login.password());
            assert_eq!((&*master, login), ("m", (3, Some("p"))), "{url}");
        }
        for url in [
            "redis://me:p%20%40@a:1/3",
            "redis://me:p%20%40@a:1?db=3",
            "redis://a:1/3?user=me&password=p+%40",
        ] {
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
            "redis+unix:///run/r@1.sock?db=3&user=me&password=p",
            "unix:///run/r@1.sock?password=p&db=3&user=me",
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
            ("redis+cluster://:secret@a/1", "database"),
            ("redis+cluster://:secret@a:x", "did not parse"),
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
