//! What a URL says of where to connect to.

mod parts;

use redis::{Client, RedisError};

use super::dial::client_by;
use crate::error::{Error, Result};
#[cfg(feature = "cluster")]
use parts::kind_of;
use parts::{Kind, Parts, unreadable};

#[cfg(feature = "cluster")]
const PORT: u16 = 6_379;
const SENTINEL_PORT: u16 = 26_379;

/// Why the URL of a cluster leads to no pool.
#[cfg(feature = "cluster")]
const NO_POOL: &str = "a Redis Cluster has no one server that has all keys: take `Locks`, or `Nodes` for a connection to each master";
#[cfg(not(feature = "cluster"))]
const NO_POOL: &str = "this is a Redis Cluster, which this build is without: enable the feature `cluster` of leasehold";

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
    /// [`Error::Invalid`] if the URL cannot be read. It does not repeat the URL, which may hold a
    /// password.
    pub(super) fn of(url: &str) -> Result<Self> {
        let parts = Parts::of(url)?;
        match parts.kind {
            Kind::Server => Ok(Self::Server(at(
                &parts,
                &parts.hosts[0],
                parts.database(parts.path)?,
            )?)),
            Kind::Socket => socket(&parts).map(Self::Server),
            Kind::Sentinels => watched(&parts),
            Kind::Cluster => Err(Error::invalid("url", NO_POOL)),
        }
    }
}

/// redis-rs reads URLs of one host: each sentinel gets one, and so does the master.
fn watched(parts: &Parts<'_>) -> Result<Target> {
    let (first, rest) = parts.path.split_once('/').unwrap_or((parts.path, ""));
    let is_number = !first.is_empty() && first.chars().all(|sign| sign.is_ascii_digit());
    let (master, database) = match parts.parameters.master.as_deref() {
        // As Lettuce and fred have it: the path is the database alone.
        Some(master) if rest.is_empty() && (is_number || first.is_empty()) => (master, first),
        Some(master) if master != first => return Err(unreadable("it names two masters")),
        _ => (first, rest),
    };
    if master.is_empty() || parts.parameters.master.is_none() && is_number && rest.is_empty() {
        return Err(unreadable("the master has no name"));
    }
    let sentinel = |host: &String| {
        let host = with_port(host, SENTINEL_PORT);
        let client = open(&format!("{}://{host}/{}", parts.scheme, parts.insecure))?;
        let (user, password) = (
            parts.parameters.sentinel_user.as_deref(),
            parts.parameters.sentinel_password.as_deref(),
        );
        with_login(&client, user, password, 0)
    };
    Ok(Target::Watched {
        sentinels: parts.hosts.iter().map(sentinel).collect::<Result<_>>()?,
        master: master.to_owned(),
        server: at(parts, "server", parts.database(database)?)?,
    })
}

/// Whether a URL is that of a cluster, readable or not.
#[cfg(feature = "cluster")]
pub(crate) fn is_of_a_cluster(url: &str) -> bool {
    let scheme = url.split_once("://").map(|(scheme, _)| scheme);
    let kind = scheme.and_then(kind_of).map(|(_, kind)| kind);
    kind == Some(Kind::Cluster)
}

/// The nodes that the URL of a cluster names: each with the user and the password.
///
/// # Errors
/// [`Error::Invalid`] if the URL cannot be read. It does not repeat the URL, which may hold a
/// password.
#[cfg(feature = "cluster")]
pub(super) fn nodes_of(url: &str) -> Result<Vec<Client>> {
    let parts = Parts::of(url)?;
    if parts.kind != Kind::Cluster {
        return Err(unreadable("this is no URL of a cluster"));
    }
    if parts.database(parts.path)? != 0 {
        return Err(unreadable("a cluster has no other database than 0"));
    }
    let node = |host: &String| at(&parts, &with_port(host, PORT), 0);
    parts.hosts.iter().map(node).collect()
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

/// A socket has the login and the protocol that any server has.
fn socket(parts: &Parts<'_>) -> Result<Client> {
    let client = open(&format!("redis+unix://{}", parts.path))?;
    let path = client.get_connection_info().addr().clone();
    let login = at(parts, "socket", parts.database("")?)?;
    client_by(login.get_connection_info().clone().set_addr(path))
}

/// The client for one host, with the login, the protocol and the database of the URL.
fn at(parts: &Parts<'_>, host: &str, database: i64) -> Result<Client> {
    let Parts {
        scheme,
        login,
        insecure,
        parameters,
        ..
    } = parts;
    let protocol = parameters.protocol.as_deref();
    let protocol = protocol.map_or(String::new(), |name| format!("?protocol={name}"));
    let client = open(&format!("{scheme}://{login}{host}/{protocol}{insecure}"))?;
    let (user, password) = (parameters.user.as_deref(), parameters.password.as_deref());
    with_login(&client, user, password, database)
}

fn with_login(
    client: &Client,
    user: Option<&str>,
    password: Option<&str>,
    database: i64,
) -> Result<Client> {
    let settings = client.get_connection_info().clone();
    let mut login = settings.redis_settings().clone().set_db(database);
    if let Some(user) = user {
        login = login.set_username(user);
    }
    if let Some(password) = password {
        login = login.set_password(password);
    }
    client_by(settings.set_redis_settings(login))
}

/// Mostly it is a password that is not encoded.
fn open(url: &str) -> Result<Client> {
    if url.starts_with("rediss:") && !cfg!(feature = "tls-rustls") {
        let reason = "`rediss` takes TLS, which this build is without: enable the feature `tls-rustls` of leasehold";
        return Err(Error::invalid("url", reason));
    }
    Client::open(url).map_err(|error: RedisError| unreadable(&error.to_string()))
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
            ("redis+sentinel://:secret@a/0", "master has no name"),
            ("redis+sentinel://:secret@a/m?master=n", "two masters"),
            ("redis+sentinel://:secret@a/m/1?db=2", "two databases"),
            ("redis+sentinel://:secret@a/m#n", "two masters"),
            ("redis+sentinel://a/?master=m&service_name=m", "twice"),
            ("redis://:secret@a/1?db=2", "two databases"),
            ("redis://:secret@a/?db=x", "no number"),
            ("redis://:secret@a/-1", "no number"),
            ("redis://:secret@a/?timeout=3", "`timeout`"),
            ("redis://:secret@a/?master=m", "`master`"),
            ("redis://a/?secret", "no value"),
            ("redis://a/?password=x&secret", "no value"),
            ("redis+sentinel://:secret@m@a:1/0", "behind `/`"),
            ("redis://:secret@a/?node=b", "`node`"),
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
    fn a_url_as_other_libraries_write_it_leads_to_the_same_place() {
        for url in [
            "redis-sentinel://:p@a:1,b/3?sentinelMasterId=m",
            "redis-sentinel://:p@a:1,b/3#m",
            "redis+sentinel://:p@a:1,b/m?db=3",
            "REDIS+SENTINEL://:p@a:1,b/m/3/",
            "redis+sentinel://a:1,b/?service_name=m&db=3&password=p",
            "redis-sentinel://:p@a:1/3?sentinelServiceName=m&node=b",
            "valkey-sentinel://:p@a:1,b/m/3?db=3&master=m",
            "sentinel://:p@a:1,b?master_name=m&database=3",
        ] {
            let (sentinels, master, server) = watched(url);
            assert_eq!(sentinels, ["a:1", "b:26379"], "{url}");
            let login = server.get_connection_info().redis_settings();
            let login = (login.db(), login.password());
            assert_eq!((&*master, login), ("m", (3, Some("p"))), "{url}");
        }
        for url in [
            "redis-cluster://:p@a:1,b",
            "redis+cluster://a:1/0?node=b:6379&password=p",
            "valkey+cluster://:p@a:1,b/",
            "cluster://:p@a:1,b?db=0",
        ] {
            assert!(is_of_a_cluster(url));
            let nodes = nodes_of(url).unwrap();
            let nodes: Vec<_> = (nodes.iter().map(Client::get_connection_info))
                .map(|node| (node.addr().to_string(), node.redis_settings().password()))
                .collect();
            let password = Some("p");
            let expected = [
                ("a:1".to_owned(), password),
                ("b:6379".to_owned(), password),
            ];
            assert_eq!(nodes, expected, "{url}");
        }
        for url in [
            "redis://me:p%20%40@a:1/3",
            "valkey://me:p%20%40@a:1?db=3",
            "redis://a:1/3?username=me&password=p+%40&db=3",
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
            "redis+unix:///run/r@1.sock?db=3&user=me&pass=p",
            "redis-socket://me:p@/run/r@1.sock?database=3",
            "redis+socket:///run/r@1.sock?virtual_host=3&username=me&password=p",
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
        let url = "redis+sentinel://:p@a/m?sentinel_username=me&sentinelPassword=q";
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
            ("redis+cluster://:secret@a,,b", "node has no host"),
            ("redis+cluster://:secret@", "node has no host"),
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
