//! The renewals of a shard's keeper, including those of leases whose slots have moved.
//!
//! The keeper of a shard keeps a lease for as long as it is held. If another shard has its slot
//! now, its renewals go to that shard, on a connection outside that shard's pool, in one round trip
//! for all of them. They go first. A silent shard must not delay what goes to another one: each but
//! the keeper's own has little time to answer, and is left alone for a while after a failure; and
//! where calls go elsewhere, the connection to the keeper's own is opened only if that answers as
//! soon.
//!
//! A `MOVED` is followed at once. All other refusals are left to the schedule, which tries again
//! soon.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use redis::Connection;

use super::Servers;
use crate::{
    connection::{HOPS, Pool, Redirect, ShardId},
    error::{Error, Result},
    exchange::Finished,
    script::Call,
    server::{
        Answer, Failure, RenewalReply, Renewals, RenewalsConnection, Replies,
        renewals::{Batch, SHORTEST_PATIENCE},
    },
    time::{self, Deadline},
};

/// Another shard has a twelfth of the shortest lease to answer: no less than this, and no more than
/// [`SHORTEST_PATIENCE`].
const SHORTEST: Duration = Duration::from_millis(100);
/// A shard that has failed is not asked again sooner.
const REST: Duration = Duration::from_millis(500);

/// The watchdog's connection to a shard, and those to the shards that have got some of its slots.
pub(super) struct Following {
    servers: Arc<Servers>,
    id: ShardId,
    own: RenewalsConnection,
    away: HashMap<ShardId, Away>,
}

/// The connection to another shard.
#[derive(Default)]
struct Away {
    connection: Option<Connection>,
    failed: Option<Instant>,
}

/// Which calls go to which shard: places in the list of all renewals and, behind them, all orphans.
type ByShard = BTreeMap<ShardId, Vec<usize>>;

/// The calls of one batch and the replies to them, by place.
struct ShardBatch<'a> {
    renewals: &'a [Call],
    orphans: &'a [Call],
    replies: Vec<RenewalReply>,
    shortest_lease: Duration,
    /// The connection to the keeper's own shard was needed, and is not open any more.
    is_broken: bool,
}

impl ShardBatch<'_> {
    fn call(&self, place: usize) -> Option<&Call> {
        self.renewals.iter().chain(self.orphans).nth(place)
    }

    /// The calls at these places, as two lists.
    fn at(&self, places: &[usize]) -> (Vec<Call>, Vec<Call>) {
        let (renewals, orphans): (Vec<usize>, Vec<usize>) = places
            .iter()
            .partition(|place| **place < self.renewals.len());
        let calls = |places: Vec<usize>| {
            let calls = places.into_iter().filter_map(|place| self.call(place));
            calls.cloned().collect()
        };
        (calls(renewals), calls(orphans))
    }

    fn enter(&mut self, places: &[usize], replies: impl Iterator<Item = RenewalReply>) {
        for (place, reply) in places.iter().zip(replies) {
            if let Some(entry) = self.replies.get_mut(*place) {
                *entry = reply;
            }
        }
    }

    /// None of these was sent, since there is no connection.
    fn enter_unsent(&mut self, places: &[usize], error: Error) {
        let unsent: RenewalReply = (Answer::Refused, Some(Arc::new(Failure::Unsent(error))));
        self.enter(places, places.iter().map(|_| unsent.clone()));
    }

    /// The time that a shard has to answer, while another one may have to be renewed on.
    fn limit(&self, answer: Duration) -> Duration {
        let part = self.shortest_lease / 12;
        part.clamp(SHORTEST, SHORTEST_PATIENCE).min(answer)
    }
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

    /// The shard of each of these calls, as far as it is known: the keeper's own otherwise.
    fn by_shard(&self, sending: &ShardBatch<'_>, places: impl Iterator<Item = usize>) -> ByShard {
        let mut by_shard = ByShard::new();
        for place in places {
            let key = sending.call(place).map_or("", Call::key);
            let shard = self.servers.nodes().known_shard_of(key);
            let places = by_shard.entry(shard.unwrap_or(self.id)).or_default();
            places.push(place);
        }
        by_shard
    }

    /// Sends all of these, those of other shards first.
    fn send_to_shards(&mut self, sending: &mut ShardBatch<'_>, mut by_shard: ByShard) {
        let home = by_shard.remove(&self.id);
        for (shard, places) in by_shard {
            self.send_away(sending, shard, &places);
        }
        if let Some(home) = home {
            self.send_home(sending, &home);
        }
    }

    fn send_home(&mut self, sending: &mut ShardBatch<'_>, places: &[usize]) {
        if let Err(failure) = self.open_home(sending) {
            sending.is_broken = true;
            let refused: RenewalReply = (Answer::Refused, Some(failure));
            return sending.enter(places, places.iter().map(|_| refused.clone()));
        }
        let (renewals, orphans) = &sending.at(places);
        let judged = self
            .own
            .send_batch(&Batch { renewals, orphans }, sending.shortest_lease);
        sending.is_broken = !self.own.is_left_open;
        sending.enter(places, judged.renewals.into_iter().chain(judged.orphans));
    }

    /// Sees to it that the connection to the keeper's own shard is open. Calls that go elsewhere do
    /// not wait for a silent shard: it has to answer a `PING` first, as soon as another shard has
    /// to.
    fn open_home(&mut self, sending: &ShardBatch<'_>) -> Result<(), Arc<Failure>> {
        if self.away.is_empty() {
            return if self.own.is_open() {
                Ok(())
            } else {
                self.own.open()
            };
        }
        let nodes = self.servers.nodes();
        let deadline = Deadline::after(sending.limit(nodes.limits().answer));
        let unsent = |error| Arc::new(Failure::Unsent(error));
        match self.own.is_open_by(deadline) {
            Some(true) => return Ok(()),
            Some(false) => {}
            None => return Err(unsent(no_connection())),
        }
        let mut connection = nodes.open(self.id, deadline).map_err(unsent)?;
        let answer = redis::cmd("PING").exec(&mut connection);
        answer.map_err(|error| {
            nodes.doubt(self.id);
            Failure::sent(error)
        })?;
        self.own.open()
    }

    fn send_away(&mut self, sending: &mut ShardBatch<'_>, shard: ShardId, places: &[usize]) {
        let nodes = self.servers.nodes();
        let away = self.away.entry(shard).or_default();
        if away.failed.is_some_and(|failed| failed.elapsed() < REST) {
            return sending.enter_unsent(places, no_connection());
        }
        let deadline = Deadline::after(sending.limit(nodes.limits().answer));
        let (renewals, orphans) = &sending.at(places);
        let batch = Batch { renewals, orphans };
        let mut kept = away.connection.take();
        let (judged, finished) = loop {
            let was_kept = kept.is_some();
            let opened = kept.take().map_or_else(|| nodes.open(shard, deadline), Ok);
            let mut connection = match opened {
                Ok(connection) => connection,
                Err(error) => {
                    away.failed = Some(time::now());
                    return sending.enter_unsent(places, error);
                }
            };
            let (judged, finished) = batch.send_by(&mut connection, deadline.remaining());
            // The server may have closed the connection that was kept.
            if was_kept && finished == Some(Finished::Broken) && !deadline.has_passed() {
                continue;
            }
            away.connection = finished.is_none().then_some(connection);
            break (judged, finished);
        };
        if finished.is_some() {
            nodes.doubt(shard);
            away.failed = Some(time::now());
        }
        sending.enter(places, judged.renewals.into_iter().chain(judged.orphans));
    }

    /// The places of the calls whose keys another shard has: the map knows by now which.
    fn moved(&self, sending: &ShardBatch<'_>) -> Vec<usize> {
        let has_moved = |failure: &Option<Arc<Failure>>| match failure.as_deref() {
            Some(Failure::Sent(error)) => {
                self.servers.nodes().redirect(error) == Some(Redirect::Moved)
            }
            _ => false,
        };
        let replies = sending.replies.iter().enumerate();
        replies
            .filter(|(_, (_, failure))| has_moved(failure))
            .map(|(place, _)| place)
            .collect()
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
    /// Once calls go elsewhere each batch is sent: [`open_home`](Following::open_home) opens the
    /// connection to the keeper's own shard if a call goes there. A shard without slots may be
    /// gone.
    fn is_open(&self) -> bool {
        !self.away.is_empty() || self.own.is_open() || !self.servers.nodes().serves_slots(self.id)
    }

    fn open(&mut self) -> Result<(), Arc<Failure>> {
        self.own.open()
    }

    fn send(&mut self, renewals: &[Call], orphans: &[Call], shortest_lease: Duration) -> Replies {
        let count = renewals.len() + orphans.len();
        let mut sending = ShardBatch {
            renewals,
            orphans,
            replies: vec![(Answer::Unanswered, None); count],
            shortest_lease,
            is_broken: false,
        };
        let mut by_shard = self.by_shard(&sending, 0..count);
        for _ in 0..=HOPS {
            self.send_to_shards(&mut sending, by_shard);
            let moved = self.moved(&sending);
            if moved.is_empty() {
                break;
            }
            by_shard = self.by_shard(&sending, moved.into_iter());
        }
        let orphans = sending.replies.split_off(renewals.len());
        Replies {
            renewals: sending.replies,
            orphans: orphans.into_iter().map(|(answer, _)| answer).collect(),
            broken: sending.is_broken,
        }
    }
}

fn no_connection() -> Error {
    Error::Pool {
        reason: String::from("a shard of the cluster is not reached"),
        source: None,
    }
}
