//! Probes a server: the features it offers, and the consequences for locks. Called by
//! `Locks::probe`.
//!
//! [`questions`] asks one server, on connections of [`asking`]: for its settings, which [`told`]
//! reads, for its clock ([`times`]), for the commands in [`needs`], and for everything else.
//! [`shards`] asks the other masters of a cluster.

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
use crate::{
    error::Result,
    name::LockName,
    pool::{Connector, failure},
    time::Deadline,
    wire::within,
};
pub use finding::{Finding, Severity};
use questions::Questions;

/// The longest time of all questions together, apart from one attempt to connect.
const LONGEST: Duration = Duration::from_secs(10);

/// The result of [`Locks::probe`](crate::Locks::probe): the features of a server, and the
/// consequences for locks.
///
/// Each topic appears at most once, in this order. `{probe}` prints a table.
///
/// | topic | content |
/// |---|---|
/// | `server` | the product, its version, its address |
/// | `topology` | one server, a master named by sentinels, or a cluster |
/// | `sentinels` | the sentinels in the URL that answer, and those that name this master |
/// | `shards` | the masters of a cluster that execute a script |
/// | `scripts` | `EVALSHA` and `EVAL` |
/// | `time` | writes after `TIME` in a script, for fencing tokens |
/// | `wake-ups` | notifications by `CLIENT TRACKING … REDIRECT`, and whether a message arrives |
/// | `resp3` | `CLIENT TRACKING` by RESP3 |
/// | `replicas` | `WAIT` after a write |
/// | `memory` | the eviction policy |
/// | `persistence` | append-only file and snapshots |
/// | `clock` | the server's clock minus this machine's |
/// | `round trip` | the median of five round trips |
/// | `keys` | the keys of a lock that the access list allows |
/// | `commands` | the commands of locks that an access list or the server refuses |
///
/// Contains no password, no user name and no access list rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    findings: Vec<Finding>,
}

impl Probe {
    /// Returns all findings, in the order of the table.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Returns the finding for this topic, if it was probed.
    #[must_use]
    pub fn finding(&self, topic: &str) -> Option<&Finding> {
        self.findings.iter().find(|it| it.topic == topic)
    }

    /// Returns true unless a finding [`Fails`](Severity::Fails).
    #[must_use]
    pub fn locks_work(&self) -> bool {
        let fails = |it: &Finding| it.severity == Severity::Fails;
        !self.findings.iter().any(fails)
    }

    /// Returns the result for a stand-in for tests.
    pub(crate) fn of_stand_in() -> Self {
        let found = "a stand-in for tests";
        let consequence = "All locks work, but only in this process.";
        let finding = Finding::new("server", Severity::Good, found, consequence);
        Self {
            findings: vec![finding],
        }
    }

    /// Probes the server of this connector, with the keys of a lock that no one else uses.
    pub(crate) fn of_server(connector: &Connector, lock: &LockName) -> Result<Self> {
        let (connector, lock) = (connector.clone(), lock.clone());
        let deadline = Deadline::after(LONGEST);
        bounded(&connector.clone(), deadline, move || {
            let mut asked = Questions::begin(&connector, &lock, deadline)?;
            let mut findings = vec![asked.server(), asked.topology()];
            findings.extend(asked.sentinels());
            findings.extend(asked.the_rest());
            Ok(Self { findings })
        })
    }

    /// Probes the master of the lock's shard, and runs one script on each of the other masters.
    #[cfg(feature = "cluster")]
    pub(crate) fn of_cluster(nodes: &Nodes, lock: &LockName) -> Result<Self> {
        let deadline = Deadline::after(LONGEST);
        let shard = nodes.shard_for(lock.key(), deadline)?;
        let connector = nodes.pool_of(shard)?.connector();
        let (nodes, lock) = (nodes.clone(), lock.clone());
        bounded(&connector.clone(), deadline, move || {
            let mut asked = Questions::begin(&connector, &lock, deadline)?;
            let (topology, shards) = shards::ask_all(&nodes, &lock, deadline);
            let mut findings = vec![asked.server(), topology, shards];
            findings.extend(asked.the_rest());
            Ok(Self { findings })
        })
    }
}

/// Runs the questions on a thread of their own, which is left behind if the server keeps it longer
/// than until the deadline, and a connection that is being opened by then.
fn bounded(
    connector: &Connector,
    deadline: Deadline,
    ask: impl FnOnce() -> Result<Probe> + Send + 'static,
) -> Result<Probe> {
    let longest = deadline.remaining() + connector.limits().connect;
    let asked = within(&connector.server(), longest, || Ok(ask()));
    asked.unwrap_or_else(|error| Err(failure(&connector.server(), longest, error)))
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
