//! The renewals of a shard's keeper, including leases whose slots have moved.
//!
//! A shard's keeper keeps a lease for as long as it is held. If another shard has its slot by now,
//! its renewals go there, on a connection outside that shard's pool, in one round trip for all of
//! them. A `MOVED` is followed at once. After any other refusal the schedule retries soon.
//!
//! Batches for other shards go first. A silent shard must not hold up the rest: a shard other than
//! the keeper's own has little time to answer, and once leases have moved, the keeper's own
//! connection is opened only if its shard answers a `PING` in the same time.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use super::Servers;
use crate::{
    cluster::ShardId,
    error::{Error, Result},
    pool::HOPS,
    server::{
        Failure, RenewalAnswer, RenewalReply, Renewals, RenewalsConnection, Replies,
        renewals::SHORTEST_PATIENCE,
    },
    time::Deadline,
    wire::Call,
};

/// Another shard has a twelfth of the shortest lease to answer: at least this, and at most
/// [`SHORTEST_PATIENCE`].
const SHORTEST: Duration = Duration::from_millis(100);

/// The watchdog's connection to a shard, and those to the shards that have received some of its
/// slots.
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

    /// Groups the calls by shard, according to the map. Calls whose shard is unknown go to the
    /// keeper's own, which is last.
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

    /// Opens the connection to a shard, unless it is open. If there are several, the shard first
    /// has to answer a `PING` within the limit.
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
    /// A connection for the renewals of a shard, without notifications of changes of its keys.
    pub(crate) fn untracked_renewals(self: &Arc<Self>, id: ShardId) -> Result<Box<dyn Renewals>> {
        let own = RenewalsConnection::untracked(self.nodes.pool_of(id)?.connector());
        Ok(Box::new(Following::new(self, id, own)))
    }
}

impl Renewals for Following {
    /// Also true once calls go elsewhere, or if the shard has no slots and may be gone: then a
    /// batch opens the connection if a call goes there.
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
