//! Probes a server: the features it offers, and the consequences for locks. Called by
//! `Locks::probe`.
//!
//! [`questions`] asks one server, each topic on a [`line`] of its own: what the server reports of
//! itself, which [`facts`] judges, for the commands in [`needs`], and for everything else.
//! [`shards`] asks all masters of a cluster.

mod facts;
mod finding;
mod line;
mod needs;
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
/// Each topic appears at most once, in this order. `{probe}` prints a table.
///
/// | topic | content |
/// |---|---|
/// | `server` | the product, its version, its address |
/// | `topology` | one server, a master named by sentinels, or a cluster |
/// | `sentinels` | the sentinels in the URL that answer, and those that name this master |
/// | `shards` | the masters of a cluster that answer; the other topics have the worst of them |
/// | `scripts` | `EVALSHA` and `EVAL`, with writes after `TIME` |
/// | `wake-ups` | notifications by `CLIENT TRACKING … REDIRECT`, and whether a message arrives |
/// | `replicas` | `WAIT` after a write |
/// | `memory` | the eviction policy |
/// | `persistence` | append-only file and snapshots |
/// | `clock` | the server's clock minus this machine's |
/// | `round trip` | the fastest of five round trips |
/// | `keys` | the keys of a lock that the access list allows |
/// | `commands` | the commands of locks that an access list or the server refuses, or refuses now |
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
        Self {
            findings: vec![Finding::new("server", Severity::Good, found, consequence)],
        }
    }

    /// Probes the server of this connector, with the keys of a lock that no one else uses.
    pub(crate) fn of_server(connector: &Connector, lock: &LockName) -> Result<Self> {
        let mut asked = ask(connector, lock.clone(), Deadline::after(LONGEST))?;
        asked.findings.splice(1..1, asked.group);
        Ok(Self {
            findings: asked.findings,
        })
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

/// The findings on one server.
struct Asked {
    /// The findings on the topology, and on the sentinels if there are any.
    group: Vec<Finding>,
    findings: Vec<Finding>,
}

/// Asks a server on a thread of its own. A thread that has not finished one connect time-out after
/// the deadline is left behind.
fn ask(connector: &Connector, lock: LockName, deadline: Deadline) -> Result<Asked> {
    let (server, limits) = (connector.server(), connector.limits());
    let longest = deadline.remaining() + limits.connect;
    let connector = connector.clone();
    let asked = within(&server, longest, move || {
        let questions = Questions::begin(&connector, &lock, deadline);
        Ok(questions.map(|questions| Asked {
            group: questions.group(),
            findings: questions.ask(),
        }))
    });
    asked.unwrap_or_else(|error| Err(failure(&server, longest, error)))
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
        let limits = self.findings.iter();
        let limits = limits.filter(|it| it.severity == Severity::Limits).count();
        match (self.locks_work(), limits) {
            (false, _) => f.write_str("Locks do not work here."),
            (true, 0) => f.write_str("Locks work here."),
            (true, 1) => f.write_str("Locks work here, with 1 limit."),
            (true, limits) => write!(f, "Locks work here, with {limits} limits."),
        }
    }
}
