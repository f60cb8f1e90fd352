//! The servers of a Redis Cluster: one for each shard. Calls follow a key that is on another shard.
//!
//! A [`Member`] is a shard, as the locks on it see it. A call about a key that has moved goes to
//! the shard that has it: a lease stays with its keeper, wherever its slot goes. [`Following`] does
//! this for batches of renewals. Only an acquire gets the refusal itself, since its thread has to
//! wait in the queue of the shard that has the key.
//!
//! Depending on the reply:
//! - **`MOVED`**: the map learns of the move, and the shard that has the slot is asked, at most
//!   [`HOPS`](crate::pool::HOPS) times for a call.
//! - **`ASK`, `TRYAGAIN`**: the slot is being moved. The call is resent after a pause, for at most
//!   one I/O time-out.
//! - **`CLUSTERDOWN` and similar**: the map is in doubt, and the caller gets the error.
//!
//! **Renewals.** A shard's keeper keeps a lease for as long as it is held. If another shard has its
//! slot by now, its renewals go there, on a connection outside that shard's pool, in one round trip
//! for all of them. A `MOVED` is followed at once. After any other refusal the schedule retries
//! soon. Batches for other shards go first. A silent shard must not hold up the rest: a shard other
//! than the keeper's own has little time to answer, and once leases have moved, the keeper's own
//! connection is opened only if its shard answers a `PING` in the same time.
//!
//! Locks: `of_shards`, for a moment, and `pools` of [`Nodes`] within it. Nothing is sent meanwhile.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Weak},
    time::Duration,
};

use redis::{RedisError, RedisResult, Value};

use super::{
    Observer, Patience, RedisServer, RenewalAnswer, RenewalError, Renewals, RenewalsConnection,
    Replies, Reply, Server,
    renewals::{RenewalReply, SHORTEST_PATIENCE},
};
use crate::{
    cancel::Cancel,
    cluster::{Nodes, PerShard, Redirect, ShardId},
    error::{Error, Result, no_answer},
    pool::{HOPS, Limits, PooledConnection},
    time::{Backoff, Deadline},
    wire::Call,
};

/// The pauses between hops: two nodes that name each other agree after a moment.
const FIRST_HOP: Duration = Duration::from_millis(20);
const LAST_HOP: Duration = Duration::from_millis(160);
/// The shortest time that another shard gets to answer. Its limit is a twelfth of the shortest
/// lease, between this and [`SHORTEST_PATIENCE`].
const SHORTEST: Duration = Duration::from_millis(100);

/// The shards of a cluster that have been used.
pub(crate) struct Servers {
    nodes: Nodes,
    of_shards: PerShard<Arc<RedisServer>>,
}

impl Servers {
    pub(crate) fn new(nodes: &Nodes) -> Arc<Self> {
        Arc::new(Self {
            nodes: nodes.clone(),
            of_shards: PerShard::default(),
        })
    }

    pub(crate) fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// A shard, as the locks on it see it.
    pub(crate) fn member(self: &Arc<Self>, id: ShardId) -> Result<Member> {
        Ok(Member::new(self, id, self.server(id)?))
    }

    /// A connection for the renewals of a shard, without notifications of changes of its keys.
    pub(crate) fn untracked_renewals(self: &Arc<Self>, id: ShardId) -> Result<Box<dyn Renewals>> {
        let own = RenewalsConnection::untracked(self.nodes.pool_of(id)?.connector());
        Ok(Box::new(Following::new(self, id, own)))
    }

    fn server(&self, id: ShardId) -> Result<Arc<RedisServer>> {
        let make = || Ok(Arc::new(RedisServer::new(&self.nodes.pool_of(id)?)));
        self.of_shards.get_or_make(id, make)
    }

    /// Records a redirect in the map. `None`: the reply is not a redirect.
    fn redirect<T>(&self, answer: &RedisResult<T>) -> Option<Redirect> {
        self.nodes.redirect(answer.as_ref().err()?)
    }
}

/// A shard's own server, and access to the other shards.
pub(crate) struct Member {
    servers: Arc<Servers>,
    id: ShardId,
    own: Arc<RedisServer>,
}

impl Member {
    fn new(servers: &Arc<Servers>, id: ShardId, own: Arc<RedisServer>) -> Self {
        let servers = Arc::clone(servers);
        Self { servers, id, own }
    }

    /// The server that has this key, according to the map.
    fn server_of(&self, key: &str, by: Option<Deadline>) -> Result<Arc<RedisServer>> {
        let longest = Deadline::after(self.limits().connect);
        let longest = longest.or_sooner(by.and_then(Deadline::moment));
        let id = self.servers.nodes().shard_for(key, longest)?;
        if id == self.id {
            return Ok(Arc::clone(&self.own));
        }
        self.servers.server(id)
    }

    fn asked(&self, call: &Call, patience: Patience<'_>) -> Result<Reply> {
        let server = self.server_of(call.key(), patience.by)?;
        server.ask(call, patience)
    }

    /// True if a call that got this reply must be resent. Pauses first if necessary.
    fn goes_on(&self, answer: &RedisResult<Value>, resending: &mut Resending) -> bool {
        match self.servers.redirect(answer) {
            Some(Redirect::Moved) if resending.hops < HOPS => {
                resending.hops += 1;
                let is_first = resending.hops == 1;
                is_first || resending.between_hops.pause(resending.until)
            }
            Some(Redirect::Moving) => resending.pauses.pause(resending.until),
            Some(Redirect::Moved | Redirect::Down) | None => false,
        }
    }

    fn resending(&self, by: Option<Deadline>) -> Resending {
        let longest = Deadline::after(self.limits().answer);
        Resending {
            until: longest.or_sooner(by.and_then(Deadline::moment)),
            pauses: Backoff::new(),
            between_hops: Backoff::between(FIRST_HOP, LAST_HOP),
            hops: 0,
        }
    }
}

/// The limits on resending a call.
struct Resending {
    until: Deadline,
    pauses: Backoff,
    between_hops: Backoff,
    hops: u32,
}

impl Server for Member {
    fn limits(&self) -> Limits {
        self.own.limits()
    }

    fn lend(&self, key: &str) -> Result<PooledConnection> {
        self.server_of(key, None)?.lend(key)
    }

    fn is_elsewhere(&self, error: &RedisError) -> bool {
        !matches!(
            self.servers.nodes().redirect(error),
            None | Some(Redirect::Down)
        )
    }

    fn clock_skew(&self) -> Duration {
        self.own.clock_skew()
    }

    fn ask(&self, call: &Call, patience: Patience<'_>) -> Result<Reply> {
        if patience.tells_of_moves {
            let reply = self.own.ask(call, patience)?;
            let _ = self.servers.redirect(&reply.answer);
            return Ok(reply);
        }
        let mut reply = self.asked(call, patience)?;
        let mut resending = self.resending(patience.by);
        while self.goes_on(&reply.answer, &mut resending) {
            let was_sent_twice = reply.again;
            match self.asked(call, patience) {
                Ok(next) => reply = next,
                // An earlier call may have been executed without a reply, so this one is not simply
                // unsent.
                Err(_) if was_sent_twice => {
                    reply.answer = Err(no_answer());
                    return Ok(reply);
                }
                Err(error) => return Err(error),
            }
            reply.again |= was_sent_twice;
        }
        Ok(reply)
    }

    fn ask_all(&self, calls: &[Call], patience: Patience<'_>) -> Vec<Result<Reply>> {
        let nodes = self.servers.nodes();
        let is_here =
            |call: &Call| (nodes.known_shard_of(call.key())).is_none_or(|it| it == self.id);
        // Decided before the first reply: its redirect changes the map for all calls in its slot.
        let are_here: Vec<bool> = calls.iter().map(is_here).collect();
        let here = calls.iter().zip(&are_here).filter(|(_, is_here)| **is_here);
        let here: Vec<Call> = here.map(|(call, _)| call.clone()).collect();
        let mut replies = self.own.ask_all(&here, patience).into_iter();
        let follow = |(call, is_here): (&Call, &bool)| {
            let Some(reply) = is_here.then(|| replies.next()).flatten() else {
                return self.ask(call, patience);
            };
            let reply = reply?;
            let redirect = self.servers.redirect(&reply.answer);
            if matches!(redirect, None | Some(Redirect::Down)) {
                return Ok(reply);
            }
            let was_sent_twice = reply.again;
            let mut followed = self.ask(call, patience).unwrap_or(reply);
            followed.again |= was_sent_twice;
            Ok(followed)
        };
        calls.iter().zip(&are_here).map(follow).collect()
    }

    fn ask_once(&self, call: &Call) -> Result<RedisResult<Value>> {
        let mut resending = self.resending(None);
        loop {
            let answer = self.server_of(call.key(), None)?.ask_once(call)?;
            if !self.goes_on(&answer, &mut resending) {
                return Ok(answer);
            }
        }
    }

    fn ask_for_head(
        &self,
        call: &Call,
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<Option<Reply>> {
        let reply = self.own.ask_for_head(call, deadline, cancel)?;
        let _ = (reply.as_ref()).map(|reply| self.servers.redirect(&reply.answer));
        Ok(reply)
    }

    fn renewals(&self) -> Box<dyn Renewals> {
        let own = self.own.renewals_connection();
        Box::new(Following::new(&self.servers, self.id, own))
    }

    fn report_to(&self, observer: Weak<dyn Observer>) -> Result<()> {
        self.own.report_to(observer)
    }

    fn start_notifications(&self) {
        self.own.start_notifications();
    }

    fn close(&self) {
        self.own.close();
    }
}

/// The watchdog's connection to a shard, and those to the shards that have received some of its
/// slots.
struct Following {
    servers: Arc<Servers>,
    id: ShardId,
    own: RenewalsConnection,
    away: HashMap<ShardId, RenewalsConnection>,
}

impl Following {
    fn new(servers: &Arc<Servers>, id: ShardId, own: RenewalsConnection) -> Self {
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
        let Some(RenewalError::Sent(error)) = failure.as_deref() else {
            return false;
        };
        self.servers.nodes().redirect(error).is_some() && error.code() == Some("MOVED")
    }

    /// Asks the nodes if the map lacks the shard of a call: its `MOVED` named an unknown node, such
    /// as a promoted replica that no answer has named.
    fn look_up(&self, calls: &[Call], places: &[usize], limit: Duration) {
        let nodes = self.servers.nodes();
        let keys = places.iter().filter_map(|place| calls.get(*place));
        let mut keys = keys.map(Call::key);
        if let Some(key) = keys.find(|key| nodes.known_shard_of(key).is_none()) {
            let _ = nodes.shard_for(key, Deadline::after(limit));
        }
    }

    fn send_to(&mut self, shard: ShardId, calls: &[Call], shortest_lease: Duration) -> Replies {
        let limit = away_limit(shortest_lease);
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
    fn open_to(&mut self, shard: ShardId, limit: Duration) -> Result<(), Arc<RenewalError>> {
        let unsent = |error| Arc::new(RenewalError::Unsent(error));
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

impl Renewals for Following {
    /// True if no connection has to be opened before the next batch. Once leases have moved, or if
    /// the shard has no slots and may be gone, the batch itself opens each connection that its
    /// calls need.
    fn is_open(&self) -> bool {
        !self.away.is_empty() || self.own.is_open() || !self.servers.nodes().serves_slots(self.id)
    }

    fn open(&mut self) -> Result<(), Arc<RenewalError>> {
        self.own.open()
    }

    fn send(&mut self, calls: &[Call], shortest_lease: Duration) -> Replies {
        let mut replies: Vec<RenewalReply> = vec![(RenewalAnswer::Unanswered, None); calls.len()];
        let (mut broken, mut places) = (false, (0..calls.len()).collect::<Vec<_>>());
        // Resends the calls whose keys have moved.
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
            self.look_up(calls, &places, away_limit(shortest_lease));
        }
        Replies { replies, broken }
    }
}

/// The time limit for another shard, and for a look at the map.
fn away_limit(shortest_lease: Duration) -> Duration {
    (shortest_lease / 12).clamp(SHORTEST, SHORTEST_PATIENCE)
}

fn in_use() -> Error {
    let reason = "the listener's thread is using the connection to this shard";
    Error::pool(reason, None)
}
