//! The renewals of a shard's keeper, including those of leases whose slots have moved.
//!
//! The keeper of a shard keeps a lease for as long as it is held. If another shard has its slot now, its renewals go to that shard, on
//! a connection outside that shard's pool, in one round trip for all of them. What goes elsewhere must not delay what stays here: another
//! shard has little time to answer, and is left alone for a while after it was silent.

use std::{
    borrow::Cow,
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use redis::Value;

use super::Servers;
use crate::{
    connection::{Address, HOPS, Pool, Redirect, ShardId},
    error::{Error, Result},
    exchange::Finished,
    script::Call,
    server::{
        Answer, Failure, RenewalReply, Renewals, RenewalsConnection, Replies,
        renewals::{Batch, Judged, SHORTEST_PATIENCE, judged, refused},
    },
    time::{self, Deadline},
};

/// Another shard has a twelfth of the shortest lease to answer: no less than this, and no more than [`SHORTEST_PATIENCE`].
const SHORTEST: Duration = Duration::from_millis(100);
/// A shard that was silent is not asked again sooner.
const REST: Duration = Duration::from_millis(500);

/// The watchdog's connection to a shard, and the way to the others.
pub(super) struct Following {
    servers: Arc<Servers>,
    id: ShardId,
    own: RenewalsConnection,
    /// Some calls have gone to other shards. They have to get there also while the keeper's own shard is down.
    has_been_away: bool,
    /// The shards that were silent, and when.
    silent: HashMap<ShardId, Instant>,
}

/// What has to be sent, and what has become of it: the renewals, and behind them the orphans.
struct Sending<'a> {
    renewals: Cow<'a, [Call]>,
    orphans: &'a [Call],
    replies: Vec<RenewalReply>,
    /// How long another shard may take.
    limit: Duration,
    /// The shortest of the leases that are renewed.
    shortest_lease: Duration,
    /// The connection to its own shard was needed, and is not open any more.
    is_broken: bool,
}

/// Where answers lead.
#[derive(Default)]
struct Leads {
    moved: HashMap<ShardId, Vec<usize>>,
    asking: HashMap<Address, Vec<usize>>,
    /// The keys of these are not all in one place.
    apart: Vec<usize>,
}

impl Sending<'_> {
    fn calls(&self) -> impl Iterator<Item = &Call> {
        self.renewals.iter().chain(self.orphans)
    }

    /// Shortens the renewal at this place to its first key. False: it cannot be shortened.
    fn narrow(&mut self, place: usize) -> bool {
        let Some(by_one_key) = self.renewals.get(place).and_then(Call::by_one_key) else {
            return false;
        };
        if let Some(renewal) = self.renewals.to_mut().get_mut(place) {
            *renewal = by_one_key;
        }
        true
    }

    /// Those at these places, as two lists.
    fn at(&self, places: &[usize]) -> (Vec<Call>, Vec<Call>) {
        let chosen = |list: &[Call], before: usize| {
            let places = places.iter().filter_map(|place| place.checked_sub(before));
            places.filter_map(|at| list.get(at).cloned()).collect()
        };
        (
            chosen(&self.renewals, 0),
            chosen(self.orphans, self.renewals.len()),
        )
    }

    fn enter(&mut self, places: &[usize], judged: Judged) {
        let all = judged.renewals.into_iter().chain(judged.orphans);
        for (place, reply) in places.iter().zip(all) {
            self.enter_one(*place, reply);
        }
    }

    fn enter_one(&mut self, place: usize, reply: RenewalReply) {
        if let Some(entry) = self.replies.get_mut(place) {
            *entry = reply;
        }
    }

    /// None of these was sent, since there is no connection.
    fn enter_unsent(&mut self, places: &[usize], error: Error) {
        let failure = Arc::new(Failure::Unsent(error));
        for place in places {
            self.enter_one(*place, (Answer::Refused, Some(Arc::clone(&failure))));
        }
    }
}

impl Following {
    pub(super) fn new(servers: &Arc<Servers>, id: ShardId, own: RenewalsConnection) -> Self {
        Self {
            servers: Arc::clone(servers),
            id,
            own,
            has_been_away: false,
            silent: HashMap::new(),
        }
    }

    /// Sends each of these to the shard that has it, as far as is known: its own, or another one.
    fn send_to_shards(&mut self, sending: &mut Sending<'_>, places: &[usize]) {
        let (mut home, mut away) = (Vec::new(), HashMap::<_, Vec<_>>::new());
        for place in places.iter().copied() {
            let key = sending.calls().nth(place).map_or("", Call::key);
            match self.servers.nodes().known_shard_of(key) {
                Some(shard) if shard != self.id => away.entry(shard).or_default().push(place),
                _ => home.push(place),
            }
        }
        self.has_been_away |= !away.is_empty();
        for (shard, places) in away {
            self.send_away(sending, shard, &places);
        }
        if !home.is_empty() {
            self.send_home(sending, &home);
        }
    }

    fn send_home(&mut self, sending: &mut Sending<'_>, home: &[usize]) {
        let shortest_lease = sending.shortest_lease;
        let opened = match self.own.is_open_by(Deadline::after(sending.limit)) {
            Some(true) => Ok(()),
            Some(false) => self.open_soon(sending.limit),
            None => Err(no_connection()),
        };
        if let Err(error) = opened {
            sending.is_broken = true;
            return sending.enter_unsent(home, error);
        }
        let judged = if home.len() == sending.replies.len() {
            let (renewals, orphans) = (&*sending.renewals, sending.orphans);
            (self.own).send_batch(&Batch { renewals, orphans }, shortest_lease)
        } else {
            let (renewals, orphans) = &sending.at(home);
            (self.own).send_batch(&Batch { renewals, orphans }, shortest_lease)
        };
        sending.is_broken = !self.own.is_left_open;
        sending.enter(home, judged);
    }

    /// Opens the connection to its own shard, unless that is silent: what goes elsewhere does not wait for it.
    fn open_soon(&mut self, limit: Duration) -> Result<()> {
        let deadline = Deadline::after(limit);
        let nodes = self.servers.nodes();
        let to = nodes.address_of(self.id, deadline)?;
        let answers = nodes.open_at(&to, deadline).and_then(|mut conn| {
            let left = deadline.remaining_up_to(limit);
            conn.set_read_timeout(Some(left))
                .and_then(|()| redis::cmd("PING").query(&mut conn))
                .map_err(|_| no_connection())
                .map(|_: Value| ())
        });
        answers.inspect_err(|_| nodes.doubt(self.id))?;
        self.own.open().map_err(|_| no_connection())
    }

    fn send_away(&mut self, sending: &mut Sending<'_>, shard: ShardId, places: &[usize]) {
        let silent = self.silent.get(&shard);
        if silent.is_some_and(|silent| silent.elapsed() < REST) {
            return sending.enter_unsent(places, no_connection());
        }
        let (renewals, orphans) = &sending.at(places);
        match self.asked_away(&Batch { renewals, orphans }, sending.limit) {
            Ok((judged, finished)) => {
                if finished == Some(Finished::Broken) {
                    self.silent.insert(shard, time::now());
                }
                sending.enter(places, judged);
            }
            Err(error) => {
                self.silent.insert(shard, time::now());
                sending.enter_unsent(places, error);
            }
        }
    }

    /// To the shard that has the first of these, by a connection beside its pool: those of the pool may all be lent.
    fn asked_away(&self, batch: &Batch<'_>, limit: Duration) -> Result<(Judged, Option<Finished>)> {
        let (deadline, nodes) = (Deadline::after(limit), self.servers.nodes());
        let call = batch.renewals.iter().chain(batch.orphans).next();
        let shard = nodes.shard_for(call.map_or("", Call::key), deadline)?;
        let to = nodes.address_of(shard, deadline)?;
        let mut kept = self.servers.kept(&to);
        loop {
            let was_kept = kept.is_some();
            let opened = kept.take().map_or_else(|| nodes.open_at(&to, deadline), Ok);
            let mut connection = opened.inspect_err(|_| nodes.doubt(shard))?;
            let left = deadline.remaining_up_to(limit);
            let (judged, finished) = batch.send_by(&mut connection, left);
            match finished {
                // The server had closed the connection that was kept.
                Some(Finished::Broken) if was_kept && !deadline.has_passed() => continue,
                Some(_) => nodes.doubt(shard),
                None => {
                    nodes.confirm_at(shard, &to);
                    self.servers.keep(&to, connection);
                }
            }
            return Ok((judged, finished));
        }
    }

    /// Sends the calls that were redirected to where their answers lead. False: no call was redirected.
    fn follow(&mut self, sending: &mut Sending<'_>) -> bool {
        let mut leads = self.leads(sending);
        leads.apart.retain(|place| sending.narrow(*place));
        let lead_away = !leads.moved.is_empty() || !leads.asking.is_empty();
        self.has_been_away |= lead_away;
        for (shard, places) in leads.moved {
            self.send_away(sending, shard, &places);
        }
        for (to, places) in leads.asking {
            self.ask_at(sending, &to, &places);
        }
        // To the slot's owner, not to the node that is being given the slot: that says "not ours" of a lock that has not come
        // yet.
        self.send_to_shards(sending, &leads.apart);
        lead_away || !leads.apart.is_empty()
    }

    fn leads(&self, sending: &Sending<'_>) -> Leads {
        let mut leads = Leads::default();
        // For all of them: the nodes may have to be asked for each.
        let deadline = Deadline::after(sending.limit);
        for (place, (call, (_, failure))) in sending.calls().zip(&sending.replies).enumerate() {
            let Some(Failure::Sent(error)) = failure.as_deref() else {
                continue;
            };
            match self.servers.nodes().redirect(error) {
                Some(Redirect::Moved { .. }) => {
                    let found = self.servers.nodes().shard_for(call.key(), deadline);
                    // The keeper's own shard, at another address: the next batch goes by a new connection.
                    if let Ok(shard) = found
                        && shard != self.id
                    {
                        leads.moved.entry(shard).or_default().push(place);
                    }
                }
                Some(Redirect::Ask { to, .. }) => leads.asking.entry(to).or_default().push(place),
                Some(Redirect::TryAgain) => leads.apart.push(place),
                Some(Redirect::Down) | None => {}
            }
        }
        leads
    }

    /// Asks a node that is being given the slots of these, one after the other.
    fn ask_at(&self, sending: &mut Sending<'_>, to: &Address, places: &[usize]) {
        let deadline = Deadline::after(sending.limit);
        let is_orphan = |place: usize| place >= sending.renewals.len();
        let mut replies = Vec::new();
        for place in places {
            let Some(call) = sending.calls().nth(*place) else {
                continue;
            };
            if deadline.has_passed() {
                break;
            }
            let sent = time::now();
            let asked = match self.servers.ask_at(to, call, deadline) {
                Ok((answer, _)) => answer,
                Err(error) => {
                    let failure = Arc::new(Failure::Unsent(error));
                    replies.push((*place, (Answer::Refused, Some(failure))));
                    continue;
                }
            };
            let reply = match asked {
                Ok(Value::Int(1..)) if is_orphan(*place) => (Answer::Ours(sent), None),
                Ok(value) => judged(value, sent, true),
                Err(error) if error.is_io_error() => {
                    (Answer::Unanswered, Some(Failure::sent(error)))
                }
                Err(error) => refused(error),
            };
            replies.push((*place, reply));
        }
        for (place, reply) in replies {
            sending.enter_one(place, reply);
        }
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
    fn is_open(&self) -> bool {
        self.has_been_away || self.own.is_open()
    }

    fn open(&mut self) -> Result<(), Arc<Failure>> {
        self.own.open()
    }

    fn send(&mut self, renewals: &[Call], orphans: &[Call], shortest_lease: Duration) -> Replies {
        let part = (shortest_lease / 12).clamp(SHORTEST, SHORTEST_PATIENCE);
        let mut sending = Sending {
            renewals: Cow::Borrowed(renewals),
            orphans,
            replies: vec![(Answer::Unanswered, None); renewals.len() + orphans.len()],
            limit: part.min(self.servers.nodes().limits().answer),
            shortest_lease,
            is_broken: false,
        };
        let all: Vec<usize> = (0..sending.replies.len()).collect();
        self.send_to_shards(&mut sending, &all);
        for _ in 0..HOPS {
            if !self.follow(&mut sending) {
                break;
            }
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
