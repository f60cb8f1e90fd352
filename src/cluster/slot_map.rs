//! The shard of each slot: a plain value that records the answers of nodes.
//!
//! A shard is a master and its replicas. It keeps its [`ShardId`] in a failover: its address
//! changes, and its epoch grows. The newest answer replaces everything known before. If that answer
//! is out of date, the node that it leads to answers `MOVED`, is not a master, or does not answer.

use std::collections::{BTreeSet, HashMap};

use super::layout::{Layout, Node, SLOTS, ShardLayout};
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
    /// The id of the master.
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

/// A node of a shard, master or replica.
struct KnownNode {
    shard: ShardId,
    /// `None`: it is not known, or the newest answer does not name the node.
    address: Option<Address>,
}

/// All shards, and the shard of each slot.
pub(super) struct SlotMap {
    shards: Vec<Shard>,
    /// By the id of the node. A node that the newest answer does not name stays: a later answer may
    /// name it as the master of its shard, since nodes learn of a failover one after another.
    members: HashMap<String, KnownNode>,
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
            members: HashMap::new(),
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

    /// The shards that serve slots, and the number of slots that none serves.
    pub(super) fn serving(&self) -> (BTreeSet<ShardId>, usize) {
        let serving = self.slots.iter().copied().flatten().collect();
        let is_unserved = |slot: &&Option<ShardId>| slot.is_none();
        (serving, self.slots.iter().filter(is_unserved).count())
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

    /// Records whether the master of this epoch, or of any, is in doubt.
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
        let others = self.members.values().filter_map(|it| it.address.clone());
        masters.chain(others).collect()
    }

    /// Records a `MOVED`: this node serves the slot, as the master of its shard.
    pub(super) fn moved(&mut self, slot: u16, to: &Address) {
        let is_it = |member: &&KnownNode| member.address.as_ref() == Some(to);
        let found = self.members.values().find(is_it).map(|it| it.shard);
        if let Some(entry) = self.slots.get_mut(usize::from(slot)) {
            *entry = found;
        }
        if let Some(shard) = found.and_then(|id| self.shards.get_mut(id.0)) {
            shard.lead_to(to.clone());
        } else {
            self.in_doubt = true;
            self.named_by_a_move = Some(to.clone()).filter(|to| to.host != "?");
        }
    }

    /// Replaces the map by the answer of a node. A shard whose master has no address serves
    /// nothing.
    pub(super) fn enter(&mut self, layout: Layout) {
        let mut slots = vec![None; usize::from(SLOTS)];
        // A shard that is no longer named keeps its address, but its nodes are not asked.
        for member in self.members.values_mut() {
            member.address = None;
        }
        let masters: Vec<_> = layout.iter().map(|it| it.master.id.clone()).collect();
        for found in layout {
            let Some(address) = found.master.address.clone() else {
                continue;
            };
            let known = self.recognised(&found, &masters);
            let shard = known.unwrap_or(ShardId(self.shards.len()));
            if known.is_none() {
                self.shards.push(Shard {
                    master: String::new(),
                    address: address.clone(),
                    epoch: 0,
                    in_doubt: false,
                });
            }
            self.shards[shard.0].lead_to(address);
            self.shards[shard.0].master.clone_from(&found.master.id);
            for slot in found.slots.into_iter().flatten() {
                slots[usize::from(slot)] = Some(shard);
            }
            for Node { id, address } in found.replicas.into_iter().chain([found.master]) {
                self.members.insert(id, KnownNode { shard, address });
            }
        }
        self.slots = slots;
        self.in_doubt = false;
    }

    /// Returns the known shard of this master: the one it last belonged to, or one that had some of
    /// its slots, unless that shard has another master now. A replica may have moved from one shard
    /// to another, and no earlier answer may have named it.
    fn recognised(&self, found: &ShardLayout, masters: &[String]) -> Option<ShardId> {
        let master = &found.master.id;
        let last = self.members.get(master).map(|member| member.shard);
        let slots = found.slots.iter().cloned().flatten();
        let of_slots = slots.filter_map(|slot| self.shard_of(slot));
        let is_its_own = |id: &ShardId| {
            let before = self.shards.get(id.0).map(|shard| &shard.master);
            before.is_some_and(|before| before == master || !masters.contains(before))
        };
        last.into_iter().chain(of_slots).find(is_its_own)
    }
}

#[cfg(test)]
mod tests {
    use std::ops::RangeInclusive;

    use super::*;

    fn node(name: &str) -> Node {
        Node {
            id: name.to_owned(),
            address: Some(Address::new(name, 1)),
        }
    }

    fn group(master: &str, replicas: &[&str], slots: RangeInclusive<u16>) -> ShardLayout {
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

    /// Right after a failover one node may no longer name the old master while another still does.
    /// A node may not know of a replica.
    #[test]
    fn a_shard_keeps_its_id_when_nodes_disagree_about_a_failover_or_omit_it() {
        let mut map = two_shards();
        let before = map.shard_of(0);
        for (shards, leads_to) in [
            (vec![group("c", &[], 0..=99)], "c"),
            (vec![group("a", &["c"], 0..=99)], "a"),
            (vec![], ""),
            (vec![group("c", &[], 0..=99)], "c"),
            (vec![group("e", &[], 0..=99)], "e"),
            (vec![group("c", &[], 0..=99)], "c"),
        ] {
            let is_named = !shards.is_empty();
            map.enter([shards, vec![group("b", &["d"], 100..=16_383)]].concat());
            assert_eq!(map.shard_of(0), before.filter(|_| is_named));
            assert!(!is_named || address(&map, 0) == leads_to);
        }
    }

    #[test]
    fn a_replica_that_moved_to_another_shard_takes_over_there() {
        let layout = vec![group("a", &[], 0..=99), group("c", &["d"], 100..=16_383)];
        for layout in [layout.clone(), layout.into_iter().rev().collect()] {
            let mut map = two_shards();
            let (first, second) = (map.shard_of(0), map.shard_of(100));
            // No answer has shown that `c` moved. The first shard keeps its master.
            map.enter(layout);
            assert_eq!((map.shard_of(0), map.shard_of(100)), (first, second));
            assert_eq!(address(&map, 100), "c");
        }
    }

    #[test]
    fn a_slot_without_a_shard_gets_one_from_a_later_answer() {
        let mut map = two_shards();
        map.enter(vec![group("a", &["c"], 0..=99)]);
        assert_eq!(map.shard_of(100), None);
        let known = map.shard_of(0);
        map.enter(vec![group("a", &["c"], 0..=100)]);
        assert_eq!(map.shard_of(100), known);
    }

    #[test]
    fn a_moved_slot_leads_to_the_named_node_even_if_it_was_a_replica() {
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
        map.moved(8, &Address::new("?", 1));
        assert_eq!(map.named_by_a_move, None);
    }

    #[test]
    fn the_crc16_of_the_specifications_example() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(crc16(b""), 0);
    }

    #[test]
    fn only_the_text_in_the_first_braces_counts() {
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
