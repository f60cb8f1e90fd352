//! Reads URLs: one server, a socket, sentinels, or some nodes of a cluster.
//!
//! redis-rs parses the URL of each single host. Parts that it would ignore are errors here: with an
//! ignored database or master, two programs could use two places, where they do not exclude each
//! other. No error repeats a part that may belong to a password.

use std::collections::BTreeMap;

use redis::Client;

use super::dial::client_by;
use crate::error::{Error, Result};

const PORT: u16 = 6_379;
const SENTINEL_PORT: u16 = 26_379;

const FORMS: &str = "\
    redis://[[user]:password@]host[:port][/database], \
    redis+unix:///path, \
    redis+sentinel://[[user]:password@]sentinel[:port][,sentinel[:port]…]/master[/database], the password that of the servers, or \
    redis+cluster://[[user]:password@]node[:port][,node[:port]…]; \
    with `rediss` for TLS, the password percent-encoded, and after `?` \
    protocol, except for a cluster db, of a socket user and pass, of sentinels sentinel_user and sentinel_password";

const UNENCODED: &str = "a `/`, `?`, `#` or `@` in a password has to be percent-encoded";

/// The target of the connections.
pub(crate) enum Target {
    Server(Client),
    /// The server that these sentinels name.
    Watched {
        sentinels: Vec<Client>,
        master: String,
        /// Login, database and TLS of the master; its address is not used.
        server: Client,
    },
    /// Some nodes of a cluster.
    #[cfg(feature = "cluster")]
    Nodes(Vec<Client>),
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
    scheme: &'a str,
    /// The user and the password with the `@` after them, if there are any.
    login: &'a str,
    hosts: Vec<&'a str>,
    /// The path of a socket includes its first `/`.
    path: &'a str,
    /// Includes the `?` that it begins with, if there is any.
    query: &'a str,
    parameters: BTreeMap<String, String>,
}

impl Target {
    /// # Errors
    /// [`Error::Invalid`] if the URL cannot be read. The error does not repeat the URL, which may
    /// hold a password.
    pub(crate) fn of(url: &str) -> Result<Self> {
        // A form would read a space: a plus is a plus in the query too, as in the login before it.
        let (before, query) = cut(url, '?');
        let url = format!("{before}{}", query.replace('+', "%2B"));
        let parts = Parts::of(&url)?;
        match parts.kind {
            UrlKind::Server => Ok(Self::Server(parts.client(parts.hosts[0], parts.path)?)),
            UrlKind::Socket => {
                let url = format!("redis+unix://{}{}", parts.path, parts.query);
                Ok(Self::Server(checked(open(&url, PORT)?)?))
            }
            UrlKind::Sentinels => parts.watched(),
            #[cfg(feature = "cluster")]
            UrlKind::Cluster => {
                let nodes = parts.hosts.iter();
                let nodes = nodes.map(|host| parts.client(host, parts.path));
                Ok(Self::Nodes(nodes.collect::<Result<_>>()?))
            }
            #[cfg(not(feature = "cluster"))]
            UrlKind::Cluster => {
                let reason = "this is a Redis Cluster, which this build is without: enable the feature `cluster` of leasehold";
                Err(Error::invalid("url", reason))
            }
        }
    }
}

/// The nodes in the URL of a cluster, each with the user and the password.
///
/// # Errors
/// As [`Target::of`], and for any other URL.
#[cfg(feature = "cluster")]
pub(crate) fn nodes_of(url: &str) -> Result<Vec<Client>> {
    match Target::of(url)? {
        Target::Nodes(nodes) => Ok(nodes),
        _ => Err(unreadable("this is no URL of a cluster")),
    }
}

impl<'a> Parts<'a> {
    fn of(url: &'a str) -> Result<Self> {
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        let (kind, known): (_, &[_]) = match scheme {
            "redis" | "rediss" => (UrlKind::Server, &["db", "protocol"]),
            "redis+unix" | "unix" => (UrlKind::Socket, &["db", "protocol", "user", "pass"]),
            "redis+sentinel" | "rediss+sentinel" => {
                let known = &["db", "protocol", "sentinel_user", "sentinel_password"];
                (UrlKind::Sentinels, known)
            }
            "redis+cluster" | "rediss+cluster" => (UrlKind::Cluster, &["protocol"]),
            _ => return Err(unreadable("it is no URL of Redis")),
        };
        let (before, query) = cut(rest, '?');
        let (authority, path) = cut(before, '/');
        let login = authority.rfind('@').map_or("", |at| &authority[..=at]);
        let hosts: Vec<_> = authority[login.len()..].split(',').collect();
        let is_socket = kind == UrlKind::Socket;
        let is_one = kind == UrlKind::Server;
        let why = if rest.contains('#') || !is_socket && path.contains('@') {
            UNENCODED
        } else if is_socket && !authority.is_empty() {
            "the path of a socket has to begin with `/`"
        } else if is_one && hosts.len() > 1 {
            "with several hosts it has to be redis+sentinel:// or redis+cluster://"
        } else if !is_one && login.matches('@').count() > 1 {
            // Of hosts with a login each, all but the last would be taken for a password.
            "the login stands once, before all hosts, and an `@` in it is percent-encoded"
        } else {
            return Ok(Self {
                kind,
                scheme: cut(scheme, '+').0,
                login,
                hosts,
                path: if is_socket {
                    path
                } else {
                    path.trim_matches('/')
                },
                query,
                parameters: read_parameters(query, known)?,
            });
        };
        Err(unreadable(why))
    }

    fn watched(&self) -> Result<Target> {
        let (master, database) = self.path.split_once('/').unwrap_or((self.path, ""));
        let is_number = master.bytes().all(|sign| sign.is_ascii_digit());
        if is_number && database.is_empty() {
            return Err(unreadable("the master has no name"));
        }
        let sentinels = self.hosts.iter().map(|host| self.sentinel(host));
        Ok(Target::Watched {
            sentinels: sentinels.collect::<Result<_>>()?,
            master: master.to_owned(),
            server: self.client("server", database)?,
        })
    }

    fn sentinel(&self, host: &str) -> Result<Client> {
        let url = format!("{}://{host}/{}", self.scheme, self.query);
        let settings = open(&url, SENTINEL_PORT)?.get_connection_info().clone();
        let mut login = settings.redis_settings().clone();
        if let Some(user) = self.parameters.get("sentinel_user") {
            login = login.set_username(user);
        }
        if let Some(password) = self.parameters.get("sentinel_password") {
            login = login.set_password(password);
        }
        checked(client_by(settings.set_redis_settings(login))?)
    }

    /// The client for one host, with the login, the protocol and this database or that of `?db=`.
    fn client(&self, host: &str, database: &str) -> Result<Client> {
        let (scheme, login, query) = (self.scheme, self.login, self.query);
        let database = match self.parameters.get("db") {
            Some(_) if !database.is_empty() => {
                return Err(unreadable("the database is there twice"));
            }
            // redis-rs ignores it.
            Some(db) if !db.is_empty() && db.bytes().all(|sign| sign.is_ascii_digit()) => db,
            Some(_) => return Err(unreadable("`db` is no database number")),
            None => database,
        };
        let url = format!("{scheme}://{login}{host}/{database}{query}");
        checked(open(&url, PORT)?)
    }
}

fn read_parameters(query: &str, known: &[&str]) -> Result<BTreeMap<String, String>> {
    let url = redis::parse_redis_url(&format!("redis://host/{query}"));
    let url = url.ok_or_else(|| unreadable("what follows `?` cannot be read"))?;
    let mut parameters = BTreeMap::new();
    for (name, value) in url.query_pairs() {
        // The error omits an unknown name: it may be the rest of a password.
        if !known.contains(&&*name) {
            return Err(unreadable("a parameter has no meaning"));
        }
        let earlier = parameters.insert(name.into_owned(), value.into_owned());
        if earlier.is_some() {
            return Err(unreadable("a parameter is there twice"));
        }
    }
    Ok(parameters)
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
    // Behind these signs redis-rs repeats a part of the URL, and the kind of its error.
    let is_end = |sign| ":-".contains(sign);
    let before = |text: &str| {
        text.split(is_end)
            .next()
            .unwrap_or_default()
            .trim()
            .to_owned()
    };
    Client::open(url).map_err(|error| unreadable(&before(&error.to_string())))
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

    fn server(url: &str) -> Client {
        match Target::of(url) {
            Ok(Target::Server(client) | Target::Watched { server: client, .. }) => client,
            _ => unreachable!("{url}"),
        }
    }

    fn sentinels(url: &str) -> (Vec<Client>, String) {
        let Ok(Target::Watched {
            sentinels, master, ..
        }) = Target::of(url)
        else {
            unreachable!("{url}");
        };
        (sentinels, master)
    }

    fn addresses(clients: &[Client]) -> Vec<String> {
        let address = |client: &Client| client.get_connection_info().addr().to_string();
        clients.iter().map(address).collect()
    }

    /// The user, the password and the database.
    fn login(client: &Client) -> (Option<&str>, Option<&str>, i64) {
        let login = client.get_connection_info().redis_settings();
        (login.username(), login.password(), login.db())
    }

    fn is_resp3(client: &Client) -> bool {
        let settings = client.get_connection_info().redis_settings();
        settings.protocol().supports_resp3()
    }

    #[test]
    fn a_url_says_how_to_log_in_and_to_which_database() {
        for (url, expected) in [
            ("redis://me:p%20%40@a:1/3", (Some("me"), Some("p @"), 3)),
            ("redis://me:p@a/3/", (Some("me"), Some("p"), 3)),
            ("redis://:p@a?db=3", (None, Some("p"), 3)),
            ("redis://a/?db=3&protocol=resp3", (None, None, 3)),
            ("redis+sentinel://a/m", (None, None, 0)),
            ("redis+sentinel://a/m?db=3", (None, None, 3)),
            ("redis+sentinel://:p@a/m/3", (None, Some("p"), 3)),
        ] {
            assert_eq!(login(&server(url)), expected, "{url}");
        }
        assert!(is_resp3(&server("redis://a/?db=3&protocol=resp3")));
    }

    #[cfg(unix)]
    #[test]
    fn a_socket_has_a_login_too() {
        for url in [
            "redis+unix:///run/r@1.sock?db=3&user=me&pass=p",
            "unix:///run/r@1.sock?pass=p&db=3&user=me",
        ] {
            let client = server(url);
            let address = client.get_connection_info().addr().to_string();
            assert_eq!(address, "/run/r@1.sock", "{url}");
            assert_eq!(login(&client), (Some("me"), Some("p"), 3));
        }
    }

    #[test]
    fn a_url_names_sentinels_and_their_master() {
        let url = "redis+sentinel://me:p%40ss@a:1,b,[::1],[::2]:4/my.master-1_x/3?protocol=resp3";
        let (all, master) = sentinels(url);
        let expected = ["a:1", "b:26379", "::1:26379", "::2:4"];
        assert_eq!(addresses(&all), expected);
        assert_eq!(master, "my.master-1_x");
        assert!(
            all.iter()
                .all(|sentinel| login(sentinel) == (None, None, 0))
        );
        let master = server(url);
        assert_eq!(login(&master), (Some("me"), Some("p@ss"), 3));
        assert!(is_resp3(&master));
    }

    #[test]
    fn sentinels_may_have_a_login_of_their_own() {
        for (query, user) in [("", None), ("&sentinel_user=m%26e", Some("m&e"))] {
            let url = format!(
                "redis+sentinel://:p@a,b/m?sentinel_password=%2B%40%2F%3F%23%26%25q&db=2{query}"
            );
            for sentinel in sentinels(&url).0 {
                assert_eq!(login(&sentinel), (user, Some("+@/?#&%q"), 0));
            }
            assert_eq!(login(&server(&url)), (None, Some("p"), 2));
        }
    }

    #[test]
    fn a_plus_in_a_password_is_a_plus_wherever_it_stands() {
        let url = "redis+sentinel://:p+q@a/m?sentinel_password=a+b%20c";
        assert_eq!(login(&sentinels(url).0[0]), (None, Some("a+b c"), 0));
        assert_eq!(login(&server(url)), (None, Some("p+q"), 0));
        let socket = server("redis+unix:///path?pass=a+b");
        assert_eq!(login(&socket), (None, Some("a+b"), 0));
    }

    #[test]
    fn what_is_wrong_is_said_and_no_password_is_repeated() {
        for (url, why) in [
            ("redis+sentinel://:secret@a,b", "master has no name"),
            ("redis+sentinel://:secret@a,b/", "master has no name"),
            ("redis+sentinel://:secret@a,b/0", "master has no name"),
            ("redis+sentinel://:secret@a/?db=1", "master has no name"),
            (
                "redis+sentinel://:secret@a,:secret@b/m",
                "login stands once",
            ),
            ("redis+sentinel://:secret@m@a/0", "login stands once"),
            ("redis+sentinel://:secret@a,,b/m", "Missing hostname"),
            ("redis+sentinel://:secret@/m", "Missing hostname"),
            ("redis+sentinel://:secret@a:x/m", "did not parse"),
            ("redis+sentinel://:secret@a/m/x", "database"),
            ("redis+sentinel://:secret@a/m/1?db=1", "database is there"),
            ("redis+sentinel://:secret@a/3#m", "`#`"),
            ("redis+sentinel://a/m?sentinel_user=me", "redis://:PASSWORD"),
            ("redis-sentinel://:secret@a/m", "redis+sentinel://"),
            ("redis+sentinel://:secret@a/3?master=m", "no meaning"),
            ("redis://:secret@a/x", "database number"),
            ("redis://:secret@a/1?db=1", "database is there twice"),
            ("redis://:secret@a/?db=sec", "database number"),
            ("redis://:secret@a/?db=", "database number"),
            ("redis://:secret@a/?db=1?protocol=resp3", "database number"),
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
            ("redis://:sec/ret@a", "redis://[[user]"),
        ] {
            let error = Target::of(url).map(drop).unwrap_err();
            assert_says(&error, why, url);
        }
    }

    fn assert_says(error: &Error, why: &str, url: &str) {
        let Error::Invalid { argument, reason } = error else {
            unreachable!("{url}: {error}");
        };
        assert_eq!(*argument, "url");
        let tells_no_secret = !reason.replace(FORMS, "").contains("sec");
        assert!(reason.contains(why) && tells_no_secret, "{url}: {reason}");
        assert!(!reason.contains("InvalidClientConfig"), "{url}: {reason}");
    }

    #[cfg(feature = "cluster")]
    #[test]
    fn a_url_of_a_cluster_names_nodes_and_how_to_log_in_there() {
        let nodes = nodes_of("redis+cluster://me:p%40ss@a:1,b,[::1]/?protocol=resp3").unwrap();
        assert_eq!(addresses(&nodes), ["a:1", "b:6379", "::1:6379"]);
        for node in &nodes {
            assert_eq!(login(node), (Some("me"), Some("p@ss"), 0));
            assert!(is_resp3(node));
        }
        for (url, why) in [
            ("redis+cluster://:secret@a,,b", "did not parse"),
            ("redis+cluster://:secret@", "did not parse"),
            ("redis+cluster://:secret@a/x", "database"),
            ("redis+cluster://:secret@a?db=0", "no meaning"),
            ("redis+cluster://:secret@a:x", "did not parse"),
            ("redis+cluster://:secret@a,:secret@b", "login stands once"),
            ("redis://:secret@a", "no URL of a cluster"),
            ("x+cluster://:secret@a", "no URL of Redis"),
        ] {
            assert_says(&nodes_of(url).unwrap_err(), why, url);
        }
    }
}
