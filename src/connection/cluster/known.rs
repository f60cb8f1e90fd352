//! What is known of a cluster, and what of an answer is believed.
//!
//! A shard is a master and its replicas, and keeps its name when one of these takes over: that is another address of the same
//! shard. What is believed:
//! - Nothing of an older configuration than the newest that a node that is well has told: a node that lags behind would lead back to
//!   masters that were replaced.
//! - Nothing of another cluster: an answer that names none of the nodes that were known. A node of that one may have come to the address
//!   of a node that has died. Only when no node has answered otherwise for [`STRANGE`](super::map::STRANGE), or nobody had asked for
//!   twice that, another cluster was made in place of this one, and counts its configurations from the beginning.
//! - A node's answer that does not reach most of the masters, only if no node that does has
//!   answered of those that were asked.
//! - An answer with a hole, which does not say of every slot who its master is and where, only if no node has a better one. Of the
//!   slots in the hole stays what was known of them: a node that has just been added knows little, and takes nothing away.
//! - Of a `MOVED`: that the node which it names has the one slot, and is the master of its shard. A node that is no master says so
//!   when a connection to it is opened.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use super::{
    layout::{Address, Group, Layout, Node},
    slot::SLOTS,
};

/// A shard of a cluster, for as long as the process knows the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ShardId(u16);

impl ShardId {
    fn at(self) -> usize {
        usize::from(self.0)
    }
}

/// In place of a shard's number, where it is not known which shard has a slot.
const NOBODY: u16 = u16::MAX;

/// A shard, as far as it is known.
pub(super) struct Shard {
    /// The names of all its nodes, the master's among them, each with its address if that is known.
    nodes: HashMap<String, Option<Address>>,
    master: String,
    /// Where its connections lead.
    pub(super) address: Address,
    /// Grows with each other address.
    pub(super) epoch: Arc<AtomicU64>,
    /// A connection to it has failed since it was last known to be good.
    pub(super) in_doubt: bool,
    /// The last answer named it.
    serves: bool,
}

impl Shard {
    fn lead_to(&mut self, address: &Address) -> bool {
        let is_news = self.address != *address;
        if is_news {
            self.address = address.clone();
            self.epoch.fetch_add(1, Ordering::SeqCst);
        }
        is_news
    }
}

/// What is known.
pub(super) struct Known {
    shards: Vec<Shard>,
    /// For each slot the number of the shard that has it, or [`NOBODY`].
    slots: Vec<u16>,
    /// The newest configuration that was heard of.
    pub(super) config_epoch: u64,
    /// When a node was asked last, whatever came of it.
    pub(super) asked: Option<Instant>,
    /// When an answer was believed last.
    pub(super) answered: Option<Instant>,
    /// Somebody has met what the map does not explain.
    pub(super) in_doubt: bool,
    /// The answer that was believed last is of a node that does not reach most of the masters.
    pub(super) is_second_best: bool,
    /// The node that a `MOVED` has named. It is asked first.
    pub(super) named: Option<Address>,
}

impl Known {
    pub(super) fn nothing() -> Self {
        Self {
            shards: Vec::new(),
            slots: vec![NOBODY; usize::from(SLOTS)],
            config_epoch: 0,
            asked: None,
            answered: None,
            in_doubt: false,
            is_second_best: false,
            named: None,
        }
    }

    pub(super) fn shard_of(&self, slot: u16) -> Option<ShardId> {
        let shard = *self.slots.get(usize::from(slot))?;
        (shard != NOBODY).then_some(ShardId(shard))
    }

    pub(super) fn shard(&self, id: ShardId) -> Option<&Shard> {
        self.shards.get(id.at())
    }

    pub(super) fn shard_mut(&mut self, id: ShardId) -> Option<&mut Shard> {
        self.shards.get_mut(id.at())
    }

    /// Whether the map as a whole, or one shard, is in doubt.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.in_doubt || self.shards.iter().any(|shard| shard.in_doubt)
    }

    /// The addresses of all nodes, those of the masters first.
    pub(super) fn addresses(&self) -> Vec<Address> {
        let masters = self.shards.iter().filter(|shard| shard.serves);
        let masters = masters.map(|shard| shard.address.clone());
        let others = self
            .shards
            .iter()
            .flat_map(|shard| shard.nodes.values().flatten());
        masters.chain(others.cloned()).collect()
    }

    /// The only address with this port at which a node is known. `None`: there is none, or there are several.
    pub(super) fn only_one_at(&self, port: u16) -> Option<Address> {
        let found: HashSet<_> = (self.addresses().into_iter())
            .filter(|address| address.port == port)
            .collect();
        let mut found = found.into_iter();
        found.next().filter(|_| found.next().is_none())
    }

    /// A `MOVED` has said that this node has the slot. Returns the node's shard, if that is known.
    pub(super) fn moved(&mut self, slot: u16, to: &Address) -> Option<ShardId> {
        let its_master = |shard: &Shard| shard.serves && shard.address == *to;
        let its_node = |shard: &Shard| shard.nodes.values().flatten().any(|node| node == to);
        let at = (self.shards.iter().position(its_master))
            .or_else(|| self.shards.iter().position(its_node));
        let id = at.and_then(|at| u16::try_from(at).ok());
        if let Some(place) = self.slots.get_mut(usize::from(slot)) {
            *place = id.unwrap_or(NOBODY);
        }
        let is_news = match at.and_then(|at| self.shards.get_mut(at)) {
            Some(shard) => shard.lead_to(to),
            None => true,
        };
        if is_news {
            self.in_doubt = true;
            self.named = Some(to.clone());
        }
        id.map(ShardId)
    }

    /// Whether this is the answer of another cluster: it names nodes, and none that is known.
    pub(super) fn is_strange(&self, layout: &Layout) -> bool {
        let named = || {
            layout
                .iter()
                .flat_map(|group| group.replicas.iter().chain([&group.master]))
        };
        let is_known = |node: &Node| {
            let mut shards = self.shards.iter();
            shards.any(|shard| shard.nodes.contains_key(&node.id))
        };
        !self.shards.is_empty() && named().next().is_some() && !named().any(is_known)
    }

    /// Forgets the newest configuration that was heard of: another cluster was made in place of this one.
    pub(super) fn begin_anew(&mut self) {
        self.config_epoch = 0;
    }

    /// Believes what a node says, or returns why not. `Ok(true)`: the answer has changed what is known.
    pub(super) fn believe(
        &mut self,
        layout: &Layout,
        config_epoch: Option<u64>,
    ) -> Result<bool, &'static str> {
        self.refuse_what_is_older(config_epoch)?;
        has_no_hole(layout)?;
        self.take(layout, config_epoch, vec![NOBODY; usize::from(SLOTS)])
    }

    /// The same of an answer with a hole, as far as it goes.
    pub(super) fn believe_in_part(
        &mut self,
        layout: &Layout,
        config_epoch: Option<u64>,
    ) -> Result<bool, &'static str> {
        self.refuse_what_is_older(config_epoch)?;
        let is_reached = |group: &&Group| group.master.address.is_some();
        let layout: Layout = layout.iter().filter(is_reached).cloned().collect();
        if layout.is_empty() {
            return Err("none of them knows of any slot whose it is");
        }
        self.take(&layout, config_epoch, self.slots.clone())
    }

    pub(super) fn refuse_what_is_older(
        &self,
        config_epoch: Option<u64>,
    ) -> Result<(), &'static str> {
        match config_epoch {
            Some(epoch) if epoch < self.config_epoch => {
                Err("the last one knows an older configuration than was heard of before")
            }
            _ => Ok(()),
        }
    }

    /// Enters a layout in which every master has an address. `slots` says who has the slots that the layout does not name.
    fn take(
        &mut self,
        layout: &Layout,
        config_epoch: Option<u64>,
        mut slots: Vec<u16>,
    ) -> Result<bool, &'static str> {
        let ids = self.recognised(layout)?;
        let mut is_news = false;
        for shard in &mut self.shards {
            shard.serves = false;
        }
        for (group, id) in layout.iter().zip(&ids) {
            is_news |= self.update(*id, group);
            for slot in group.slots.iter().cloned().flatten() {
                if let Some(place) = slots.get_mut(usize::from(slot)) {
                    *place = id.0;
                }
            }
        }
        is_news |= self.lead_on(&slots);
        is_news |= self.slots != slots;
        self.slots = slots;
        self.config_epoch = config_epoch.unwrap_or(self.config_epoch);
        self.in_doubt = false;
        self.named = None;
        Ok(is_news)
    }

    /// Which shard each group is: the one with the same master, or else one that had this master among its nodes, or else one whose
    /// master is a replica in the group now. Each rule is tried for all groups before the next one, since replicas also go from one
    /// shard to another.
    fn recognised(&self, layout: &Layout) -> Result<Vec<ShardId>, &'static str> {
        let by_master = |shard: &Shard, group: &Group| shard.master == group.master.id;
        let by_node = |shard: &Shard, group: &Group| shard.nodes.contains_key(&group.master.id);
        let by_replica = |shard: &Shard, group: &Group| {
            group.replicas.iter().any(|node| node.id == shard.master)
        };
        let rules: [fn(&Shard, &Group) -> bool; 3] = [by_master, by_node, by_replica];
        let mut found = vec![None; layout.len()];
        for rule in rules {
            for (at, group) in layout.iter().enumerate() {
                if found[at].is_none() {
                    let shard = (self.shards.iter().enumerate())
                        .find(|(id, shard)| !found.contains(&Some(*id)) && rule(shard, group));
                    found[at] = shard.map(|(id, _)| id);
                }
            }
        }
        let mut next = self.shards.len();
        let mut id = |found: Option<usize>| {
            let at = found.unwrap_or_else(|| {
                next += 1;
                next - 1
            });
            u16::try_from(at)
                .ok()
                .filter(|id| *id != NOBODY)
                .map(ShardId)
        };
        found
            .into_iter()
            .map(&mut id)
            .collect::<Option<Vec<_>>>()
            .ok_or("there have been more shards than can be counted")
    }

    /// The shard as it is now. New ones come in the order of their numbers.
    fn update(&mut self, id: ShardId, group: &Group) -> bool {
        let Some(address) = &group.master.address else {
            return false;
        };
        let all = group.replicas.iter().chain([&group.master]);
        let nodes = all.map(|node: &Node| (node.id.clone(), node.address.clone()));
        let (nodes, master) = (nodes.collect(), group.master.id.clone());
        let Some(shard) = self.shards.get_mut(id.at()) else {
            self.shards.push(Shard {
                nodes,
                master,
                address: address.clone(),
                epoch: Arc::default(),
                in_doubt: false,
                serves: true,
            });
            return true;
        };
        let is_news = shard.lead_to(address);
        (shard.nodes, shard.master, shard.serves) = (nodes, master, true);
        is_news
    }

    /// Has the connections of each shard that has no slots any more lead to the master that has got the first of its slots. Its own
    /// master may be removed, its locks have gone with its slots, and the other master knows where the other slots are.
    fn lead_on(&mut self, slots: &[u16]) -> bool {
        let mut heirs = HashMap::new();
        for (before, now) in self.slots.iter().zip(slots) {
            heirs.entry(*before).or_insert(*now);
        }
        let mut is_news = false;
        for at in 0..self.shards.len() {
            if self.shards[at].serves {
                continue;
            }
            let heir = u16::try_from(at).ok().and_then(|at| heirs.get(&at));
            let heir = heir.and_then(|heir| self.shards.get(usize::from(*heir)));
            let leads_to_a_master =
                (self.shards.iter()).any(|it| it.serves && it.address == self.shards[at].address);
            let heir = match heir {
                None if !leads_to_a_master => self.shards.iter().find(|shard| shard.serves),
                heir => heir,
            };
            if let Some(address) = heir.map(|heir| heir.address.clone()) {
                is_news |= self.shards[at].lead_to(&address);
            }
        }
        is_news
    }
}

/// Every slot has a master, whose address is known.
pub(super) fn has_no_hole(layout: &Layout) -> Result<(), &'static str> {
    let served = layout
        .iter()
        .flat_map(|group| group.slots.iter().cloned().flatten());
    if served.collect::<HashSet<_>>().len() != usize::from(SLOTS) {
        return Err("the last one does not know of every slot whose it is");
    }
    if layout.iter().any(|group| group.master.address.is_none()) {
        return Err("the last one does not know where every master is");
    }
    Ok(())
}

#[cfg(test)]
mod tests;
