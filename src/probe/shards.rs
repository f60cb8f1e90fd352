//! Probes each master of a cluster, and takes the worst finding on each topic.

use super::{
    ask,
    finding::{
        Finding,
        Severity::{Fails, Good},
    },
    questions::reason,
};
use crate::{
    cluster::{Nodes, ShardId},
    error::{Error, Result, no_answer},
    name::LockName,
    time::Deadline,
};

/// The longest search for a key in a shard. It finds one even if the shard has a single slot.
const TRIED: usize = 1_000_000;

/// # Errors
/// No master answers.
pub(super) fn ask_all(nodes: &Nodes, lock: &LockName, deadline: Deadline) -> Result<Vec<Finding>> {
    let (mut worst, mut answered, mut failed) = (Vec::new(), 0, None);
    for shard in nodes.shards().0 {
        match ask_one(nodes, shard, lock, deadline) {
            Ok(findings) if worst.is_empty() => worst = findings,
            Ok(findings) => take_worse(&mut worst, findings),
            Err(error) => {
                failed.get_or_insert(error);
                continue;
            }
        }
        answered += 1;
    }
    if worst.is_empty() {
        return Err(failed.unwrap_or_else(|| no_answer().into()));
    }
    worst.splice(1..2, [topology(nodes, answered, failed.as_ref())]);
    Ok(worst)
}

fn take_worse(worst: &mut [Finding], findings: Vec<Finding>) {
    for (worst, finding) in worst.iter_mut().zip(findings) {
        if finding.severity > worst.severity {
            *worst = finding;
        }
    }
}

/// Asks a master with a lock in one of its slots. A limit names the master.
fn ask_one(
    nodes: &Nodes,
    shard: ShardId,
    lock: &LockName,
    deadline: Deadline,
) -> Result<Vec<Finding>> {
    let numbered = |n| LockName::prefixed(lock.prefix(), &format!("{}:{n}", lock.text())).ok();
    let is_its = |lock: &LockName| nodes.known_shard_of(lock.key()) == Some(shard);
    let found = (0..TRIED).filter_map(numbered).find(is_its);
    let connector = nodes.pool_of(shard)?.connector();
    let mut findings = ask(&connector, found.ok_or_else(no_answer)?, deadline)?;
    let address = connector.address(deadline)?;
    for finding in findings.iter_mut().filter(|it| it.severity > Good) {
        finding.found = format!("{}, at {address}", finding.found);
    }
    Ok(findings)
}

fn topology(nodes: &Nodes, answered: usize, failed: Option<&Error>) -> Finding {
    let (shards, unserved) = nodes.shards();
    let mut found = format!("a cluster of {} shards", shards.len());
    if let Some(error) = failed {
        found = format!("{found}, of which {answered} answer: {}", reason(error));
    }
    if unserved > 0 {
        found = format!("{found}, unserved slots: {unserved}");
    }
    let is_good = failed.is_none() && unserved == 0;
    Finding::new("topology", if is_good { Good } else { Fails }, found)
}
