//! Probes each master of a cluster, and takes the worst finding on each topic.

use std::{collections::BTreeMap, io, thread};

use super::{
    ask,
    facts::FOLLOWED,
    finding::{
        Finding,
        Severity::{Fails, Good, NotTold},
    },
    line::reason,
};
use crate::{
    cluster::{Nodes, ShardId},
    error::{Error, Result, no_answer},
    name::LockName,
    time::Deadline,
};

/// The longest search for a key in each shard: it may miss a shard of one or two slots.
const TRIED: usize = 100_000;

/// The address of a master, and the findings on it.
type AskedShard = (String, Vec<Finding>);

/// # Errors
/// No master answers.
pub(super) fn ask_all(nodes: &Nodes, lock: &LockName, deadline: Deadline) -> Result<Vec<Finding>> {
    let (shards, _) = nodes.shards();
    let ask_one = |(shard, lock)| {
        let connector = nodes.pool_of(shard)?.connector();
        let asked = ask(&connector, lock, deadline)?;
        let address = connector.address(deadline);
        let address = address.unwrap_or_else(|_| connector.server());
        Ok((address, asked.findings))
    };
    let locks = one_in_each(nodes, lock, shards.len());
    // A master that does not answer does not keep the others waiting.
    let asked: Vec<Result<AskedShard>> = thread::scope(|scope| {
        let start = |shard| thread::Builder::new().spawn_scoped(scope, move || ask_one(shard));
        let threads: Vec<_> = locks.into_iter().map(start).collect();
        let result = |thread: io::Result<thread::ScopedJoinHandle<'_, _>>| {
            let joined = thread.map_err(Error::thread)?.join();
            joined.unwrap_or_else(|_| Err(no_answer().into()))
        };
        threads.into_iter().map(result).collect()
    });
    let (asked, failed): (Vec<_>, Vec<_>) = asked.into_iter().partition(Result::is_ok);
    let asked: Vec<_> = asked.into_iter().flatten().collect();
    let failed = failed.into_iter().find_map(Result::err);
    match failed {
        Some(error) if asked.is_empty() => Err(error),
        failed => {
            let mut findings = worst_of_each(&asked);
            let group = [
                topology(nodes),
                answering(asked.len(), shards.len(), failed),
            ];
            // The finding follows the one on the server, if any was asked.
            let at = findings.len().min(1);
            findings.splice(at..at, group);
            Ok(findings)
        }
    }
}

/// A lock in each shard.
fn one_in_each(nodes: &Nodes, lock: &LockName, shards: usize) -> BTreeMap<ShardId, LockName> {
    let mut locks = BTreeMap::new();
    for n in 0..TRIED {
        if locks.len() == shards {
            break;
        }
        let lock = LockName::prefixed(lock.prefix(), &format!("{}:{n}", lock.text()));
        let shard = lock
            .ok()
            .and_then(|lock| Some((nodes.known_shard_of(lock.key())?, lock)));
        locks.extend(shard);
    }
    locks
}

fn topology(nodes: &Nodes) -> Finding {
    let (shards, unserved) = nodes.shards();
    let found = format!("a cluster of {} shards", shards.len());
    if unserved == 0 {
        return Finding::new("topology", Good, found, FOLLOWED);
    }
    let why = nodes.why_unserved();
    let found = format!("{found}, unserved slots: {unserved}{why}");
    let consequence = "Locks in unserved slots fail.";
    Finding::new("topology", Fails, found, consequence)
}

fn answering(asked: usize, shards: usize, failed: Option<Error>) -> Finding {
    let found = format!("{asked} of {shards} answer");
    let (severity, found, consequence) = match failed {
        Some(error) => (
            Fails,
            format!("{found}: {}", reason(&error)),
            "Locks in the slots of the others fail.",
        ),
        None if asked < shards => {
            let consequence = "The others serve few slots, and were not asked.";
            (NotTold, found, consequence)
        }
        None => {
            let consequence = "This report has the worst of them on each topic.";
            (Good, found, consequence)
        }
    };
    Finding::new("shards", severity, found, consequence)
}

/// Returns the worst finding on each topic, with the address of its master unless all have the
/// same.
fn worst_of_each(asked: &[AskedShard]) -> Vec<Finding> {
    let topics = asked.first().map_or(0, |first| first.1.len());
    let worst = |topic: usize| {
        let each = asked
            .iter()
            .filter_map(|it| Some((&it.0, it.1.get(topic)?)));
        // Takes the first of equal findings, so that each run names the same master.
        let (address, worst) = each.clone().rev().max_by_key(|it| it.1.severity)?;
        let mut finding = worst.clone();
        let mut others = each.filter(|(_, other)| other.found != worst.found);
        if !finding.found.ends_with(address) && others.next().is_some() {
            finding.found = format!("{}, at {address}", finding.found);
        }
        Some(finding)
    };
    (0..topics).filter_map(worst).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_that_were_not_asked_are_not_good() {
        let severities = [3, 2].map(|asked| answering(asked, 3, None).severity);
        assert_eq!(severities, [Good, NotTold]);
    }
}
