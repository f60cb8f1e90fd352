//! The gates in front of a cluster's nodes: one for clients and replicas, one for the cluster bus.

use super::{Cluster, bus_port};
use crate::common::Gate;

impl Cluster {
    /// From now on this node and the others do not hear each other, and no replica receives data
    /// from it. Clients still reach it. Needs gates of both kinds.
    pub fn cut_off(&self, node: usize) {
        for (at, gate) in self.bus_gates.iter().enumerate() {
            if at == node {
                gate.shut();
            } else {
                gate.shut_for(self.id(node));
            }
        }
        if let Some(gate) = self.gates.get(node) {
            gate.shut_for_replicas();
        }
    }

    /// Restores all connections.
    pub fn open_gates(&self) {
        self.bus_gates
            .iter()
            .chain(&self.gates)
            .for_each(Gate::open);
    }

    /// Makes a new node announce the ports of its gates.
    pub(super) fn announce_gates(&self, node: usize) -> anyhow::Result<()> {
        let mut announced = Vec::new();
        if let Some(gate) = self.gates.get(node) {
            announced.push(("cluster-announce-port", gate.port()));
        }
        if !self.gates.is_empty() || !self.bus_gates.is_empty() {
            announced.push(("cluster-announce-bus-port", self.announced_bus(node)));
        }
        for (name, port) in announced {
            redis::cmd("CONFIG")
                .arg(&["SET", name])
                .arg(port)
                .exec(&mut self.nodes[node].connection()?)?;
        }
        Ok(())
    }

    /// The cluster bus port that a node announces.
    pub(super) fn announced_bus(&self, node: usize) -> u16 {
        match self.bus_gates.get(node) {
            Some(gate) => gate.port(),
            None => bus_port(&self.nodes[node]),
        }
    }
}
