//! The renewals of a shard's keeper, including those of leases whose slots have moved.
//!
//! The keeper of a shard keeps a lease for as long as it is held. If another shard has its slot by
//! now, its renewals go there, on a connection outside that shard's pool, in one round trip for all
//! of them. A `MOVED` is followed at once. All other refusals are left to the schedule, which tries
//! again soon.
//!
//! Those of other shards go first. A silent shard must not hold up the others: each but the
//! keeper's own has little time to answer; and where calls go elsewhere, the connection to the
//! keeper's own is opened only if that answers as soon.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use super::Servers;
use crate::{
    cluster::ShardId,
    error::{Error, Result},
    pool::{HOPS, Pool},
    server::{
        Failure, RenewalAnswer, RenewalReply, Renewals, RenewalsConnection, Replies,
        renewals::SHORTEST_PATIENCE,
    },
    time::Deadline,
    wire::Call,
};

/// Another shard has a twelfth of the shortest lease to answer: no less than this, and no more than
/// [`SHORTEST_PATIENCE`].
const SHORTEST: Duration = Duration::from_millis(100);

/// The watchdog's connection to a shard, and those to the shards that have got some of its slots.
pub(super) struct Following {
    servers: Arc<Servers>,
    id: ShardId,
    own: RenewalsConnection,
    away: HashMap<ShardId, RenewalsConnection>,
}

impl Following {
    pub(super) fn new(servers: &Arc<Servers>, id: ShardId, own: RenewalsConnection) -> Self {
        Self {
            servers: Arc::clone(servers),
            id,
            own,
            away: HashMap::new(),
        }
    }

    /// The shards of these calls, as far as they are known, and the keeper's own otherwise and
    /// last.
    fn by_shard(&self, calls: &[Call], places: &[usize]) -> Vec<(ShardId, Vec<usize>)> {
        let mut by_shard: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for place in places {
            let key = calls.get(*place).map_or("", Call::key);
            let shard = self.servers.nodes().known_shard_of(key);
            let shard = shard.unwrap_or(self.id);
            by_shard.entry(shard).or_default().push(*place);
        }
        let home = by_shard.remove_entry(&self.id);
        by_shard.into_iter().chain(home).collect()
    }

    fn learn_of_a_move(&self, (_, failure): &RenewalReply) -> bool {
        let Some(Failure::Sent(error)) = failure.as_deref() else {
            return false;
        };
        self.servers.nodes().redirect(error).is_some() && error.code() == Some("MOVED")
    }

    fn send_to(&mut self, shard: ShardId, calls: &[Call], shortest_lease: Duration) -> Replies {
        let limit = (shortest_lease / 12).clamp(SHORTEST, SHORTEST_PATIENCE);
        if let Err(failure) = self.open_to(shard, limit) {
            return Replies {
                replies: vec![(RenewalAnswer::Refused, Some(failure)); calls.len()],
                broken: true,
            };
        }
        match self.away.get_mut(&shard) {
            Some(away) => away.send_within(calls, limit),
            None => self.own.send(calls, shortest_lease),
        }
    }

    /// Opens the connection to a shard, unless it is open. Where there is more than one, the shard
    /// first has to answer within the limit.
    fn open_to(&mut self, shard: ShardId, limit: Duration) -> Result<(), Arc<Failure>> {
        let unsent = |error| Arc::new(Failure::Unsent(error));
        let nodes = self.servers.nodes();
        if shard != self.id && !self.away.contains_key(&shard) {
            let connector = nodes.pool_of(shard).map_err(unsent)?.connector();
            let away = RenewalsConnection::untracked(connector);
            self.away.insert(shard, away);
        }
        let has_away = !self.away.is_empty();
        let connection = self.away.get_mut(&shard).unwrap_or(&mut self.own);
        let longest = if has_away { limit } else { Duration::MAX };
        match connection.is_open_by(Deadline::after(longest)) {
            Some(true) => return Ok(()),
            Some(false) => {}
            None => return Err(unsent(in_use())),
        }
        if has_away {
            let answers = nodes.ping(shard, Deadline::after(limit));
            answers.map_err(unsent)?;
        }
        connection.open()
    }
}

impl Servers {
    /// A connection for the renewals of a shard, nobody being told of changes of its keys.
    pub(crate) fn untracked_renewals(
        self: &Arc<Self>,
        id: ShardId,
        pool: &Pool,
    ) -> Box<dyn Renewals> {
        let own = RenewalsConnection::untracked(pool.connector());
        Box::new(Following::new(self, id, own))
    }
}

impl Renewals for Following {
    /// True as well once calls go elsewhere, or while the shard has no slots and may be gone: then
    /// a batch opens the connection to it if a call goes there.
    fn is_open(&self) -> bool {
        !self.away.is_empty() || self.own.is_open() || !self.servers.nodes().serves_slots(self.id)
    }

    fn open(&mut self) -> Result<(), Arc<Failure>> {
        self.own.open()
    }

    fn send(&mut self, calls: &[Call], shortest_lease: Duration) -> Replies {
        let mut replies: Vec<RenewalReply> = vec![(RenewalAnswer::Unanswered, None); calls.len()];
        let (mut broken, mut places) = (false, (0..calls.len()).collect::<Vec<_>>());
        // Again for those that have moved.
        for _ in 0..=HOPS {
            for (shard, places) in self.by_shard(calls, &places) {
                let some = places.iter().filter_map(|place| calls.get(*place));
                let some: Vec<Call> = some.cloned().collect();
                let sent = self.send_to(shard, &some, shortest_lease);
                broken |= shard == self.id && sent.broken;
                for (place, answer) in places.iter().zip(sent.replies) {
                    replies[*place] = answer;
                }
            }
            places.retain(|place| self.learn_of_a_move(&replies[*place]));
        }
        Replies { replies, broken }
    }
}

fn in_use() -> Error {
    Error::Pool {
        reason: String::from("the listener's thread is using the connection to this shard"),
        source: None,
    }
}
