//! Probes a server: the features it offers, and the consequences for locks. Called by
//! `Locks::probe`.
//!
//! [`questions`] asks one server and judges its answers; what a topic means for locks stands beside
//! the [`Finding`].
//! [`shards`] asks all masters of a cluster.

mod finding;
mod questions;
#[cfg(feature = "cluster")]
mod shards;

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
/// Each topic appears at most once, in this order; for a cluster it has the worst of its masters.
/// `{probe}` prints a table.
///
/// | topic | content |
/// |---|---|
/// | `server` | the product, its version, its address |
/// | `topology` | one server, a master of sentinels, or a cluster and the masters that answer |
/// | `sentinels` | the sentinels in the URL that answer, and those that name this master |
/// | `scripts` | `EVALSHA` and `EVAL`, with writes after `TIME` to the two keys of a lock |
/// | `wake-ups` | notifications by `CLIENT TRACKING … REDIRECT`, and whether a message arrives |
/// | `replicas` | `WAIT` after a write |
/// | `memory` | the eviction policy |
/// | `persistence` | append-only file and snapshots |
/// | `clock` | the server's clock minus this machine's, and the fastest of five round trips |
/// | `commands` | the commands of locks that the access list or the server refuses |
///
/// Contains no password, no user name and no access list rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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

    /// Probes the server of this connector, with the keys of a lock that no one else uses.
    pub(crate) fn of_server(connector: &Connector, lock: &LockName) -> Result<Self> {
        let findings = ask(connector, lock.clone(), Deadline::after(LONGEST))?;
        Ok(Self { findings })
    }

    /// Probes each master, with locks in the slots that it serves.
    #[cfg(feature = "cluster")]
    pub(crate) fn of_cluster(nodes: &Nodes, lock: &LockName) -> Result<Self> {
        let deadline = Deadline::after(LONGEST);
        nodes.learn_shards(deadline)?;
        Ok(Self {
            findings: shards::ask_all(nodes, lock, deadline)?,
        })
    }
}

/// Asks a server on a thread of its own. A thread that has not finished one connect time-out after
/// the deadline is left behind.
fn ask(connector: &Connector, lock: LockName, deadline: Deadline) -> Result<Vec<Finding>> {
    let (server, limits) = (connector.server(), connector.limits());
    let longest = deadline.remaining() + limits.connect;
    let connector = connector.clone();
    let asked = within(&server, longest, move || {
        Ok(Questions::ask_all(&connector, &lock, deadline))
    });
    asked.unwrap_or_else(|error| Err(failure(&server, longest, error)))
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for it in &self.findings {
            writeln!(f, "{:<8}  {:<11}  {}", it.severity, it.topic, it.found)?;
            writeln!(f, "{:23}{}", "", it.consequence)?;
        }
        let not = if self.locks_work() { "" } else { "do not " };
        write!(f, "Locks {not}work here.")
    }
}
