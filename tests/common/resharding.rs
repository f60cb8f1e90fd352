//! Slot migration from one master to another, in the steps of `redis-cli --cluster reshard`.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use parking_lot::Mutex;
use redis::{Connection, Pipeline, RedisResult, Value};

use super::{
    Cluster, Server,
    cluster::{connection, owner_in},
};

/// Number of slots opened, emptied and closed at a time.
const TOGETHER: usize = 64;
/// The time-out for moving one batch of keys, in milliseconds.
const MIGRATE: u32 = 5_000;

/// Number of times both nodes are told of the new owner.
const CLOSINGS: u32 = 10;
/// The longest time a node takes to learn another's configuration.
const TO_HEAR: Duration = Duration::from_secs(2);

/// Moves slots from one master to another.
pub struct Resharding<'a> {
    cluster: &'a Cluster,
    from: usize,
    to: usize,
    source: Connection,
    target: Connection,
}

impl<'a> Resharding<'a> {
    pub fn new(cluster: &'a Cluster, from: usize, to: usize) -> anyhow::Result<Self> {
        Ok(Self {
            cluster,
            from,
            to,
            source: cluster.nodes[from].connection()?,
            target: cluster.nodes[to].connection()?,
        })
    }

    /// Moves these slots and their keys.
    pub fn run(&mut self, slots: &[u16]) -> anyhow::Result<()> {
        for slots in slots.chunks(TOGETHER) {
            self.open(slots)?;
            for slot in slots {
                self.move_keys(*slot)?;
            }
            self.close(slots)?;
        }
        Ok(())
    }

    /// Starts to migrate these slots.
    pub fn open(&mut self, slots: &[u16]) -> anyhow::Result<()> {
        let (source, target) = (self.cluster.id(self.from), self.cluster.id(self.to));
        set_slots(slots, "IMPORTING", source).exec(&mut self.target)?;
        set_slots(slots, "MIGRATING", target).exec(&mut self.source)?;
        Ok(())
    }

    /// Moves one key at a time, so the keys of one lock are on two nodes for a moment.
    pub fn move_keys(&mut self, slot: u16) -> anyhow::Result<usize> {
        let mut moved = 0;
        loop {
            let keys: Vec<String> = redis::cmd("CLUSTER")
                .arg("GETKEYSINSLOT")
                .arg(slot)
                .arg(1)
                .query(&mut self.source)?;
            let Some(key) = keys.first() else {
                return Ok(moved);
            };
            let port = self.cluster.nodes[self.to].port();
            send_key(&mut self.source, port, key).with_context(|| format!("{key} stays"))?;
            moved += 1;
        }
    }

    /// Ends the migration. One at a time in a cluster: a node that receives slots increments its
    /// configuration epoch, and thereby reclaims slots that it gave away but does not know it yet.
    pub fn close(&mut self, slots: &[u16]) -> anyhow::Result<()> {
        let _one_at_a_time = self.cluster.closing.lock();
        let target = self.cluster.id(self.to);
        // The new owner's epoch must be greater than the old owner's.
        let counted = epoch(&mut self.source)?;
        let asked = Instant::now();
        while epoch(&mut self.target)? < counted && asked.elapsed() < TO_HEAR {
            thread::sleep(Duration::from_millis(1));
        }
        for _ in 0..CLOSINGS {
            let mut have_arrived = true;
            for conn in [&mut self.target, &mut self.source] {
                set_slots(slots, "NODE", target).exec(conn)?;
            }
            for conn in [&mut self.target, &mut self.source] {
                let known: String = redis::cmd("CLUSTER").arg("NODES").query(conn)?;
                have_arrived &= slots
                    .iter()
                    .all(|slot| owner_in(&known, *slot) == Some(target));
            }
            if have_arrived {
                self.wait_until_all_know(slots);
                return Ok(());
            }
        }
        bail!("the nodes do not agree on the slots' owner")
    }

    /// Waits until every node that answers knows of the move, two seconds at most. Otherwise, after
    /// another move, a node may first learn that the old owner's epoch is greater. It would tell
    /// the new owner that the slots still belong to the old one, and the new owner would believe
    /// it.
    fn wait_until_all_know(&self, slots: &[u16]) {
        let target = self.cluster.id(self.to);
        let knows = |node: &Server| -> anyhow::Result<bool> {
            let mut conn = connection(node)?;
            let known: String = redis::cmd("CLUSTER").arg("NODES").query(&mut conn)?;
            let mut slots = slots.iter();
            Ok(slots.all(|slot| owner_in(&known, *slot) == Some(target)))
        };
        let asked = Instant::now();
        for node in &self.cluster.nodes {
            while !knows(node).unwrap_or(true) && asked.elapsed() < TO_HEAR {
                thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// Cancels the migration, if no key has moved yet.
    pub fn call_off(&mut self, slots: &[u16]) -> anyhow::Result<()> {
        for conn in [&mut self.source, &mut self.target] {
            let mut all = redis::pipe();
            for slot in slots {
                let stable = all.cmd("CLUSTER").arg("SETSLOT").arg(*slot);
                stable.arg("STABLE").ignore();
            }
            all.exec(conn)?;
        }
        Ok(())
    }
}

/// The configuration epoch that a node knows.
fn epoch(conn: &mut Connection) -> anyhow::Result<u64> {
    let info: String = redis::cmd("CLUSTER").arg("INFO").query(conn)?;
    let mut lines = info.lines();
    let epoch = lines.find_map(|line| line.strip_prefix("cluster_current_epoch:"));
    Ok(epoch.context("no epoch")?.trim().parse()?)
}

fn set_slots(slots: &[u16], how: &str, node: &str) -> Pipeline {
    let mut all = redis::pipe();
    for slot in slots {
        let set = all.cmd("CLUSTER").arg("SETSLOT").arg(*slot);
        set.arg(how).arg(node).ignore();
    }
    all
}

/// Has a node send a key to the node at this port. One at a time across all tests: a node that
/// sends a key does nothing else, so two nodes that send to each other would block until the
/// time-out, and the others would consider both dead.
pub fn send_key(source: &mut Connection, port: u16, key: &str) -> RedisResult<Value> {
    static SENDING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = SENDING.lock();
    redis::cmd("MIGRATE")
        .arg(("127.0.0.1", port, key, 0, MIGRATE))
        .query(source)
}
