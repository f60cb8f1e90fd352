//! Where the master of a shard is.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use super::{map::Map, slot_map::ShardId};
use crate::{
    connection::master_locator::{MasterLocator, MasterPlace},
    error::Result,
    time::Deadline,
};

/// Leads the connections of a pool to the master of a shard.
pub(super) struct ToShard {
    map: Arc<Map>,
    id: ShardId,
    epoch: Arc<AtomicU64>,
}

impl ToShard {
    pub(super) fn new(map: &Arc<Map>, id: ShardId) -> Self {
        let (map, epoch) = (Arc::clone(map), map.epoch_of(id));
        Self { map, id, epoch }
    }
}

impl MasterLocator for ToShard {
    fn look(&self, deadline: Deadline) -> Result<MasterPlace> {
        self.map.look(self.id, deadline)
    }

    fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    fn confirm(&self, epoch: u64) {
        self.map.confirm(self.id, epoch);
    }

    /// The nodes are not asked for that: whether the next connection can be opened to this master
    /// says more, and nodes of other shards may be silent.
    fn doubt(&self) {}

    fn not_reached(&self, epoch: u64) {
        self.map.not_reached(self.id, epoch);
    }

    fn moved(&self) {
        self.map.doubt_all();
    }

    fn check(&self, unless_within: Duration) {
        self.map.check(self.id, unless_within);
    }

    fn whom(&self) -> String {
        let place = self.map.place(self.id);
        let place = place.map_or_else(String::new, |it| format!(", {}:{}", it.host, it.port));
        format!("the master of a shard{place}")
    }
}
