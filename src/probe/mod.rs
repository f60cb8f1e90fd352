//! The probe: what a server offers, and what that means for locks. Called by `Locks::probe`.
//!
//! [`questions`] asks one server, on connections of [`asking`], for its settings, which [`told`]
//! reads, its clock ([`times`]), the commands of [`needs`] and all else. [`shards`] asks the other
//! masters of a cluster.

mod asking;
mod finding;
mod needs;
mod questions;
#[cfg(feature = "cluster")]
mod shards;
mod times;
mod told;

use std::{fmt, time::Duration};

#[cfg(feature = "cluster")]
use crate::cluster::Nodes;
use crate::{error::Result, name::LockName, pool::Connector, time::Deadline};
pub use finding::{Finding, Severity};
use questions::Questions;

/// All questions together take at most this long, and one attempt to connect.
const LONGEST: Duration = Duration::from_secs(10);

/// What a server offers, and what that means for locks: by
/// [`Locks::probe`](crate::Locks::probe).
///
/// Each topic is there at most once, in this order. `{probe}` prints them as a table.
///
/// | topic | asked |
/// |---|---|
/// | `server` | the product, its version, its address |
/// | `topology` | one server, the master that sentinels name, or a cluster |
/// | `sentinels` | of those in the URL, how many answer, and name this master |
/// | `shards` | of a cluster's masters, how many execute a script |
/// | `scripts` | `EVALSHA` and `EVAL` |
/// | `time` | writes after `TIME` in a script, for fencing tokens |
/// | `wake-ups` | notifications by `CLIENT TRACKING … REDIRECT`, with a message that comes |
/// | `resp3` | `CLIENT TRACKING` by RESP3 |
/// | `replicas` | `WAIT` after a write |
/// | `memory` | the eviction policy |
/// | `persistence` | append-only file and snapshots |
/// | `clock` | the server's clock less this machine's |
/// | `round trip` | the median of five |
/// | `keys` | the keys of a lock, by the access list |
/// | `commands` | the commands of locks that an access list or the server refuses |
///
/// It has no password, no user and no rule of an access list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    findings: Vec<Finding>,
}

impl Probe {
    /// All findings, in the order of the table.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// The finding of this topic, if it was asked.
    #[must_use]
    pub fn finding(&self, topic: &str) -> Option<&Finding> {
        self.findings.iter().find(|it| it.topic == topic)
    }

    /// True unless a finding [`Fails`](Severity::Fails).
    #[must_use]
    pub fn locks_work(&self) -> bool {
        let fails = |it: &Finding| it.severity == Severity::Fails;
        !self.findings.iter().any(fails)
    }

    /// Of a stand-in for tests.
    pub(crate) fn of_stand_in() -> Self {
        let found = "a stand-in for tests";
        let consequence = "All locks work, in this process alone.";
        let finding = Finding::new("server", Severity::Good, found, consequence);
        Self {
            findings: vec![finding],
        }
    }

    /// Asks the server that this leads to, by the keys of a lock that nobody else has.
    pub(crate) fn of_server(connector: &Connector, lock: &LockName) -> Result<Self> {
        let mut asked = Questions::begin(connector, lock, Deadline::after(LONGEST))?;
        let mut findings = vec![asked.server(), asked.topology()];
        findings.extend(asked.sentinels());
        findings.extend(asked.the_rest());
        Ok(Self { findings })
    }

    /// Asks the master of the lock's shard, and the other masters for one script each.
    #[cfg(feature = "cluster")]
    pub(crate) fn of_cluster(nodes: &Nodes, lock: &LockName) -> Result<Self> {
        let deadline = Deadline::after(LONGEST);
        let shard = nodes.shard_for(lock.key(), deadline)?;
        let connector = nodes.pool_of(shard)?.connector();
        let mut asked = Questions::begin(&connector, lock, deadline)?;
        let (topology, shards) = shards::ask_all(nodes, lock, deadline);
        let mut findings = vec![asked.server(), topology, shards];
        findings.extend(asked.the_rest());
        Ok(Self { findings })
    }
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            let Finding {
                topic,
                severity,
                found,
                consequence,
            } = finding;
            writeln!(f, "{severity:<8}  {topic:<11}  {found}")?;
            writeln!(f, "{:23}{consequence}", "")?;
        }
        let limits = |it: &&Finding| it.severity == Severity::Limits;
        match (
            self.locks_work(),
            self.findings.iter().filter(limits).count(),
        ) {
            (false, _) => f.write_str("Locks do not work here."),
            (true, 0) => f.write_str("Locks work here."),
            (true, 1) => f.write_str("Locks work here, with 1 limit."),
            (true, limits) => write!(f, "Locks work here, with {limits} limits."),
        }
    }
}
