//! The shard of each slot: a plain value, into which the answers of nodes are entered.
//!
//! A shard is a master and its replicas. It keeps its [`ShardId`] in a failover: its address
//! changes, and its epoch grows. The newest answer replaces everything known before. If that answer
//! is out of date, the node that it leads to answers `MOVED`, is not a master, or does not answer.

use std::collections::HashMap;

use super::layout::{Layout, SLOTS, ShardLayout};
use crate::pool::{Address, MasterPlace};

/// The slot of a key, by the text in its first pair of braces if there is any, otherwise by the
/// whole key.
pub(super) fn slot_of(key: &str) -> u16 {
    crc16(hashed_part(key).as_bytes()) % SLOTS
}

fn hashed_part(key: &str) -> &str {
    let tag = key.split_once('{').and_then(|(_, rest)| {
        let (tag, _) = rest.split_once('}')?;
        (!tag.is_empty()).then_some(tag)
    });
    tag.unwrap_or(key)
}

/// CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    let shifted = |crc: u16, _| match crc & 0x8000 {
        0 => crc << 1,
        _ => crc << 1 ^ 0x1021,
    };
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, shifted)
    })
}

/// A shard of a cluster, for the lifetime of the [`SlotMap`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ShardId(usize);

/// A master and its replicas.
struct Shard {
    /// The ids of all its nodes, including the master, each with its address if that is known.
    nodes: HashMap<String, Option<Address>>,
    master: String,
    /// The address for its connections.
    address: Address,
    /// Grows with each change of the address.
    epoch: u64,
    /// A connection to the master has failed, and none has been opened since.
    in_doubt: bool,
}

impl Shard {
    fn lead_to(&mut self, address: Address) {
        if self.address != address {
            self.address = address;
            self.epoch += 1;
        }
    }
}

/// All shards, and the shard of each slot.
pub(super) struct SlotMap {
    shards: Vec<Shard>,
    slots: Vec<Option<ShardId>>,
    /// A node's reply contradicts the map.
    pub(super) in_doubt: bool,
    /// The node that the last `MOVED` named, if the map does not know it: it is asked next.
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

    pub(super) fn place(&self, id: ShardId) -> Option<MasterPlace> {
        let shard = self.shards.get(id.0)?;
        Some(MasterPlace {
            address: shard.address.clone(),
            epoch: shard.epoch,
        })
    }

    /// Grows when the address of the shard changes.
    pub(super) fn epoch(&self, id: ShardId) -> u64 {
        self.shards.get(id.0).map_or(0, |shard| shard.epoch)
    }

    pub(super) fn is_in_doubt(&self, id: ShardId) -> bool {
        self.in_doubt || self.shards.get(id.0).is_none_or(|shard| shard.in_doubt)
    }

    /// Enters whether the master of this epoch, or of any, is in doubt.
    pub(super) fn set_in_doubt(&mut self, id: ShardId, epoch: Option<u64>, in_doubt: bool) {
        if let Some(shard) = self.shards.get_mut(id.0)
            && epoch.is_none_or(|epoch| shard.epoch == epoch)
        {
            shard.in_doubt = in_doubt;
        }
    }

    /// The addresses of all nodes, those of the masters first.
    pub(super) fn addresses(&self) -> Vec<Address> {
        let masters = self.shards.iter().map(|shard| shard.address.clone());
        let others = self.shards.iter().flat_map(|shard| shard.nodes.values());
        masters.chain(others.flatten().cloned()).collect()
    }

    /// Enters a `MOVED`: this node serves the slot, as the master of its shard.
    pub(super) fn moved(&mut self, slot: u16, to: &Address) {
        let is_node = |shard: &Shard| shard.nodes.values().flatten().any(|node| node == to);
        let mut shards = self.shards.iter();
        let found = (shards.position(|shard| shard.address == *to))
            .or_else(|| self.shards.iter().position(is_node));
        if let Some(entry) = self.slots.get_mut(usize::from(slot)) {
            *entry = found.map(ShardId);
        }
        if let Some(shard) = found.and_then(|at| self.shards.get_mut(at)) {
            shard.lead_to(to.clone());
        } else {
            self.in_doubt = true;
            self.named_by_a_move = Some(to.clone());
        }
    }

    /// Replaces the map by the answer of a node. A shard whose master has no address serves
    /// nothing.
    pub(super) fn enter(&mut self, layout: Layout) {
        let mut slots = vec![None; usize::from(SLOTS)];
        let mut entered = Vec::new();
        let masters: Vec<_> = layout.iter().map(|it| it.master.id.clone()).collect();
        for found in layout {
            let known = self.recognised(&found.master.id, &masters, &entered);
            let Some(address) = found.master.address.clone() else {
                continue;
            };
            let at = known.unwrap_or(self.shards.len());
            if known.is_none() {
                self.shards.push(Shard {
                    nodes: HashMap::new(),
                    master: String::new(),
                    address: address.clone(),
                    epoch: 0,
                    in_doubt: false,
                });
            }
            let shard = &mut self.shards[at];
            shard.lead_to(address);
            shard.master.clone_from(&found.master.id);
            for slot in found.slots.iter().cloned().flatten() {
                slots[usize::from(slot)] = Some(ShardId(at));
            }
            shard.nodes = nodes_of(found);
            entered.push(at);
        }
        // A shard that is no longer named keeps its address, but its nodes are not asked.
        for (at, shard) in self.shards.iter_mut().enumerate() {
            if !entered.contains(&at) {
                shard.nodes.clear();
            }
        }
        self.slots = slots;
        self.in_doubt = false;
    }

    /// The known shard of a master: the one with this master, or else one that had it as a node and
    /// has lost its own master. A replica may also have moved from one shard to another.
    fn recognised(&self, master: &str, masters: &[String], entered: &[usize]) -> Option<usize> {
        let mut shards = self.shards.iter();
        let same = shards.position(|shard| shard.master == master);
        same.or_else(|| {
            self.shards.iter().enumerate().position(|(at, shard)| {
                shard.nodes.contains_key(master)
                    && !masters.contains(&shard.master)
                    && !entered.contains(&at)
            })
        })
    }
}

fn nodes_of(shard: ShardLayout) -> HashMap<String, Option<Address>> {
    let all = shard.replicas.into_iter().chain([shard.master]);
    all.map(|node| (node.id, node.address)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::layout::Node;

    fn node(name: &str) -> Node {
        Node {
            id: name.to_owned(),
            address: Some(Address::new(name, 1)),
        }
    }

    fn group(master: &str, replicas: &[&str], slots: std::ops::RangeInclusive<u16>) -> ShardLayout {
        ShardLayout {
            master: node(master),
            replicas: replicas.iter().map(|name| node(name)).collect(),
            slots: vec![slots],
        }
    }

    fn two_shards() -> SlotMap {
        let mut map = SlotMap::empty();
        map.enter(vec![
            group("a", &["c"], 0..=99),
            group("b", &["d"], 100..=16_383),
        ]);
        map
    }

    fn address(map: &SlotMap, slot: u16) -> String {
        map.shard_of(slot)
            .and_then(|id| map.place(id))
            .unwrap()
            .address
            .host
    }

    fn epoch(map: &SlotMap, slot: u16) -> u64 {
        map.epoch(map.shard_of(slot).unwrap())
    }

    #[test]
    fn a_shard_keeps_its_id_when_a_replica_takes_over_and_its_epoch_grows() {
        let mut map = two_shards();
        let before = map.shard_of(0);
        map.enter(vec![
            group("c", &["a"], 0..=99),
            group("b", &["d"], 100..=16_383),
        ]);
        assert_eq!(map.shard_of(0), before);
        assert_eq!((address(&map, 0), epoch(&map, 0)), ("c".to_owned(), 1));
        assert_eq!((address(&map, 100), epoch(&map, 100)), ("b".to_owned(), 0));
    }

    #[test]
    fn a_replica_that_has_gone_to_another_shard_takes_over_there() {
        let layout = vec![group("a", &[], 0..=99), group("c", &["d"], 100..=16_383)];
        for layout in [layout.clone(), layout.into_iter().rev().collect()] {
            let mut map = two_shards();
            let (first, second) = (map.shard_of(0), map.shard_of(100));
            // The move was not seen: the first shard keeps its master, and the second one is new.
            map.enter(layout);
            assert_eq!(map.shard_of(0), first);
            assert_ne!(map.shard_of(100), second);
            assert_eq!(address(&map, 100), "c");
        }
    }

    #[test]
    fn a_slot_that_no_answer_names_has_no_shard_and_a_later_answer_gives_it_one() {
        let mut map = two_shards();
        map.enter(vec![group("a", &["c"], 0..=99)]);
        assert_eq!(map.shard_of(100), None);
        let known = map.shard_of(0);
        map.enter(vec![group("a", &["c"], 0..=100)]);
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

    #[test]
    fn the_checksum_of_the_standards_example() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(crc16(b""), 0);
    }

    #[test]
    fn only_what_stands_in_the_first_braces_counts() {
        for (key, part) in [
            ("lock:report", "lock:report"),
            ("{lock:report}:lease", "lock:report"),
            ("lock:{shop}:report", "shop"),
            ("lock:{shop}{other}", "shop"),
            ("a{}b{c}", "a{}b{c}"),
            ("a{b", "a{b"),
            ("a}b{c}", "c"),
            ("{{a}}", "{a"),
            ("", ""),
        ] {
            assert_eq!(hashed_part(key), part, "{key}");
            assert!(slot_of(key) < SLOTS);
        }
        // These are a server's replies to `CLUSTER KEYSLOT`.
        assert_eq!(slot_of("foo"), 12_182);
        assert_eq!(slot_of("lock:{foo}"), 12_182);
    }
}
