//! Who serves which slot, as one map that all connections of a cluster share.
//!
//! The nodes are asked when that is unknown or in doubt, and every ten seconds while somebody relies on it. Whom to ask, in which
//! order: [`ask`].
//!
//! Locks: `asking`, for as long as a node is asked, and within it `known`, for a moment.

mod ask;
mod round;
mod streak;

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use redis::{Client, Connection, RedisError, RedisResult};

use streak::Streak;

use super::{
    known::{Known, ShardId},
    layout::{Address, AddressMap},
    slot::slot_of,
};
use crate::{
    connection::{
        dial::{addresses, connected, set_timeouts, with_address},
        whereabouts::Place,
    },
    error::{Error, Result},
    time::Deadline,
};

/// Nodes are not asked again sooner.
const REST: Duration = Duration::from_millis(100);
/// While somebody relies on the map, it is not older.
const FRESH: Duration = Duration::from_secs(10);
/// It is not older than this where only a node has answered that does not reach most masters.
const SECOND_BEST: Duration = Duration::from_secs(1);
/// If no known node has answered for so long, and others have whenever nodes were asked, another cluster was made in place of the one that
/// was known.
pub(super) const STRANGE: Duration = Duration::from_secs(10);
/// How long all nodes together may take when it is only looked whether anything has changed.
const LOOK: Duration = Duration::from_millis(250);

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

/// Which nodes are asked first, and which last.
#[derive(Default)]
struct Asking {
    /// The node that has answered last.
    last: Option<Address>,
    /// A connection to a node, kept for the next question.
    connection: Option<(Address, Connection)>,
    /// The nodes that were silent, and when.
    silent: HashMap<Address, Instant>,
    /// The nodes whose answers said nothing new while the map was in doubt.
    knew_nothing: HashSet<Address>,
    /// How long nodes of another cluster have answered and none that is known.
    strange: Streak,
}

/// Why the nodes are asked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    /// The map does not say: the caller waits until nodes may be asked again.
    Unknown,
    /// What the map says may be out of date: the caller takes it if nodes may not be asked yet.
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
                self.look_around(REST, deadline);
                Ok(self.known.lock().shard_of(slot).unwrap_or(shard))
            }
            None => {
                self.ask(Need::Unknown, None, deadline)?;
                let found = self.known.lock().shard_of(slot);
                found.ok_or_else(|| Error::Pool {
                    reason: format!("no node of the cluster serves the slot {slot} of `{key}`"),
                    source: None,
                })
            }
        }
    }

    /// Whose key this is, as far as is known.
    pub(super) fn known_shard_of(&self, key: &str) -> Option<ShardId> {
        self.known.lock().shard_of(slot_of(key))
    }

    /// Where the master of a shard is. Asks if that is in doubt, and takes what was known if nobody says anything.
    ///
    /// Unless the whole map is in doubt, the master itself is asked first: most often only a
    /// connection was lost. And while another thread asks, this one does not wait for the answer but
    /// goes there: that thread may wait for silent nodes of other shards.
    pub(super) fn look(&self, shard: ShardId, deadline: Deadline) -> Result<Place> {
        let (in_doubt, own) = {
            let known = self.known.lock();
            let is_in_doubt = known.in_doubt;
            known.shard(shard).map_or((true, None), |it| {
                let own = (!is_in_doubt).then(|| it.address.clone());
                (it.in_doubt, own)
            })
        };
        let asked = if in_doubt && !self.asking.is_locked() {
            // What is left is for the connection.
            let half = Deadline::after(deadline.remaining() / 2);
            self.ask(Need::Doubtful, own.as_ref(), half)
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
        let mut known = self.known.lock();
        if let Some(shard) = known.shard_mut(shard)
            && shard.epoch.load(Ordering::SeqCst) == epoch
        {
            shard.in_doubt = false;
        }
    }

    /// A connection to this address was opened, and it is a master.
    pub(super) fn confirm_at(&self, shard: ShardId, address: &Address) {
        if let Some(shard) = self.known.lock().shard_mut(shard)
            && shard.address == *address
        {
            shard.in_doubt = false;
        }
    }

    /// A connection to the master of this shard has failed, or has led to a server that is no master.
    pub(super) fn doubt(&self, shard: ShardId) {
        if let Some(shard) = self.known.lock().shard_mut(shard) {
            shard.in_doubt = true;
        }
    }

    /// No connection could be opened to this place, or the server there is no master.
    pub(super) fn not_reached(&self, shard: ShardId, epoch: u64) {
        // The doubt is not about another master that the shard has by now.
        if let Some(shard) = self.known.lock().shard_mut(shard)
            && shard.epoch.load(Ordering::SeqCst) == epoch
        {
            shard.in_doubt = true;
        }
    }

    /// Somebody has met what the map does not explain.
    pub(super) fn doubt_all(&self) {
        self.known.lock().in_doubt = true;
    }

    /// Asks the nodes whether anything has changed, if that is in doubt or they were not asked for ten seconds, or for one where none
    /// has answered that reaches most of the masters. Takes a quarter of a second at most.
    pub(super) fn check(&self, shard: ShardId, unless_within: Duration) {
        let (in_doubt, is_second_best) = {
            let known = self.known.lock();
            let in_doubt = known.in_doubt || known.shard(shard).is_none_or(|shard| shard.in_doubt);
            (in_doubt, known.is_second_best)
        };
        let rest = if in_doubt {
            REST
        } else if is_second_best {
            SECOND_BEST
        } else {
            FRESH.max(unless_within)
        };
        self.look_around(rest, Deadline::after(LOOK));
    }

    /// Asks the nodes, unless they were asked within `rest` or another thread asks them: then the map is taken as it is. Takes a
    /// quarter of a second at most.
    fn look_around(&self, rest: Duration, deadline: Deadline) {
        let Some(asking) = self.asking.try_lock() else {
            return;
        };
        let asked = self.known.lock().asked;
        if asked.is_none_or(|asked| asked.elapsed() >= rest) {
            let sooner = Deadline::after(LOOK).or_sooner(deadline.moment());
            let _ = self.ask_all(asking, None, sooner);
        }
    }

    /// A `MOVED` has said that this node has the slot. Returns the node's shard, if that is known.
    pub(super) fn moved(&self, slot: u16, to: &Address) -> Option<ShardId> {
        self.known.lock().moved(slot, to)
    }

    /// The address at which a node is reached that another node has named by this text.
    pub(super) fn reached(&self, said: &str) -> Option<Address> {
        let mut said = Address::read(said)?;
        if said.host.is_empty() {
            // The host is that of the node which has answered, and that is not known here; but perhaps only one has this port.
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
        let connection = connected(&client, limit / addresses(&client))?;
        set_timeouts(&connection, deadline.remaining_up_to(limit))?;
        Ok(connection)
    }

    fn client_at(&self, address: &Address) -> RedisResult<Client> {
        let settings = self.client.get_connection_info().clone();
        Client::open(with_address(settings, &address.host, address.port))
    }
}

fn silent(why: &str, source: Option<RedisError>) -> Error {
    Error::Pool {
        reason: format!("no node of the cluster says who has which keys: {why}"),
        source,
    }
}

#[cfg(test)]
mod tests;
