//! Runs one script on each master of a cluster.

use redis::Value;

use super::{
    asking::reason,
    finding::{Finding, Severity},
    questions::WRITES_AFTER_TIME,
};
use crate::{
    cluster::{Nodes, ShardId},
    error::Result,
    name::LockName,
    time::Deadline,
};

/// The number of keys to try in the search for one in each shard.
const TRIED: usize = 10_000;

/// Returns the topology, and the number of masters that execute a script.
pub(super) fn ask_all(nodes: &Nodes, lock: &LockName, deadline: Deadline) -> (Finding, Finding) {
    let (shards, unserved) = nodes.shards();
    let found = match unserved {
        0 => format!("a cluster of {} shards", shards.len()),
        _ => format!(
            "a cluster of {} shards, unserved slots: {unserved}{}",
            shards.len(),
            nodes.why_unserved()
        ),
    };
    let topology = if unserved == 0 {
        let consequence = "A failover is followed. It may lose a lock, or grant it twice for a \
                           moment: a wait for replicas and fencing tokens help.";
        Finding::new("topology", Severity::Good, found, consequence)
    } else {
        let consequence = "Locks in unserved slots fail.";
        Finding::new("topology", Severity::Fails, found, consequence)
    };
    let keys = (0..TRIED).map(|n| format!("{}:{n}", lock.key()));
    let mut keys: Vec<_> = keys
        .filter_map(|key| Some((nodes.known_shard_of(&key)?, key)))
        .collect();
    keys.sort();
    keys.dedup_by_key(|(shard, _)| *shard);
    let failures: Vec<_> = keys
        .iter()
        .filter_map(|(shard, key)| ask(nodes, *shard, key, deadline).err())
        .collect();
    let works = keys.len() - failures.len();
    let found = format!("{works} of {} execute a script", shards.len());
    let finding = match failures.first() {
        None if works == shards.len() => {
            let consequence = "The rest of this report is about one of them.";
            Finding::new("shards", Severity::Good, found, consequence)
        }
        None => {
            let consequence = "The others were not asked.";
            Finding::new("shards", Severity::NotTold, found, consequence)
        }
        Some(error) => {
            let consequence = "Locks in the slots of the others fail.";
            let found = format!("{found}: {}", reason(error));
            Finding::new("shards", Severity::Fails, found, consequence)
        }
    };
    (topology, finding)
}

fn ask(nodes: &Nodes, shard: ShardId, key: &str, deadline: Deadline) -> Result<()> {
    let mut connection = nodes.open(shard, deadline)?;
    Ok(WRITES_AFTER_TIME
        .on([key])
        .send::<Value>(&mut connection)
        .map(drop)?)
}
