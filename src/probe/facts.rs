//! Judges what a server reports of itself: `HELLO`, `INFO` and `CONFIG GET`.

use std::collections::HashMap;

use redis::{FromRedisValue, Value};

use super::{
    finding::{
        Finding,
        Severity::{Fails, Good, Limits, NotTold},
    },
    line::Line,
};

/// Products that are not tested. Each reports `NAME_version` besides `redis_version`.
const OTHER_PRODUCTS: [&str; 4] = ["dragonfly", "keydb", "garnet", "kvrocks"];
/// The consequence of an unknown setting.
const LOOK: &str = "The server does not report it: check its settings.";
pub(super) const FOLLOWED: &str = "A failover is followed. It may lose a lock, or grant it twice \
                                   for a moment: a wait for replicas and fencing tokens help.";

/// The answers. Any of them may be missing.
#[derive(Debug, Default)]
pub(super) struct ServerFacts {
    /// No access list forbids it.
    hello: HashMap<String, Value>,
    info: String,
    appendfsync: String,
}

impl ServerFacts {
    pub(super) fn of(mut line: Line<'_>) -> Self {
        let mut fsync = redis::cmd("CONFIG");
        fsync.arg("GET").arg("appendfsync");
        Self {
            hello: line.ask(&redis::cmd("HELLO")).unwrap_or_default(),
            info: line.ask(&redis::cmd("INFO")).unwrap_or_default(),
            appendfsync: line
                .ask::<Vec<String>>(&fsync)
                .ok()
                .and_then(|answer| answer.into_iter().nth(1))
                .unwrap_or_default(),
        }
    }

    fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.info.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
    }

    fn greeting(&self, name: &str) -> Option<String> {
        String::from_redis_value_ref(self.hello.get(name)?).ok()
    }

    /// Returns a fact that both answers have.
    fn told(&self, greeting: &str, field: &str) -> Option<String> {
        let greeting = self.greeting(greeting);
        greeting.or_else(|| self.field(field).map(str::to_owned))
    }

    /// Returns true unless the server reports another role.
    pub(super) fn is_master(&self) -> bool {
        let role = self.told("role", "role");
        role.is_none_or(|role| role == "master")
    }

    /// Returns the number of connected replicas.
    pub(super) fn replicas(&self) -> Option<usize> {
        self.field("connected_slaves")?.parse().ok()
    }

    pub(super) fn server(&self, address: &str) -> Finding {
        let address = address.strip_prefix("redis at ").unwrap_or(address);
        let version_of = |product: &str| self.field(&format!("{product}_version"));
        let other = OTHER_PRODUCTS.iter();
        let other = other.copied().find(|it| version_of(it).is_some());
        let tested = version_of("valkey").map(|version| format!("Valkey {version}"));
        let redis = self.told("version", "redis_version");
        let tested = tested.or_else(|| redis.map(|version| format!("Redis {version}")));
        let (severity, what, consequence) = match (other, tested) {
            (Some(product), _) => (
                Limits,
                format!("{product} {}", version_of(product).unwrap_or_default()),
                "leasehold is not tested with this product.",
            ),
            (None, Some(tested)) => (Good, tested, "The version is supported."),
            (None, None) => {
                let consequence = "Redis 6.2, Valkey 7.2, or newer is required.";
                (NotTold, String::from("an unknown version"), consequence)
            }
        };
        let found = format!("{what} at {address}");
        Finding::new("server", severity, found, consequence)
    }

    /// Judges the topology of a server that is not reached by the URL of a cluster. `by_sentinels`:
    /// the name of its group.
    pub(super) fn topology(&self, by_sentinels: Option<&str>) -> Finding {
        let (severity, found, consequence) = match by_sentinels {
            _ if self.told("mode", "redis_mode").as_deref() == Some("cluster") => (
                Fails,
                "one node of a cluster",
                "Locks in slots of other nodes fail: the URL must begin with redis+cluster://.",
            ),
            _ if !self.is_master() => (
                Fails,
                "a replica",
                "Only a master can lock: the URL must point to the master.",
            ),
            Some(group) => (Good, group, FOLLOWED),
            None => (
                Good,
                "one server",
                "A failover is not followed: a lock is as safe as this server's data.",
            ),
        };
        Finding::new("topology", severity, found, consequence)
    }

    pub(super) fn memory(&self) -> Finding {
        let policy = self.field("maxmemory_policy").filter(|it| !it.is_empty());
        let (severity, consequence) = match policy {
            None => (NotTold, LOOK),
            Some("noeviction") => (
                Good,
                "No held lock is evicted; if the memory is full, no lock can be acquired.",
            ),
            Some(_) if self.field("maxmemory") == Some("0") => (
                Good,
                "Nothing is evicted while maxmemory is 0: set noeviction before you set maxmemory.",
            ),
            Some(_) => (
                Limits,
                "The server may evict a held lock, and grant it to someone else: set noeviction.",
            ),
        };
        Finding::new("memory", severity, policy.unwrap_or("unknown"), consequence)
    }

    pub(super) fn persistence(&self) -> Finding {
        let (severity, found, consequence) = match self.field("aof_enabled") {
            None => (NotTold, "unknown", LOOK),
            Some("1") if self.appendfsync == "always" => (
                Good,
                "append-only file, always synced",
                "A restart keeps all locks.",
            ),
            Some("1") => (
                Limits,
                "append-only file",
                "A crash of the server's machine may lose the locks of the last seconds, unless \
                 appendfsync is always.",
            ),
            Some(_) => (
                Limits,
                "no append-only file",
                "A restart loses the locks since the last snapshot, or all: others may get them \
                 while they are held.",
            ),
        };
        Finding::new("persistence", severity, found, consequence)
    }
}
