//! Who serves which slot: asked of the nodes when that is unknown or in doubt, and every ten seconds while somebody relies on it.
//!
//! One of those who want to know asks, and the others wait for the answer. The node that a `MOVED` has named is asked first, then the
//! one that has answered last, the masters, those of the URL and the replicas. One that is silent takes its part of the time, and for
//! five seconds it is asked last. In doubt, the next question goes to another node, since the one that has been asked may be cut off
//! from the others.
//!
//! Locks: `asking`, for as long as a node is asked, and within it `known`, for a moment.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Mutex, MutexGuard};
use redis::{Client, Connection, RedisError, RedisResult, Value};

use super::{
    answer::Answer,
    known::{Known, ShardId},
    layout::{self, Address, AddressMap},
    slot::slot_of,
};
use crate::{
    connection::{
        dial::{addresses, is_forbidden, set_timeouts, with_address},
        whereabouts::Place,
    },
    error::{Error, Result, makes_no_sense},
    exchange::exchange,
    time::{self, Deadline},
};

/// Nodes are not asked again sooner.
const REST: Duration = Duration::from_millis(100);
/// While somebody relies on the map, it is not older.
const FRESH: Duration = Duration::from_secs(10);
/// One that was silent is asked after the others for so long.
const FORGIVEN: Duration = Duration::from_secs(5);
/// How long all nodes together may take when it is only looked whether anything has changed.
const LOOK: Duration = Duration::from_millis(250);
/// A node that is silent may take so much of the time at most.
const PARTS: usize = 8;

/// The map of one cluster.
pub(super) struct Map {
    /// How to connect to a node; its address counts for nothing.
    client: Client,
    /// The nodes of the URL.
    seeds: Vec<Address>,
    translation: Option<AddressMap>,
    /// How long it may take to ask.
    limit: Duration,
    known: Mutex<Known>,
    asking: Mutex<Asking>,
}

/// Who is asked.
#[derive(Default)]
struct Asking {
    /// Who has answered last.
    last: Option<Address>,
    /// Kept for the next question.
    connection: Option<(Address, Connection)>,
    /// Who was silent, and when.
    silent: HashMap<Address, Instant>,
    /// Who has said nothing new while that was in doubt.
    knew_nothing: HashSet<Address>,
}

impl Asking {
    /// Whom to ask, one after another.
    fn in_order(&mut self, mut all: Vec<Address>) -> Vec<Address> {
        let mut seen = HashSet::new();
        all.retain(|address| seen.insert(address.clone()));
        if all
            .iter()
            .all(|address| self.knew_nothing.contains(address))
        {
            self.knew_nothing.clear();
        }
        let was_silent_lately =
            |at: &Address| (self.silent.get(at)).is_some_and(|at| at.elapsed() < FORGIVEN);
        all.sort_by_key(|at| (was_silent_lately(at), self.knew_nothing.contains(at)));
        all
    }

    /// This one has answered, and can be believed.
    fn heard(&mut self, address: Address, connection: Connection, is_news: bool, in_doubt: bool) {
        if is_news {
            self.knew_nothing.clear();
        } else if in_doubt {
            self.knew_nothing.insert(address.clone());
        }
        self.silent.remove(&address);
        self.last = Some(address.clone());
        self.connection = Some((address, connection));
    }
}

/// What is the matter.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    /// There is no answer yet: it is waited until nodes may be asked again.
    Unknown,
    /// There is one, which may be out of date.
    Doubtful,
}

impl Map {
    pub(super) fn new(
        client: Client,
        seeds: Vec<Address>,
        translation: Option<AddressMap>,
        limit: Duration,
    ) -> Self {
        Self {
            client,
            seeds,
            translation,
            limit,
            known: Mutex::new(Known::nothing()),
            asking: Mutex::default(),
        }
    }

    /// Whose key this is. Asks if that is unknown or in doubt. Ends by the deadline.
    ///
    /// # Errors
    /// [`Error::Pool`]: no node has said anything that can be believed.
    pub(super) fn shard_of(&self, key: &str, deadline: Deadline) -> Result<ShardId> {
        let slot = slot_of(key);
        let (found, in_doubt) = {
            let known = self.known.lock();
            (known.shard_of(slot), known.in_doubt)
        };
        match found {
            Some(shard) if !in_doubt => Ok(shard),
            Some(shard) => {
                let sooner = Deadline::after(LOOK).or_sooner(deadline.moment());
                let _ = self.ask(Need::Doubtful, sooner);
                Ok(self.known.lock().shard_of(slot).unwrap_or(shard))
            }
            None => {
                self.ask(Need::Unknown, deadline)?;
                let found = self.known.lock().shard_of(slot);
                found.ok_or_else(|| Error::Pool {
                    reason: format!("no node of the cluster serves the slot {slot} of `{key}`"),
                    source: None,
                })
            }
        }
    }

    /// The same as far as is known.
    pub(super) fn known_shard_of(&self, key: &str) -> Option<ShardId> {
        self.known.lock().shard_of(slot_of(key))
    }

    /// Where the master of a shard is. Asks if that is in doubt, and takes what was known if nobody says anything.
    pub(super) fn look(&self, shard: ShardId, deadline: Deadline) -> Result<Place> {
        let in_doubt = (self.known.lock().shard(shard)).is_none_or(|it| it.in_doubt);
        let asked = if in_doubt {
            // What is left is for the connection.
            let half = Deadline::after(deadline.remaining() / 2);
            self.ask(Need::Doubtful, half)
        } else {
            Ok(())
        };
        let place = self.place(shard);
        place.ok_or_else(|| asked.err().unwrap_or_else(|| silent("none", None)))
    }

    pub(super) fn place(&self, shard: ShardId) -> Option<Place> {
        let known = self.known.lock();
        let shard = known.shard(shard)?;
        Some(Place {
            host: shard.address.host.clone(),
            port: shard.address.port,
            epoch: shard.epoch.load(Ordering::SeqCst),
        })
    }

    /// The connection to this place was opened, and it is a master.
    pub(super) fn confirm(&self, shard: ShardId, epoch: u64) {
        if let Some(shard) = self.known.lock().shard_mut(shard)
            && shard.epoch.load(Ordering::SeqCst) == epoch
        {
            shard.in_doubt = false;
        }
    }

    /// The same, by where it is.
    pub(super) fn confirm_at(&self, shard: ShardId, address: &Address) {
        if let Some(shard) = self.known.lock().shard_mut(shard)
            && shard.address == *address
        {
            shard.in_doubt = false;
        }
    }

    /// A connection to the master of this shard has failed, or the server is none.
    pub(super) fn doubt(&self, shard: ShardId) {
        if let Some(shard) = self.known.lock().shard_mut(shard) {
            shard.in_doubt = true;
        }
    }

    /// Somebody has met what the map does not explain.
    pub(super) fn doubt_all(&self) {
        self.known.lock().in_doubt = true;
    }

    /// Looks whether anything has changed, if that is in doubt or nobody has for ten seconds. It takes a quarter of a second at most.
    pub(super) fn check(&self, shard: ShardId, unless_within: Duration) {
        let (asked, in_doubt) = {
            let known = self.known.lock();
            let doubt = known.shard(shard).is_none_or(|shard| shard.in_doubt);
            (known.asked, doubt || known.in_doubt)
        };
        let rest = if in_doubt {
            REST
        } else {
            FRESH.max(unless_within)
        };
        if asked.is_none_or(|asked| asked.elapsed() < rest) {
            return;
        }
        // Who finds somebody else asking has nothing to add.
        if let Some(asking) = self.asking.try_lock() {
            let _ = self.ask_all(asking, Deadline::after(LOOK));
        }
    }

    /// A `MOVED`: this node has the slot. Whose that is, if it is known.
    pub(super) fn moved(&self, slot: u16, to: &Address) -> Option<ShardId> {
        self.known.lock().moved(slot, to)
    }

    /// Where a node is reached that another one has named like this.
    pub(super) fn reached(&self, said: &str) -> Option<Address> {
        let mut said = Address::read(said)?;
        if said.host.is_empty() {
            // It is where it was asked, which nobody knows here; but perhaps there is only one.
            return self.known.lock().only_one_at(said.port);
        }
        if let Some(map) = &self.translation {
            said = map.reached(&said);
        }
        Some(said)
    }

    /// The epoch of a shard, which grows when its address changes.
    pub(super) fn epoch_of(&self, shard: ShardId) -> Arc<AtomicU64> {
        let known = self.known.lock();
        known
            .shard(shard)
            .map_or_else(Arc::default, |it| Arc::clone(&it.epoch))
    }

    /// A connection to the node at this address, whatever it is.
    pub(super) fn open_at(&self, address: &Address, deadline: Deadline) -> RedisResult<Connection> {
        let limit = deadline.remaining_up_to(self.limit);
        let client = self.client_at(address)?;
        let connection = client.get_connection_with_timeout(limit / addresses(&client))?;
        set_timeouts(&connection, deadline.remaining_up_to(limit))?;
        Ok(connection)
    }

    fn client_at(&self, address: &Address) -> RedisResult<Client> {
        let settings = self.client.get_connection_info().clone();
        Client::open(with_address(settings, &address.host, address.port))
    }

    /// Asks, unless somebody else has since this moment, or nodes may not be asked yet.
    fn ask(&self, need: Need, deadline: Deadline) -> Result<()> {
        let wanted = time::now();
        let deadline = Deadline::after(self.limit).or_sooner(deadline.moment());
        let asking = match deadline.moment() {
            Some(moment) => self.asking.try_lock_until(moment),
            None => Some(self.asking.lock()),
        };
        let asking = asking.ok_or_else(|| silent("somebody else waits for them", None))?;
        let (asked, answered) = {
            let known = self.known.lock();
            (known.asked, known.answered)
        };
        if answered.is_some_and(|at| at >= wanted) {
            return Ok(());
        }
        let rest = asked.map_or(Duration::ZERO, |at| REST.saturating_sub(at.elapsed()));
        if !rest.is_zero() {
            if need == Need::Doubtful || asked.is_some_and(|at| at >= wanted) {
                return Err(silent("they were asked just now", None));
            }
            thread::sleep(rest.min(deadline.remaining()));
        }
        self.ask_all(asking, deadline)
    }

    /// One after another, until one says what can be believed.
    fn ask_all(&self, mut asking: MutexGuard<'_, Asking>, deadline: Deadline) -> Result<()> {
        let (all, in_doubt) = {
            let mut known = self.known.lock();
            known.asked = Some(time::now());
            (self.nodes(&asking, &known), known.is_in_doubt())
        };
        let all = asking.in_order(all);
        let parts = u32::try_from(PARTS.min(all.len() + 1)).unwrap_or(u32::MAX);
        let each = deadline.remaining() / parts;
        let mut why = silent("none answers", None);
        let mut with_a_hole: Option<(Answer, Address, Connection)> = None;
        for address in all {
            if deadline.has_passed() {
                break;
            }
            let kept = asking.connection.take_if(|(of, _)| *of == address);
            let kept = kept.map(|(_, connection)| connection);
            match self.answer_of(&address, kept, deadline.remaining_up_to(each)) {
                Ok((answer, connection)) => match self.believe(&answer, &address) {
                    Ok(is_news) => {
                        asking.heard(address, connection, is_news, in_doubt);
                        return Ok(());
                    }
                    Err(reason) => {
                        why = silent(reason, None);
                        let best = with_a_hole.as_ref().map(|(best, ..)| best.worth());
                        if best.is_none_or(|best| best < answer.worth()) {
                            with_a_hole = Some((answer, address, connection));
                        }
                    }
                },
                Err(error) => {
                    asking.silent.insert(address, time::now());
                    why = silent("the last one failed", Some(error));
                }
            }
        }
        let Some((answer, address, connection)) = with_a_hole else {
            return Err(why);
        };
        let is_news = self.believe_in_part(&answer).map_err(|_| why)?;
        asking.heard(address, connection, is_news, in_doubt);
        Ok(())
    }

    fn believe_in_part(&self, answer: &Answer) -> Result<bool, &'static str> {
        let mut known = self.known.lock();
        let epoch = answer.config_epoch(known.config_epoch);
        let is_news = known.believe_in_part(&answer.layout, epoch)?;
        known.answered = Some(time::now());
        Ok(is_news)
    }

    fn believe(&self, answer: &Answer, asked: &Address) -> Result<bool, &'static str> {
        let mut known = self.known.lock();
        known.begin_anew_if_another(&answer.layout, asked);
        let epoch = answer.config_epoch(known.config_epoch);
        let is_news = known.believe(&answer.layout, epoch)?;
        known.answered = Some(time::now());
        Ok(is_news)
    }

    /// All that there are, those first who are the likeliest to know.
    fn nodes(&self, asking: &Asking, known: &Known) -> Vec<Address> {
        let named = known.named.iter().cloned();
        let last = asking.last.iter().cloned();
        let (all, seeds) = (known.addresses(), self.seeds.iter().cloned());
        named.chain(last).chain(all).chain(seeds).collect()
    }

    /// What one of them says, and the connection on which it did.
    fn answer_of(
        &self,
        address: &Address,
        kept: Option<Connection>,
        limit: Duration,
    ) -> RedisResult<(Answer, Connection)> {
        let deadline = Deadline::after(limit);
        if let Some(mut connection) = kept {
            match self.question(&mut connection, address, limit) {
                Ok(answer) => return Ok((answer, connection)),
                // It was started again, perhaps.
                Err(error) if error.is_connection_dropped() => {}
                Err(error) => return Err(error),
            }
        }
        let mut connection = self.open_at(address, deadline)?;
        let left = deadline.remaining_up_to(limit);
        let answer = self.question(&mut connection, address, left)?;
        Ok((answer, connection))
    }

    /// Both in one write, so that both are of the same moment.
    fn question(
        &self,
        connection: &mut Connection,
        address: &Address,
        limit: Duration,
    ) -> RedisResult<Answer> {
        set_timeouts(connection, limit)?;
        let mut both = redis::pipe();
        both.cmd("CLUSTER").arg("SLOTS");
        both.cmd("CLUSTER").arg("INFO");
        let replies = exchange(connection, &both.get_packed_pipeline(), 2)?;
        let mut replies = replies.into_iter().map(Value::extract_error);
        let slots = replies.next().ok_or_else(makes_no_sense)??;
        let layout = layout::read(slots, address, self.translation.as_ref());
        let layout = layout.ok_or_else(makes_no_sense)?;
        let info = match replies.next().ok_or_else(makes_no_sense)? {
            Ok(info) => Some(redis::from_redis_value::<String>(info)?),
            Err(error) if is_forbidden(&error) => None,
            Err(error) => return Err(error),
        };
        Ok(Answer::new(layout, info.as_deref()))
    }
}

fn silent(why: &str, source: Option<RedisError>) -> Error {
    Error::Pool {
        reason: format!("no node of the cluster says who has which keys: {why}"),
        source,
    }
}
