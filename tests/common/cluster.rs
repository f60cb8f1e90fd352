//! A Redis Cluster of three masters with one replica each, on this machine, stopped on drop.

mod gates;

use std::{
    collections::BTreeSet,
    sync::{Arc, Weak},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use parking_lot::Mutex;
use redis::Connection;

use super::{Gate, Server, sentinels::Marks, server::free_cluster_port};

const MASTERS: usize = 3;
const SLOTS: u16 = 16_384;
/// A node accepts no writes in the first two seconds after its start.
const FORM_LIMIT: Duration = Duration::from_secs(30);
/// On a busy machine two nodes may be too slow to complete a handshake, and drop it.
const INTRODUCED: Duration = Duration::from_secs(3);
/// On a busy machine nodes suspect each other for a while.
const WHOLE_LIMIT: Duration = Duration::from_mins(2);
const FAILOVER_LIMIT: Duration = Duration::from_secs(20);

/// The options of a cluster.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// A node that is silent for this long is considered dead.
    pub node_timeout: Duration,
    /// Clients and replicas connect to the nodes through gates.
    pub gated: bool,
    /// The cluster bus goes through separate gates, so a test can cut off one node.
    pub bus_gated: bool,
    /// Additional server settings.
    pub settings: &'static [&'static str],
}

/// Six nodes: the first three start as the masters, and node `n + 3` is the replica of node `n`.
pub struct Cluster {
    pub nodes: Vec<Server>,
    /// One per node, or empty.
    pub gates: Vec<Gate>,
    bus_gates: Vec<Gate>,
    ids: Vec<String>,
    /// Serializes the last step of slot migrations.
    pub(super) closing: Mutex<()>,
}

impl Cluster {
    /// A cluster that considers a node dead after one second.
    pub fn start() -> anyhow::Result<Self> {
        Self::planned(Duration::from_secs(1), false)
    }

    /// A cluster that keeps serving all slots while nodes cannot reach each other for a second or
    /// two on a busy machine. A failover that fails, even a planned one, is not retried soon.
    pub fn patient() -> anyhow::Result<Self> {
        Self::planned(Duration::from_secs(5), false)
    }

    /// A cluster with or without gates.
    pub fn planned(node_timeout: Duration, gated: bool) -> anyhow::Result<Self> {
        Self::laid_out(Layout {
            node_timeout,
            gated,
            bus_gated: false,
            settings: &[],
        })
    }

    /// Starts a cluster and waits until it accepts writes for all slots, about two seconds.
    pub fn laid_out(layout: Layout) -> anyhow::Result<Self> {
        let mut cluster = Self {
            nodes: Vec::new(),
            gates: Vec::new(),
            bus_gates: Vec::new(),
            ids: Vec::new(),
            closing: Mutex::default(),
        };
        for at in 0..2 * MASTERS {
            let node = start_node(layout)?;
            if layout.gated {
                cluster.gates.push(Gate::before(node.port())?);
            }
            if layout.bus_gated {
                cluster.bus_gates.push(Gate::before(bus_port(&node))?);
            }
            cluster.nodes.push(node);
            cluster.announce_gates(at)?;
        }
        for (at, node) in cluster.nodes.iter().enumerate() {
            let mut conn = node.connection()?;
            let id = redis::cmd("CLUSTER").arg("MYID").query(&mut conn)?;
            cluster.ids.push(id);
            redis::cmd("CLUSTER")
                .arg("SET-CONFIG-EPOCH")
                .arg(at + 1)
                .exec(&mut conn)?;
            if at < MASTERS {
                let mut slots = redis::cmd("CLUSTER");
                slots.arg("ADDSLOTS");
                for slot in slots_of(at) {
                    slots.arg(slot);
                }
                slots.exec(&mut conn)?;
            }
        }
        cluster.introduce()?;
        cluster.wait_until_known()?;
        for at in 0..MASTERS {
            let mut conn = cluster.nodes[at + MASTERS].connection()?;
            redis::cmd("CLUSTER")
                .arg("REPLICATE")
                .arg(&cluster.ids[at])
                .exec(&mut conn)?;
        }
        cluster.wait_until_whole()?;
        Ok(cluster)
    }

    /// `redis+cluster://127.0.0.1:PORT,127.0.0.1:PORT,127.0.0.1:PORT`, with the first three nodes.
    pub fn url(&self) -> String {
        let hosts: Vec<_> = (0..MASTERS)
            .map(|at| format!("127.0.0.1:{}", self.announced(at)))
            .collect();
        format!("redis+cluster://{}", hosts.join(","))
    }

    /// The port that a node announces.
    pub fn announced(&self, node: usize) -> u16 {
        match self.gates.get(node) {
            Some(gate) => gate.port(),
            None => self.nodes[node].port(),
        }
    }

    /// The master of this key's slot, according to most nodes that answer.
    pub fn master_of(&self, key: &str) -> anyhow::Result<usize> {
        let mut votes = vec![0; self.nodes.len()];
        let mut asked = 0;
        for node in &self.nodes {
            let Ok(mut conn) = connection(node) else {
                continue;
            };
            let Ok(slot) = redis::cmd("CLUSTER")
                .arg("KEYSLOT")
                .arg(key)
                .query::<u16>(&mut conn)
            else {
                continue;
            };
            let Ok(known) = redis::cmd("CLUSTER")
                .arg("NODES")
                .query::<String>(&mut conn)
            else {
                continue;
            };
            asked += 1;
            if let Some(id) = owner_in(&known, slot)
                && let Some(at) = self.ids.iter().position(|known| known == id)
            {
                votes[at] += 1;
            }
        }
        (0..votes.len())
            .find(|at| votes[*at] * 2 > asked)
            .context("the nodes do not agree on the slot's owner")
    }

    /// Performs a planned failover to this master's replica and returns the new master.
    pub fn fail_over(&self, master: usize) -> anyhow::Result<usize> {
        let replica = partner(master);
        let mut conn = self.nodes[replica].connection()?;
        let started = Instant::now();
        while started.elapsed() < FAILOVER_LIMIT {
            // On a busy machine the replica may consider its master dead and refuse. It also aborts
            // a failover after five seconds.
            let asked = redis::cmd("CLUSTER").arg("FAILOVER").exec(&mut conn);
            let patience = if asked.is_ok() { 6_000 } else { 20 };
            if self.becomes_master(replica, Duration::from_millis(patience)) {
                return Ok(replica);
            }
        }
        bail!("node {replica} did not become a master within {FAILOVER_LIMIT:?}")
    }

    /// Waits until this node is a master.
    pub fn wait_until_master(&self, node: usize) -> anyhow::Result<()> {
        if self.becomes_master(node, FAILOVER_LIMIT) {
            return Ok(());
        }
        bail!("node {node} did not become a master within {FAILOVER_LIMIT:?}")
    }

    fn becomes_master(&self, node: usize, limit: Duration) -> bool {
        let asked = Instant::now();
        while asked.elapsed() < limit {
            if self.nodes[node].is_master() {
                return true;
            }
            thread::sleep(Duration::from_millis(1));
        }
        false
    }

    /// Waits until all slots are served, all nodes agree on their owners, and every other node is a
    /// replica in sync with its master.
    pub fn wait_until_whole(&self) -> anyhow::Result<()> {
        let (started, mut marks) = (Instant::now(), Marks::default());
        while !self.is_whole(&mut marks).unwrap_or(false) {
            if started.elapsed() > WHOLE_LIMIT {
                bail!("the cluster is not whole within {WHOLE_LIMIT:?}");
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// The node's cluster id.
    pub fn id(&self, node: usize) -> &str {
        &self.ids[node]
    }

    /// Restarts a killed node, as a replica of the node that replaced it, and waits until it is in
    /// sync.
    pub fn revive(&mut self, node: usize) -> anyhow::Result<()> {
        self.nodes[node].restart()?;
        self.announce_gates(node)?;
        self.wait_until_whole()
    }

    /// The slot of a key.
    pub fn slot_of(&self, key: &str) -> anyhow::Result<u16> {
        let mut conn = self.nodes[0].connection()?;
        let mut slot = redis::cmd("CLUSTER");
        Ok(slot.arg("KEYSLOT").arg(key).query(&mut conn)?)
    }

    /// A hash tag with this prefix: names that contain it in braces are in a slot that this master
    /// owned at the start.
    pub fn tag(&self, master: usize, begins: &str) -> anyhow::Result<String> {
        for n in 0..1_000 {
            let tag = format!("{begins}-{n}");
            if master_at_first(self.slot_of(&tag)?) == master {
                return Ok(tag);
            }
        }
        bail!("no tag is on shard {master}")
    }

    fn introduce(&self) -> anyhow::Result<()> {
        let mut first = self.nodes[0].connection()?;
        for (at, node) in self.nodes.iter().enumerate().skip(1) {
            redis::cmd("CLUSTER")
                .arg("MEET")
                .arg("127.0.0.1")
                .arg(node.port())
                .arg(self.announced_bus(at))
                .exec(&mut first)?;
        }
        Ok(())
    }

    fn wait_until_known(&self) -> anyhow::Result<()> {
        let started = Instant::now();
        let mut introduced = started;
        loop {
            let knows_all = |node: &Server| -> anyhow::Result<bool> {
                let mut conn = connection(node)?;
                let known: String = redis::cmd("CLUSTER").arg("NODES").query(&mut conn)?;
                Ok(self.ids.iter().all(|id| known.contains(id.as_str()))
                    && !known.contains("handshake"))
            };
            if self
                .nodes
                .iter()
                .all(|node| knows_all(node).unwrap_or(false))
            {
                return Ok(());
            }
            if introduced.elapsed() > INTRODUCED {
                self.introduce()?;
                introduced = Instant::now();
            }
            if started.elapsed() > FORM_LIMIT {
                bail!("the nodes do not know each other within {FORM_LIMIT:?}");
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn is_whole(&self, marks: &mut Marks) -> anyhow::Result<bool> {
        let (mut in_step, mut said) = (0, None);
        for (at, node) in self.nodes.iter().enumerate() {
            let mut conn = connection(node)?;
            let state: String = redis::cmd("CLUSTER").arg("INFO").query(&mut conn)?;
            let known: String = redis::cmd("CLUSTER").arg("NODES").query(&mut conn)?;
            if !state.contains("cluster_state:ok") || known.contains("fail") {
                return Ok(false);
            }
            let owners = owners_in(&known);
            if *said.get_or_insert_with(|| owners.clone()) != owners {
                return Ok(false);
            }
            if node.is_master() {
                in_step += marks.in_step(at, &mut conn)?;
            }
        }
        Ok(in_step == MASTERS)
    }
}

/// The other node of the same shard.
pub fn partner(node: usize) -> usize {
    (node + MASTERS) % (2 * MASTERS)
}

fn start_node(layout: Layout) -> anyhow::Result<Server> {
    let timeout = layout.node_timeout.as_millis().to_string();
    let args = [
        "--cluster-enabled",
        "yes",
        "--cluster-node-timeout",
        &timeout,
        "--cluster-replica-validity-factor",
        "0",
        "--cluster-allow-replica-migration",
        "no",
        "--repl-diskless-sync-delay",
        "0",
    ];
    Server::start_on(free_cluster_port, &[&args, layout.settings].concat())
}

/// The node's cluster bus port.
fn bus_port(node: &Server) -> u16 {
    node.port() + 10_000
}

/// The slots that a master owns at the start.
pub fn slots_of(master: usize) -> impl Iterator<Item = u16> {
    (0..SLOTS).filter(move |slot| master_at_first(*slot) == master)
}

fn master_at_first(slot: u16) -> usize {
    usize::from(slot) * MASTERS / usize::from(SLOTS)
}

/// The ids of the slot owners, each with its slots, from `CLUSTER NODES`.
fn owners_in(known: &str) -> BTreeSet<String> {
    let owner = |line: &str| {
        let mut words = line.split(' ');
        let id = words.next()?.to_owned();
        // Slots in brackets are migrating.
        let slots = words.skip(7).filter(|range| !range.starts_with('['));
        let slots: Vec<_> = slots.collect();
        (!slots.is_empty()).then(|| format!("{id} {}", slots.join(" ")))
    };
    known.lines().filter_map(owner).collect()
}

/// The id of the slot's owner, from `CLUSTER NODES`.
pub(super) fn owner_in(known: &str, slot: u16) -> Option<&str> {
    known.lines().find_map(|line| {
        let mut words = line.split(' ');
        let id = words.next()?;
        let has_it = words.skip(7).any(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last) = (first.parse::<u16>(), last.parse::<u16>());
            matches!((first, last), (Ok(first), Ok(last)) if (first..=last).contains(&slot))
        });
        has_it.then_some(id)
    })
}

/// A connection with a read time-out of one second.
pub(super) fn connection(node: &Server) -> anyhow::Result<Connection> {
    let limit = Duration::from_secs(1);
    let conn = redis::Client::open(node.url())?.get_connection_with_timeout(limit)?;
    conn.set_read_timeout(Some(limit))?;
    Ok(conn)
}

/// The cluster shared by all tests of a program that leave it unchanged.
pub fn shared() -> Arc<Cluster> {
    static SHARED: Mutex<Weak<Cluster>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock();
    if let Some(cluster) = shared.upgrade() {
        return cluster;
    }
    let cluster = Arc::new(Cluster::patient().unwrap());
    *shared = Arc::downgrade(&cluster);
    cluster
}
