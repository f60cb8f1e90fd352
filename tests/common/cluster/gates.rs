//! The gates before the nodes of a cluster: for clients and replicas, and for the messages among the nodes.

use super::{Cluster, bus_port};
use crate::common::Gate;

impl Cluster {
    /// From now on this node and the others hear nothing of each other, and no replica gets anything from it. Clients reach it. For
    /// a cluster with gates of both kinds.
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

    /// All reach each other again.
    pub fn open_gates(&self) {
        self.bus_gates
            .iter()
            .chain(&self.gates)
            .for_each(Gate::open);
    }

    /// Tells a node that was just started by which ports the others are to reach it.
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

    /// The port at which the others reach a node with their messages.
    pub(super) fn announced_bus(&self, node: usize) -> u16 {
        match self.bus_gates.get(node) {
            Some(gate) => gate.port(),
            None => bus_port(&self.nodes[node]),
        }
    }
}
