//! Reads the settings that a server reports: `INFO`, `CONFIG GET` and `ROLE`.

use std::collections::HashMap;

use redis::Value;

use super::finding::{Finding, Severity};

/// The products that report their own version besides `redis_version`, with the field for it.
const PRODUCTS: [(&str, &str); 5] = [
    ("Valkey", "valkey_version"),
    ("Dragonfly", "dragonfly_version"),
    ("KeyDB", "keydb_version"),
    ("Garnet", "garnet_version"),
    ("Kvrocks", "kvrocks_version"),
];
/// The consequence of an unknown setting.
const LOOK: &str = "The server does not report it: check its settings.";

/// The settings that a server reports. Any of them may be missing.
#[derive(Debug, Default)]
pub(super) struct ServerSettings {
    /// `INFO`, or empty.
    pub(super) info: String,
    /// `HELLO`, which no access list forbids.
    pub(super) hello: HashMap<String, Value>,
    /// `CONFIG GET` of these.
    pub(super) policy: Option<String>,
    pub(super) appendfsync: Option<String>,
    pub(super) save: Option<String>,
    /// `ROLE`.
    pub(super) role: Option<Value>,
}

impl ServerSettings {
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.info.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
    }

    fn greeting(&self, name: &str) -> Option<String> {
        redis::from_redis_value(self.hello.get(name)?.clone()).ok()
    }

    pub(super) fn is_of_a_cluster(&self) -> bool {
        let mode = self.field("redis_mode").map(str::to_owned);
        mode.or_else(|| self.greeting("mode")).as_deref() == Some("cluster")
            || self.field("cluster_enabled") == Some("1")
    }

    /// Returns the role of the server, `master` or another.
    pub(super) fn role(&self) -> Option<String> {
        let by_role = self.role.as_ref().and_then(|role| match role {
            Value::Array(parts) => redis::from_redis_value(parts.first()?.clone()).ok(),
            _ => None,
        });
        let by_info = || self.field("role").map(str::to_owned);
        by_role.or_else(by_info).or_else(|| self.greeting("role"))
    }

    /// Returns the number of connected replicas.
    pub(super) fn replicas(&self) -> Option<usize> {
        let by_role = self.role.as_ref().and_then(|role| match role {
            Value::Array(parts) => match parts.get(2)? {
                Value::Array(replicas) => Some(replicas.len()),
                _ => None,
            },
            _ => None,
        });
        by_role.or_else(|| self.field("connected_slaves")?.parse().ok())
    }

    pub(super) fn server(&self, address: &str) -> Finding {
        let address = address.strip_prefix("redis at ").unwrap_or(address);
        let named = |severity, what: String, consequence| {
            let found = format!("{what} at {address}");
            Finding::new("server", severity, found, consequence)
        };
        let product = PRODUCTS
            .iter()
            .find_map(|(name, field)| Some((*name, self.field(field)?)));
        if let Some((name, version)) = product {
            let (severity, consequence) = match name {
                "Valkey" => (Severity::Good, "leasehold is tested with Valkey."),
                _ => (
                    Severity::Limits,
                    "leasehold is not tested with this product.",
                ),
            };
            return named(severity, format!("{name} {version}"), consequence);
        }
        let greeting = || {
            let (name, version) = (self.greeting("server")?, self.greeting("version")?);
            Some(format!("{} {version}", name.replace("redis", "Redis")))
        };
        let redis = self
            .field("redis_version")
            .map(|version| format!("Redis {version}"));
        match redis.or_else(greeting) {
            Some(version) => named(Severity::Good, version, "The version is supported."),
            None => named(
                Severity::NotTold,
                "an unknown version".to_owned(),
                "Redis 6.2, Valkey 7.2, or newer is required.",
            ),
        }
    }

    pub(super) fn memory(&self) -> Finding {
        let finding = |severity, found: &str, consequence: &str| {
            Finding::new("memory", severity, found, consequence)
        };
        let policy = self.field("maxmemory_policy").or(self.policy.as_deref());
        let Some(policy) = policy.filter(|policy| !policy.is_empty()) else {
            return finding(Severity::NotTold, "unknown eviction policy", LOOK);
        };
        if policy == "noeviction" {
            let consequence =
                "No held lock is evicted; if the memory is full, no lock can be acquired.";
            return finding(Severity::Good, policy, consequence);
        }
        if self.field("maxmemory") == Some("0") {
            let found = format!("{policy}, without maxmemory");
            let consequence =
                "Nothing is evicted while maxmemory is 0: set noeviction before you set maxmemory.";
            return finding(Severity::Good, &found, consequence);
        }
        let consequence =
            "The server may evict a held lock, and grant it to someone else: set noeviction.";
        finding(Severity::Limits, policy, consequence)
    }

    pub(super) fn persistence(&self) -> Finding {
        let finding = |severity, found: &str, consequence: &str| {
            Finding::new("persistence", severity, found, consequence)
        };
        let aof = self.field("aof_enabled");
        let fsync = self.appendfsync.as_deref();
        let is_saved = self.save.as_deref().map(|save| !save.trim().is_empty());
        match (aof, fsync, is_saved) {
            (Some("1"), Some("always"), _) => finding(
                Severity::Good,
                "append-only file, always synced",
                "A restart keeps all locks.",
            ),
            (Some("1"), Some("everysec"), _) => finding(
                Severity::Limits,
                "append-only file, synced each second",
                "A crash of the server's machine may lose the locks of the last two seconds.",
            ),
            (Some("1"), ..) => finding(
                Severity::Limits,
                "append-only file",
                "A crash of the server's machine may lose the last locks, unless appendfsync is always.",
            ),
            (Some(_), _, Some(true)) => finding(
                Severity::Limits,
                "snapshots",
                "A crash loses the locks since the last snapshot: others may get them while they are held.",
            ),
            (Some(_), _, Some(false)) => finding(
                Severity::Limits,
                "none",
                "A restart loses all locks: others may get them while they are held.",
            ),
            (Some(_), _, None) => finding(
                Severity::NotTold,
                "no append-only file, snapshots unknown",
                "A crash loses the locks since the last snapshot, or all.",
            ),
            (None, ..) => finding(Severity::NotTold, "unknown", LOOK),
        }
    }
}
