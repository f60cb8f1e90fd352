//! The parts of a URL, whichever library it was written for.
//!
//! Nothing of a URL is passed over: what has no meaning here is refused, since a database or a
//! master that is passed over sends two programs of one URL to two places, where they do not
//! exclude each other. No error repeats what may be a part of a password.

use crate::error::{Error, Result};

const FORMS: &str = "\
    redis://[[user]:password@]host[:port][/database], \
    redis+unix:///path[?db=database], \
    redis+sentinel://[[user]:password@]sentinel[:port][,sentinel[:port]…]/master[/database], the password that of the servers, or \
    redis+cluster://[[user]:password@]node[:port][,node[:port]…]; \
    with `rediss` for TLS, the password percent-encoded, and after `?` \
    db, user, password and protocol, of sentinels and nodes node, of sentinels master, sentinel_user and sentinel_password";

/// What a URL leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Server,
    Socket,
    Sentinels,
    Cluster,
}

/// A URL, taken apart, with nothing decoded but its parameters.
pub(super) struct Parts<'a> {
    pub(super) kind: Kind,
    /// `redis` or, for TLS, `rediss`.
    pub(super) scheme: &'static str,
    /// The user and the password with the `@` that ends them, if there are any.
    pub(super) login: &'a str,
    /// Not one of them is empty, except that of a socket.
    pub(super) hosts: Vec<String>,
    /// Without the `/` at its beginning, unless it is that of a socket.
    pub(super) path: &'a str,
    /// `#insecure`, or nothing.
    pub(super) insecure: &'static str,
    pub(super) parameters: Parameters,
}

/// What stands after `?`.
#[derive(Default)]
pub(super) struct Parameters {
    pub(super) database: Option<String>,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    pub(super) protocol: Option<String>,
    pub(super) master: Option<String>,
    pub(super) sentinel_user: Option<String>,
    pub(super) sentinel_password: Option<String>,
    nodes: Vec<String>,
}

/// A URL that cannot be read, with all the forms that can.
pub(super) fn unreadable(what: &str) -> Error {
    Error::invalid("url", format!("{what} (it has to be {FORMS})"))
}

impl<'a> Parts<'a> {
    pub(super) fn of(url: &'a str) -> Result<Self> {
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        let (scheme, kind) = kind_of(scheme).ok_or_else(|| unreadable("it is no URL of Redis"))?;
        let (rest, fragment) = cut(rest, '#');
        let (rest, query) = cut(rest, '?');
        let (authority, path) = cut(rest, '/');
        if kind != Kind::Socket && [fragment, query, path].concat().contains('@') {
            let why = "a `/`, `?`, `#` or `@` in a password has to be percent-encoded";
            return Err(unreadable(why));
        }
        let login = authority.rfind('@').map_or("", |at| &authority[..=at]);
        let hosts = authority[login.len()..].split(',').map(str::to_owned);
        let mut parts = Self {
            kind,
            scheme,
            login,
            hosts: hosts.collect(),
            path: match kind {
                Kind::Socket => path,
                _ => path.trim_start_matches('/').trim_end_matches('/'),
            },
            insecure: "",
            parameters: Parameters::of(query, kind)?,
        };
        parts.take_fragment(fragment.trim_start_matches('#'))?;
        parts.hosts.append(&mut parts.parameters.nodes);
        parts.check()?;
        Ok(parts)
    }

    /// Behind `#` stands how TLS is checked or, as Lettuce writes it, the master's name.
    fn take_fragment(&mut self, fragment: &str) -> Result<()> {
        match fragment {
            "" => Ok(()),
            "insecure" if self.scheme == "rediss" => {
                self.insecure = "#insecure";
                Ok(())
            }
            master if self.kind == Kind::Sentinels => {
                enter(&mut self.parameters.master, master.to_owned(), "the master")
            }
            _ => Err(unreadable("what follows `#` has no meaning")),
        }
    }

    fn check(&self) -> Result<()> {
        let is_empty = self.hosts.iter().any(String::is_empty);
        match self.kind {
            Kind::Server if self.hosts.len() > 1 => Err(unreadable(
                "of several hosts it has to say whether they are sentinels or nodes of a cluster",
            )),
            Kind::Server if is_empty => Err(unreadable("it has no host")),
            Kind::Sentinels if is_empty => Err(unreadable("a sentinel has no host")),
            Kind::Cluster if is_empty => Err(unreadable("a node has no host")),
            Kind::Socket if self.hosts != [""] => {
                Err(unreadable("the path of a socket has to begin with `/`"))
            }
            _ => self.check_login(),
        }
    }

    /// The server would be sent neither: to be let in as another user than is meant is nobody's
    /// wish.
    fn check_login(&self) -> Result<()> {
        let login = self.login.trim_end_matches('@');
        if login.contains('@') && self.kind != Kind::Server {
            let why =
                "an `@` in a password has to be percent-encoded, and a master stands behind `/`";
            return Err(unreadable(why));
        }
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        let has_user = !user.is_empty() || self.parameters.user.is_some();
        if has_user && password.is_empty() && self.parameters.password.is_none() {
            return Err(unreadable(
                "it has a user and no password: a password alone is written redis://:PASSWORD@host",
            ));
        }
        Ok(())
    }

    /// The database that the path or a parameter names.
    pub(super) fn database(&self, in_path: &str) -> Result<i64> {
        let parameter = self.parameters.database.as_deref();
        let parameter = parameter.map(|database| database.trim_start_matches('/'));
        let both = [Some(in_path).filter(|name| !name.is_empty()), parameter];
        let mut databases = both.into_iter().flatten().map(str::parse::<u32>);
        let first = databases.next().unwrap_or(Ok(0));
        let first = first.map_err(|_| unreadable("the database is no number"))?;
        match databases.next() {
            Some(second) if second != Ok(first) => Err(unreadable("it names two databases")),
            _ => Ok(first.into()),
        }
    }
}

impl Parameters {
    fn of(query: &str, kind: Kind) -> Result<Self> {
        let mut parameters = Self::default();
        // The library that reads the rest knows how they are encoded.
        let read = redis::parse_redis_url(&format!("redis://host/{query}"));
        let read = read.ok_or_else(|| unreadable("what follows `?` cannot be read"))?;
        for (name, value) in read.query_pairs() {
            parameters.take(&name, value.into_owned(), kind)?;
        }
        Ok(parameters)
    }

    /// Every library has its own spelling.
    fn take(&mut self, name: &str, value: String, kind: Kind) -> Result<()> {
        let spelt = name.to_ascii_lowercase().replace(['_', '-'], "");
        let watched = kind == Kind::Sentinels;
        let (place, what) = match spelt.as_str() {
            "db" | "database" | "virtualhost" => (&mut self.database, "the database"),
            "user" | "username" => (&mut self.user, "the user"),
            "pass" | "password" => (&mut self.password, "the password"),
            "protocol" => (&mut self.protocol, "the protocol"),
            "master"
            | "mastername"
            | "servicename"
            | "sentinelmaster"
            | "sentinelmasterid"
            | "sentinelmastername"
            | "sentinelservicename"
                if watched =>
            {
                (&mut self.master, "the master")
            }
            "sentineluser" | "sentinelusername" if watched => {
                (&mut self.sentinel_user, "the sentinels' user")
            }
            "sentinelpass" | "sentinelpassword" if watched => {
                (&mut self.sentinel_password, "the sentinels' password")
            }
            "node" if watched || kind == Kind::Cluster => {
                self.nodes.push(value);
                return Ok(());
            }
            // It may be the rest of a password.
            _ if value.is_empty() => return Err(unreadable("a parameter has no value")),
            _ => return Err(unreadable(&format!("there is no parameter `{name}`"))),
        };
        enter(place, value, what)
    }
}

fn enter(place: &mut Option<String>, value: String, what: &str) -> Result<()> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(unreadable(&format!("it names {what} twice"))),
    }
}

/// The scheme as redis-rs knows it, and what it leads to: each part of the name says one of the
/// two.
pub(super) fn kind_of(scheme: &str) -> Option<(&'static str, Kind)> {
    let scheme = scheme.to_ascii_lowercase();
    let (base, what) = scheme.split_once(['+', '-']).unwrap_or(match &*scheme {
        "sentinel" | "cluster" | "unix" => ("redis", &scheme),
        _ => (&scheme, ""),
    });
    let scheme = match base {
        "redis" | "valkey" => "redis",
        "rediss" | "valkeys" => "rediss",
        _ => return None,
    };
    Some(match what {
        "" => (scheme, Kind::Server),
        "tls" | "ssl" => ("rediss", Kind::Server),
        "unix" | "socket" => (scheme, Kind::Socket),
        "sentinel" => (scheme, Kind::Sentinels),
        "cluster" => (scheme, Kind::Cluster),
        _ => return None,
    })
}

/// What comes before the sign, and what begins with it.
fn cut(text: &str, sign: char) -> (&str, &str) {
    text.split_at(text.find(sign).unwrap_or(text.len()))
}
