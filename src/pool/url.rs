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

const UNENCODED: &str = "percent-encode a `/`, `?`, `#` or `@` in the password";

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
    /// [`Error::Invalid`] if the URL is not valid. The error does not repeat the URL, which may
    /// hold a password.
    pub(crate) fn of(url: &str) -> Result<Self> {
        // Keep a plus in the query, as in the login before it; form decoding would turn it into a
        // space.
        let (before, query) = cut(url, '?');
        let url = format!("{before}{}", query.replace('+', "%2B"));
        let parts = Parts::of(&url)?;
        match parts.kind {
            UrlKind::Server => Ok(Self::Server(parts.client(parts.hosts[0], parts.path)?)),
            UrlKind::Socket => {
                let url = format!("redis+unix://{}{}", parts.path, parts.query);
                Ok(Self::Server(parts.kind.open(&url, PORT)?))
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
                let reason = "this build does not support Redis Cluster: enable the feature `cluster` of leasehold";
                Err(Error::invalid("url", reason))
            }
        }
    }
}

/// Returns the nodes in the URL of a cluster, each with the user and the password.
///
/// # Errors
/// As for [`Target::of`], and for any other URL.
#[cfg(feature = "cluster")]
pub(crate) fn nodes_of(url: &str) -> Result<Vec<Client>> {
    match Target::of(url)? {
        Target::Nodes(nodes) => Ok(nodes),
        _ => Err(UrlKind::Cluster.invalid("this is not the URL of a cluster")),
    }
}

impl<'a> Parts<'a> {
    fn of(url: &'a str) -> Result<Self> {
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        let (kind, known): (_, &[_]) = match scheme {
            "redis" | "rediss" => (UrlKind::Server, &["protocol"]),
            "redis+unix" | "unix" => (UrlKind::Socket, &["db", "protocol", "user", "pass"]),
            "redis+sentinel" | "rediss+sentinel" => {
                let known = &["protocol", "sentinel_user", "sentinel_password"];
                (UrlKind::Sentinels, known)
            }
            "redis+cluster" | "rediss+cluster" => (UrlKind::Cluster, &["protocol"]),
            _ => {
                let reason = "it must begin with redis://, rediss://, redis+unix://, \
                              redis+sentinel:// or redis+cluster://";
                return Err(Error::invalid("url", reason));
            }
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
            "the path of a socket must begin with `/`"
        } else if is_one && hosts.len() > 1 {
            "several hosts require redis+sentinel:// or redis+cluster://"
        } else if !is_one && login.matches('@').count() > 1 {
            // If each host had a login, all hosts but the last would be taken for a password.
            "write the login once, before all hosts, and percent-encode an `@` in it"
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
                parameters: kind.read_parameters(query, known)?,
            });
        };
        Err(kind.invalid(why))
    }

    fn watched(&self) -> Result<Target> {
        let (master, database) = self.path.split_once('/').unwrap_or((self.path, ""));
        let is_number = master.bytes().all(|sign| sign.is_ascii_digit());
        if is_number && database.is_empty() {
            return Err(self.kind.invalid("the name of the master is missing"));
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
        let client = self.kind.parse(&url, SENTINEL_PORT)?;
        let settings = client.get_connection_info().clone();
        let mut login = settings.redis_settings().clone();
        if let Some(user) = self.parameters.get("sentinel_user") {
            login = login.set_username(user);
        }
        if let Some(password) = self.parameters.get("sentinel_password") {
            login = login.set_password(password);
        }
        (self.kind).checked(client_by(settings.set_redis_settings(login))?)
    }

    /// The client for one host, with the login, the protocol and this database.
    fn client(&self, host: &str, database: &str) -> Result<Client> {
        let (scheme, login, query) = (self.scheme, self.login, self.query);
        let url = format!("{scheme}://{login}{host}/{database}{query}");
        self.kind.open(&url, PORT)
    }
}

impl UrlKind {
    /// Returns the client for the URL of one host, with this port unless the URL has another.
    fn open(self, url: &str, port: u16) -> Result<Client> {
        self.checked(self.parse(url, port)?)
    }

    fn parse(self, url: &str, port: u16) -> Result<Client> {
        if url.starts_with("rediss:") && !cfg!(feature = "tls-rustls") {
            let reason =
                "this build does not support TLS: enable the feature `tls-rustls` of leasehold";
            return Err(Error::invalid("url", reason));
        }
        let url = redis::parse_redis_url(url);
        let mut url = url.ok_or_else(|| self.invalid("a host or port is not valid"))?;
        if url.port().is_none() {
            let _ = url.set_port(Some(port));
        }
        // After these characters redis-rs repeats a part of the URL, and the kind of its error.
        let is_end = |sign| ":-".contains(sign);
        let before = |text: &str| {
            text.split(is_end)
                .next()
                .unwrap_or_default()
                .trim()
                .to_owned()
        };
        Client::open(url).map_err(|error| self.invalid(&before(&error.to_string())))
    }

    /// Refuses a user without a password: redis-rs would send neither, and the server would log us
    /// in as a user other than intended.
    fn checked(self, client: Client) -> Result<Client> {
        let login = client.get_connection_info().redis_settings();
        if login.username().is_some() && login.password().unwrap_or_default().is_empty() {
            let why = "a user without a password; write a password alone as redis://:PASSWORD@host";
            return Err(self.invalid(why));
        }
        Ok(client)
    }

    fn read_parameters(self, query: &str, known: &[&str]) -> Result<BTreeMap<String, String>> {
        let url = redis::parse_redis_url(&format!("redis://host/{query}"));
        let url = url.ok_or_else(|| self.invalid("the part after `?` is not valid"))?;
        let mut parameters = BTreeMap::new();
        for (name, value) in url.query_pairs() {
            // The error omits an unknown name: it may be the rest of a password.
            if !known.contains(&&*name) {
                if query.contains('@') {
                    return Err(self.invalid(UNENCODED));
                }
                let known = known.join(", ");
                let reason = format!("unknown parameter after `?`; known: {known}");
                return Err(Error::invalid("url", reason));
            }
            let earlier = parameters.insert(name.into_owned(), value.into_owned());
            if earlier.is_some() {
                return Err(self.invalid("a parameter is given twice"));
            }
        }
        Ok(parameters)
    }

    /// Returns the error for a URL that is not valid, with the form that fits its scheme.
    fn invalid(self, what: &str) -> Error {
        let form = match self {
            Self::Server => "redis://[[user]:password@]host[:port][/database]",
            Self::Socket => "redis+unix:///path",
            Self::Sentinels => {
                "redis+sentinel://[[user]:password@]sentinel[:port][,…]/master[/database]"
            }
            Self::Cluster => "redis+cluster://[[user]:password@]node[:port][,…]",
        };
        Error::invalid("url", format!("{what} (expected {form})"))
    }
}

/// Splits a text before the first `sign`.
fn cut(text: &str, sign: char) -> (&str, &str) {
    text.split_at(text.find(sign).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::reasons::shown;

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
        let address = |client: &Client| shown(client.get_connection_info().addr());
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
    fn a_url_gives_login_and_database() {
        for (url, expected) in [
            ("redis://me:p%20%40@a:1/3", (Some("me"), Some("p @"), 3)),
            ("redis://me:p@a/3/", (Some("me"), Some("p"), 3)),
            ("redis://:p@a/3", (None, Some("p"), 3)),
            ("redis://a/3?protocol=resp3", (None, None, 3)),
            ("redis+sentinel://a/m", (None, None, 0)),
            ("redis+sentinel://:p@a/m/3", (None, Some("p"), 3)),
        ] {
            assert_eq!(login(&server(url)), expected, "{url}");
        }
        assert!(is_resp3(&server("redis://a/3?protocol=resp3")));
    }

    #[cfg(unix)]
    #[test]
    fn a_unix_socket_takes_a_login() {
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
    fn a_sentinel_url_gives_hosts_and_master() {
        let url = "redis+sentinel://me:p%40ss@a:1,b,[::1],[::2]:4/my.master-1_x/3?protocol=resp3";
        let (all, master) = sentinels(url);
        let expected = ["a:1", "b:26379", "[::1]:26379", "[::2]:4"];
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
    fn sentinels_may_have_their_own_login() {
        for (query, user) in [("", None), ("&sentinel_user=m%26e", Some("m&e"))] {
            let url = format!(
                "redis+sentinel://:p@a,b/m/2?sentinel_password=%2B%40%2F%3F%23%26%25q{query}"
            );
            for sentinel in sentinels(&url).0 {
                assert_eq!(login(&sentinel), (user, Some("+@/?#&%q"), 0));
            }
            assert_eq!(login(&server(&url)), (None, Some("p"), 2));
        }
    }

    #[test]
    fn a_plus_in_a_password_stays_a_plus() {
        let url = "redis+sentinel://:p+q@a/m?sentinel_password=a+b%20c";
        assert_eq!(login(&sentinels(url).0[0]), (None, Some("a+b c"), 0));
        assert_eq!(login(&server(url)), (None, Some("p+q"), 0));
        let socket = server("redis+unix:///path?pass=a+b");
        assert_eq!(login(&socket), (None, Some("a+b"), 0));
    }

    #[test]
    fn an_error_names_the_fault_and_repeats_no_password() {
        for (url, why) in [
            ("redis+sentinel://:secret@a,b", "name of the master"),
            ("redis+sentinel://:secret@a,b/", "name of the master"),
            ("redis+sentinel://:secret@a,b/0", "name of the master"),
            (
                "redis+sentinel://:secret@a/?protocol=resp3",
                "name of the master",
            ),
            ("redis+sentinel://:secret@a,:secret@b/m", "login once"),
            ("redis+sentinel://:secret@m@a/0", "login once"),
            ("redis+sentinel://:secret@a,,b/m", "Missing hostname"),
            ("redis+sentinel://:secret@/m", "Missing hostname"),
            ("redis+sentinel://:secret@a:x/m", "host or port"),
            ("redis+sentinel://:secret@a/m/x", "database"),
            ("redis+sentinel://:secret@a/m?db=1", "unknown parameter"),
            ("redis+sentinel://:secret@a/3#m", "`#`"),
            ("redis+sentinel://a/m?sentinel_user=me", "redis://:PASSWORD"),
            ("redis-sentinel://:secret@a/m", "redis+sentinel://"),
            ("redis+sentinel://:secret@a/3?master=m", "unknown parameter"),
            ("redis://:secret@a/x", "database number"),
            ("redis://:secret@a/?db=1", "known: protocol"),
            ("unix:///path?user=me", "redis://:PASSWORD@host"),
            ("redis://:secret@a/?timeout=3", "known: protocol"),
            ("redis://:secret@a/?sentinel_user=me", "unknown parameter"),
            ("redis://a/?secret", "unknown parameter"),
            ("redis://a/?protocol=resp3&secret", "unknown parameter"),
            ("redis://me:12?secret=1@a", "percent-encode a"),
            ("redis://me:12#secret@a", "percent-encode a"),
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
        let Error::Invalid {
            argument, reason, ..
        } = error
        else {
            unreachable!("{url}: {error}");
        };
        assert_eq!(*argument, "url");
        let tells_no_secret = !reason.contains("sec");
        assert!(reason.contains(why) && tells_no_secret, "{url}: {reason}");
        assert!(reason.chars().count() <= 160, "{url}: {reason}");
        assert!(!reason.contains("InvalidClientConfig"), "{url}: {reason}");
    }

    #[cfg(feature = "cluster")]
    #[test]
    fn a_cluster_url_gives_nodes_and_login() {
        let nodes = nodes_of("redis+cluster://me:p%40ss@a:1,b,[::1]/?protocol=resp3").unwrap();
        assert_eq!(addresses(&nodes), ["a:1", "b:6379", "[::1]:6379"]);
        for node in &nodes {
            assert_eq!(login(node), (Some("me"), Some("p@ss"), 0));
            assert!(is_resp3(node));
        }
        for (url, why) in [
            ("redis+cluster://:secret@a,,b", "host or port"),
            ("redis+cluster://:secret@", "host or port"),
            ("redis+cluster://:secret@a/x", "database"),
            ("redis+cluster://:secret@a?db=0", "unknown parameter"),
            ("redis+cluster://:secret@a:x", "host or port"),
            ("redis+cluster://:secret@a,:secret@b", "login once"),
            ("redis://:secret@a", "not the URL of a cluster"),
            ("x+cluster://:secret@a", "must begin with"),
        ] {
            assert_says(&nodes_of(url).unwrap_err(), why, url);
        }
    }
}
