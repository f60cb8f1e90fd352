//! Reads what a server reports of itself: `HELLO`, `INFO` and `CONFIG GET`.

use std::collections::HashMap;

use redis::{FromRedisValue, Value};

use super::{
    asking::Asking,
    finding::{
        Severity::{Fails, Good, Limits, NotTold},
        Verdict, verdict,
    },
};

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
pub(super) const FOLLOWED: &str = "A failover is followed. It may lose a lock, or grant it twice \
                                   for a moment: a wait for replicas and fencing tokens help.";
/// The default of `tracking-table-max-keys`. A lease needs two keys.
const MANY_KEYS: usize = 1_000_000;

/// The answers. Any of them may be missing.
#[derive(Debug)]
pub(super) struct Told {
    /// No access list forbids it.
    hello: HashMap<String, Value>,
    /// Empty if it is missing.
    info: String,
    appendfsync: Option<String>,
    save: Option<String>,
    tracked: Option<usize>,
}

impl Told {
    pub(super) fn by(asking: &mut Asking<'_>) -> Self {
        let mut setting = |name: &str| {
            let mut get = redis::cmd("CONFIG");
            let answer = asking.ask::<Vec<String>>(get.arg("GET").arg(name)).ok()?;
            answer.into_iter().nth(1)
        };
        Self {
            appendfsync: setting("appendfsync"),
            save: setting("save"),
            tracked: setting("tracking-table-max-keys").and_then(|keys| keys.parse().ok()),
            hello: asking.ask(&redis::cmd("HELLO")).unwrap_or_default(),
            info: asking.ask(&redis::cmd("INFO")).unwrap_or_default(),
        }
    }

    fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.info.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
    }

    fn greeting(&self, name: &str) -> Option<String> {
        String::from_redis_value_ref(self.hello.get(name)?).ok()
    }

    /// Returns true unless the server reports another role.
    pub(super) fn is_master(&self) -> bool {
        let role = self.greeting("role");
        let role = role.as_deref().or_else(|| self.field("role"));
        role.is_none_or(|role| role == "master")
    }

    /// Returns the number of connected replicas.
    pub(super) fn replicas(&self) -> Option<usize> {
        self.field("connected_slaves")?.parse().ok()
    }

    pub(super) fn server(&self, address: &str) -> Verdict {
        let address = address.strip_prefix("redis at ").unwrap_or(address);
        let mut products = PRODUCTS.iter();
        let product = products.find_map(|(name, field)| Some((*name, self.field(field)?)));
        let redis = self.field("redis_version").map(str::to_owned);
        let redis = redis.or_else(|| self.greeting("version"));
        let (severity, what, consequence) = match (product, redis) {
            (Some(("Valkey", version)), _) => (
                Good,
                format!("Valkey {version}"),
                "The version is supported.",
            ),
            (Some((name, version)), _) => {
                let consequence = "leasehold is not tested with this product.";
                (Limits, format!("{name} {version}"), consequence)
            }
            (None, Some(version)) => (
                Good,
                format!("Redis {version}"),
                "The version is supported.",
            ),
            (None, None) => {
                let consequence = "Redis 6.2, Valkey 7.2, or newer is required.";
                (NotTold, String::from("an unknown version"), consequence)
            }
        };
        verdict(severity, format!("{what} at {address}"), consequence)
    }

    /// Judges a server that no cluster's URL leads to. `by_sentinels`: the name of its group.
    pub(super) fn topology(&self, by_sentinels: Option<&str>) -> Verdict {
        let mode = self.greeting("mode");
        let mode = mode.as_deref().or_else(|| self.field("redis_mode"));
        let consequence = "A failover is not followed: a lock is as safe as this server's data.";
        match by_sentinels {
            _ if mode == Some("cluster") || self.field("cluster_enabled") == Some("1") => {
                let consequence =
                    "Locks in slots of other nodes fail: the URL must begin with redis+cluster://.";
                verdict(Fails, "one node of a cluster", consequence)
            }
            _ if !self.is_master() => {
                let consequence = "Only a master can lock: the URL must point to the master.";
                verdict(Fails, "a replica", consequence)
            }
            Some(group) => verdict(Good, format!("{group}, by sentinels"), FOLLOWED),
            None => verdict(Good, "one server", consequence),
        }
    }

    pub(super) fn memory(&self) -> Verdict {
        match (self.field("maxmemory_policy"), self.field("maxmemory")) {
            (None | Some(""), _) => verdict(NotTold, "unknown eviction policy", LOOK),
            (Some("noeviction"), _) => {
                let consequence =
                    "No held lock is evicted; if the memory is full, no lock can be acquired.";
                verdict(Good, "noeviction", consequence)
            }
            (Some(policy), Some("0")) => {
                let consequence = "Nothing is evicted while maxmemory is 0: set noeviction before \
                                   you set maxmemory.";
                verdict(Good, format!("{policy}, without maxmemory"), consequence)
            }
            (Some(policy), _) => {
                let consequence = "The server may evict a held lock, and grant it to someone else: \
                                   set noeviction.";
                verdict(Limits, policy, consequence)
            }
        }
    }

    pub(super) fn persistence(&self) -> Verdict {
        let lost = "A crash loses the locks since the last snapshot, or all: others may get them \
                    while they are held.";
        let (severity, found, consequence) = match (self.field("aof_enabled"), &self.appendfsync) {
            (None, _) => (NotTold, "unknown", LOOK),
            (Some("1"), Some(fsync)) if fsync == "always" => {
                let consequence = "A restart keeps all locks.";
                (Good, "append-only file, always synced", consequence)
            }
            (Some("1"), _) => {
                let consequence = "A crash of the server's machine may lose the locks of the last \
                                   seconds, unless appendfsync is always.";
                (Limits, "append-only file", consequence)
            }
            _ => match self.save.as_deref().map(str::trim) {
                None => (NotTold, "no append-only file, snapshots unknown", lost),
                Some("") => {
                    let consequence =
                        "A restart loses all locks: others may get them while they are held.";
                    (Limits, "none", consequence)
                }
                Some(_) => (Limits, "snapshots", lost),
            },
        };
        verdict(severity, found, consequence)
    }

    /// Judges the notifications of a server that has sent one.
    pub(super) fn wake_ups(&self) -> Verdict {
        let found = "a message arrived";
        match self.tracked {
            Some(keys @ 1..MANY_KEYS) => {
                let found = format!("{found}; tracking-table-max-keys is {keys}");
                let many = keys / 2;
                let consequence = format!(
                    "A release wakes waiters. Of more than {many} locks, a loss is noticed at the \
                     next renewal."
                );
                verdict(Limits, found, consequence)
            }
            Some(_) => {
                let consequence = "A release wakes waiters, and a loss is noticed at once.";
                verdict(Good, found, consequence)
            }
            None => {
                let consequence = "A release wakes waiters, and a loss is noticed at once, for as \
                                   many keys as the server tracks.";
                verdict(Good, found, consequence)
            }
        }
    }
}
