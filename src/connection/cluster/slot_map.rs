//! Which shard serves which slot, as a plain value that the answers of the nodes are entered into.
//!
//! A shard is a master and its replicas. It keeps its [`ShardId`] when a replica takes over: the
//! shard then has another address, and its epoch grows. The newest answer replaces everything that
//! was known before. If that answer is out of date, the node that it leads to answers `MOVED`, or
//! is no master, or answers nothing.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{
    layout::{Address, Group, Layout, Node},
    slot::SLOTS,
};

/// A shard of a cluster, for as long as the process knows the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ShardId(usize);

/// A master and its replicas.
pub(super) struct Shard {
    /// The ids of all its nodes, the master's among them, each with its address if that is known.
    nodes: HashMap<String, Option<Address>>,
    master: String,
    /// Where its connections lead.
    pub(super) address: Address,
    /// Grows with each change of the address.
    pub(super) epoch: Arc<AtomicU64>,
    /// A connection to the master has failed since one was opened last.
    pub(super) in_doubt: bool,
}

impl Shard {
    fn of(group: &Group, address: &Address) -> Self {
        Self {
            nodes: nodes_of(group),
            master: group.master.id.clone(),
            address: address.clone(),
            epoch: Arc::default(),
            in_doubt: false,
        }
    }

    fn lead_to(&mut self, address: &Address) {
        if self.address != *address {
            self.address = address.clone();
            self.epoch.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// All shards, and who serves each slot.
pub(super) struct SlotMap {
    shards: Vec<Shard>,
    slots: Vec<Option<ShardId>>,
    /// A node has answered something that the map does not explain.
    pub(super) in_doubt: bool,
    /// The node that a `MOVED` has named last, if the map does not know it: it is asked next.
    pub(super) named_by_a_move: Option<Address>,
}

impl SlotMap {
    pub(super) fn empty() -> Self {
        Self {
            shards: Vec::new(),
            slots: vec![None; usize::from(SLOTS)],
            in_doubt: true,
            named_by_a_move: None,
        }
    }

    pub(super) fn shard_of(&self, slot: u16) -> Option<ShardId> {
        *self.slots.get(usize::from(slot))?
    }

    pub(super) fn serves_slots(&self, id: ShardId) -> bool {
        self.slots.contains(&Some(id))
    }

    pub(super) fn shard(&self, id: ShardId) -> Option<&Shard> {
        self.shards.get(id.0)
    }

    pub(super) fn shard_mut(&mut self, id: ShardId) -> Option<&mut Shard> {
        self.shards.get_mut(id.0)
    }

    /// The addresses of all nodes, those of the masters first.
    pub(super) fn addresses(&self) -> Vec<Address> {
        let masters = self.shards.iter().map(|shard| shard.address.clone());
        let others = self.shards.iter().flat_map(|shard| shard.nodes.values());
        masters.chain(others.flatten().cloned()).collect()
    }

    /// Enters a `MOVED`: this node serves the slot, as the master of its shard.
    pub(super) fn moved(&mut self, slot: u16, to: &Address) {
        let is_master = |shard: &Shard| shard.address == *to;
        let is_node = |shard: &Shard| shard.nodes.values().flatten().any(|node| node == to);
        let mut shards = self.shards.iter();
        let found = (shards.position(is_master)).or_else(|| self.shards.iter().position(is_node));
        let id = found.map(ShardId);
        if let Some(entry) = self.slots.get_mut(usize::from(slot)) {
            *entry = id;
        }
        if let Some(shard) = id.and_then(|id| self.shard_mut(id)) {
            shard.lead_to(to);
        } else {
            self.in_doubt = true;
            self.named_by_a_move = Some(to.clone());
        }
    }

    /// Enters the answer of a node in place of all that was known. A group whose master has no
    /// address serves nothing.
    pub(super) fn enter(&mut self, layout: &Layout) {
        let mut slots = vec![None; usize::from(SLOTS)];
        let mut entered = Vec::new();
        for (group, id) in layout.iter().zip(self.recognised(layout)) {
            let Some(address) = &group.master.address else {
                continue;
            };
            let id = id.unwrap_or_else(|| {
                self.shards.push(Shard::of(group, address));
                ShardId(self.shards.len() - 1)
            });
            if let Some(shard) = self.shard_mut(id) {
                (shard.nodes, shard.master) = (nodes_of(group), group.master.id.clone());
                shard.lead_to(address);
            }
            for slot in group.slots.iter().cloned().flatten() {
                if let Some(entry) = slots.get_mut(usize::from(slot)) {
                    *entry = Some(id);
                }
            }
            entered.push(id);
        }
        // A shard that is not named any more keeps its address, but its nodes are asked nothing.
        for (at, shard) in self.shards.iter_mut().enumerate() {
            if !entered.contains(&ShardId(at)) {
                shard.nodes.clear();
            }
        }
        self.slots = slots;
        self.in_doubt = false;
    }

    /// The known shard of each group: the one with the same master, or else the one that had this
    /// master among its nodes. All masters are compared first, since a replica may also go from one
    /// shard to another.
    fn recognised(&self, layout: &Layout) -> Vec<Option<ShardId>> {
        let has_master = |shard: &Shard, group: &Group| shard.master == group.master.id;
        let has_node = |shard: &Shard, group: &Group| shard.nodes.contains_key(&group.master.id);
        let rules: [fn(&Shard, &Group) -> bool; 2] = [has_master, has_node];
        let mut found = vec![None; layout.len()];
        for is_same in rules {
            for (at, group) in layout.iter().enumerate() {
                if found[at].is_some() {
                    continue;
                }
                let mut shards = self.shards.iter().enumerate();
                found[at] = shards
                    .find(|(id, shard)| {
                        !found.contains(&Some(ShardId(*id))) && is_same(shard, group)
                    })
                    .map(|(id, _)| ShardId(id));
            }
        }
        found
    }
}

fn nodes_of(group: &Group) -> HashMap<String, Option<Address>> {
    let all = group.replicas.iter().chain([&group.master]);
    all.map(|node: &Node| (node.id.clone(), node.address.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> Node {
        Node {
            id: name.to_owned(),
            address: Some(Address::new(name, 1)),
        }
    }

    fn group(master: &str, replicas: &[&str], slots: std::ops::RangeInclusive<u16>) -> Group {
        Group {
            master: node(master),
            replicas: replicas.iter().map(|name| node(name)).collect(),
            slots: vec![slots],
        }
    }

    fn two_shards() -> SlotMap {
        let mut map = SlotMap::empty();
        map.enter(&vec![
            group("a", &["c"], 0..=99),
            group("b", &["d"], 100..=16_383),
        ]);
        map
    }

    fn address(map: &SlotMap, slot: u16) -> String {
        let shard = map.shard_of(slot).and_then(|id| map.shard(id));
        shard.unwrap().address.host.clone()
    }

    fn epoch(map: &SlotMap, slot: u16) -> u64 {
        let shard = map.shard_of(slot).and_then(|id| map.shard(id));
        shard.unwrap().epoch.load(Ordering::SeqCst)
    }

    #[test]
    fn a_shard_keeps_its_id_when_a_replica_takes_over_and_its_epoch_grows() {
        let mut map = two_shards();
        let before = map.shard_of(0);
        map.enter(&vec![
            group("c", &["a"], 0..=99),
            group("b", &["d"], 100..=16_383),
        ]);
        assert_eq!(map.shard_of(0), before);
        assert_eq!((address(&map, 0), epoch(&map, 0)), ("c".to_owned(), 1));
        assert_eq!((address(&map, 100), epoch(&map, 100)), ("b".to_owned(), 0));
    }

    #[test]
    fn a_replica_that_has_gone_to_another_shard_takes_over_there() {
        let mut map = two_shards();
        let (first, second) = (map.shard_of(0), map.shard_of(100));
        let layout = vec![group("a", &[], 0..=99), group("c", &["d"], 100..=16_383)];
        // Nobody saw it move: the first shard keeps its master, and the second one is new.
        map.enter(&layout);
        assert_eq!(map.shard_of(0), first);
        assert_ne!(map.shard_of(100), second);
        assert_eq!(address(&map, 100), "c");
    }

    #[test]
    fn a_slot_that_no_answer_names_has_no_shard_and_a_later_answer_gives_it_one() {
        let mut map = two_shards();
        map.enter(&vec![group("a", &["c"], 0..=99)]);
        assert_eq!(map.shard_of(100), None);
        let known = map.shard_of(0);
        map.enter(&vec![group("a", &["c"], 0..=100)]);
        assert_eq!(map.shard_of(100), known);
    }

    #[test]
    fn a_moved_slot_leads_to_the_node_that_was_named_also_if_that_was_a_replica() {
        let mut map = two_shards();
        let second = map.shard_of(100);
        map.moved(5, &Address::new("b", 1));
        assert_eq!((map.shard_of(5), epoch(&map, 5)), (second, 0));
        map.moved(6, &Address::new("d", 1));
        assert_eq!(map.shard_of(6), second);
        assert_eq!((address(&map, 6), epoch(&map, 6)), ("d".to_owned(), 1));
        assert!(!map.in_doubt && map.named_by_a_move.is_none());
        let unknown = Address::new("e", 1);
        map.moved(7, &unknown);
        assert!(map.in_doubt && map.shard_of(7).is_none());
        assert_eq!(map.named_by_a_move, Some(unknown));
    }
}
