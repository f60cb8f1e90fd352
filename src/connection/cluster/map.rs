//! Who serves which slot, as one map that all connections of a cluster share.
//!
//! The nodes are asked when a slot is unknown, when something casts doubt on the map, and every ten
//! seconds while somebody relies on it. The first node that answers is believed. If it was wrong, a
//! `MOVED` corrects the map or an error casts doubt on it, and then the next node is asked: no node
//! is asked twice before all others were. A node that has failed is asked after the others for ten
//! seconds, so that a silent one does not delay connections to shards that are well.
//!
//! Locks: `asking`, for as long as nodes are asked, and within it `known`, for a moment.

use std::{
    collections::{HashMap, VecDeque},
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
    layout::{self, Address, AddressMap, Layout},
    slot::slot_of,
    slot_map::{ShardId, SlotMap},
};
use crate::{
    connection::{
        dial::{addresses, connected, set_timeouts, with_address},
        hints,
        master_locator::MasterPlace,
    },
    error::{Error, Result, makes_no_sense},
    time::{self, Deadline},
};

/// Nodes are not asked again sooner.
const REST: Duration = Duration::from_millis(100);
/// While somebody relies on the map, it is not older. So long a node that has failed is asked last.
const FRESH: Duration = Duration::from_secs(10);
/// All nodes together may take so long to say that nothing has changed.
const LOOK: Duration = Duration::from_millis(250);

/// The map of one cluster.
pub(super) struct Map {
    /// The settings of each connection to a node. The address in them is not used.
    client: Client,
    translation: Option<AddressMap>,
    /// The longest time in which nodes are asked one after another.
    limit: Duration,
    known: Mutex<SlotMap>,
    asking: Mutex<NodeQueue>,
}

/// The nodes, in the order in which they are asked.
struct NodeQueue {
    /// The nodes of the URL, which are asked even if no answer names them.
    seeds: Vec<Address>,
    /// All nodes; who was asked goes to the end.
    queue: VecDeque<Address>,
    /// The nodes that have said nothing of use since they were asked last.
    failed: HashMap<Address, Instant>,
    /// When a node was asked last.
    asked: Option<Instant>,
    /// When a node has answered last.
    answered: Option<Instant>,
}

impl NodeQueue {
    /// The nodes that are known now, those that were asked before at the end.
    fn update(&mut self, known: Vec<Address>) {
        let all: Vec<_> = known.into_iter().chain(self.seeds.clone()).collect();
        self.queue.retain(|node| all.contains(node));
        self.failed.retain(|node, _| all.contains(node));
        for node in all {
            if !self.queue.contains(&node) {
                self.queue.push_front(node);
            }
        }
    }

    fn put_first(&mut self, node: Address) {
        self.queue.retain(|other| *other != node);
        self.failed.remove(&node);
        self.queue.push_front(node);
    }

    /// The node to ask now. It goes to the end.
    fn next(&mut self) -> Option<Address> {
        let has_failed =
            |node: &Address| self.failed.get(node).is_some_and(|at| at.elapsed() < FRESH);
        let first = self.queue.iter().position(|node| !has_failed(node));
        let node = self.queue.remove(first.unwrap_or(0))?;
        self.queue.push_back(node.clone());
        self.failed.insert(node.clone(), time::now());
        Some(node)
    }

    fn has_rested(&self, rest: Duration) -> bool {
        self.asked.is_none_or(|asked| asked.elapsed() >= rest)
    }
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
            translation,
            limit,
            known: Mutex::new(SlotMap::empty()),
            asking: Mutex::new(NodeQueue {
                queue: seeds.clone().into(),
                failed: HashMap::new(),
                seeds,
                asked: None,
                answered: None,
            }),
        }
    }

    /// The shard of this key. Asks the nodes if that is unknown or in doubt. Ends by the deadline.
    ///
    /// # Errors
    /// [`Error::Pool`]: no node has answered, or none serves the slot.
    pub(super) fn shard_of(&self, key: &str, deadline: Deadline) -> Result<ShardId> {
        let slot = slot_of(key);
        let (found, in_doubt) = {
            let known = self.known.lock();
            (known.shard_of(slot), known.in_doubt)
        };
        match found {
            Some(shard) if !in_doubt => return Ok(shard),
            // The other half is for the call.
            Some(_) => self.look_around(REST, Deadline::after(deadline.remaining() / 2)),
            None => self.ask(deadline)?,
        }
        self.known.lock().shard_of(slot).ok_or_else(|| Error::Pool {
            reason: format!("no node of the cluster serves the slot {slot} of `{key}`"),
            source: None,
        })
    }

    /// The shard of this key, as far as it is known.
    pub(super) fn known_shard_of(&self, key: &str) -> Option<ShardId> {
        self.known.lock().shard_of(slot_of(key))
    }

    /// Where the master of a shard is. If that is in doubt, asks the nodes, unless another thread
    /// does or they were asked just now: the master that was known is tried then.
    pub(super) fn look(&self, shard: ShardId, deadline: Deadline) -> Result<MasterPlace> {
        let in_doubt = {
            let known = self.known.lock();
            known.in_doubt || known.shard(shard).is_none_or(|it| it.in_doubt)
        };
        if in_doubt {
            // The other half is for the connection.
            self.look_around(REST, Deadline::after(deadline.remaining() / 2));
        }
        self.place(shard)
            .ok_or_else(|| silent("none has named this shard", None))
    }

    pub(super) fn place(&self, shard: ShardId) -> Option<MasterPlace> {
        let known = self.known.lock();
        let shard = known.shard(shard)?;
        Some(MasterPlace {
            host: shard.address.host.clone(),
            port: shard.address.port,
            epoch: shard.epoch.load(Ordering::SeqCst),
        })
    }

    /// A connection to the master of this epoch was opened, and it is a master.
    pub(super) fn confirm(&self, shard: ShardId, epoch: u64) {
        self.set_in_doubt(shard, Some(epoch), false);
    }

    /// A connection to the master of this shard has failed, or has led to a server that is no
    /// master.
    pub(super) fn doubt(&self, shard: ShardId) {
        self.set_in_doubt(shard, None, true);
    }

    /// No connection could be opened to the master of this epoch, or the server there is no master.
    pub(super) fn not_reached(&self, shard: ShardId, epoch: u64) {
        self.set_in_doubt(shard, Some(epoch), true);
    }

    fn set_in_doubt(&self, shard: ShardId, epoch: Option<u64>, in_doubt: bool) {
        if let Some(shard) = self.known.lock().shard_mut(shard)
            && epoch.is_none_or(|epoch| shard.epoch.load(Ordering::SeqCst) == epoch)
        {
            shard.in_doubt = in_doubt;
        }
    }

    /// A node has answered something that the map does not explain.
    pub(super) fn doubt_all(&self) {
        self.known.lock().in_doubt = true;
    }

    /// Asks a node whether anything has changed, if that is in doubt or none was asked for ten
    /// seconds. Takes a quarter of a second at most.
    pub(super) fn check(&self, shard: ShardId, unless_within: Duration) {
        let in_doubt = {
            let known = self.known.lock();
            known.in_doubt || known.shard(shard).is_none_or(|shard| shard.in_doubt)
        };
        let rest = if in_doubt {
            REST
        } else {
            FRESH.max(unless_within)
        };
        self.look_around(rest, Deadline::after(LOOK));
    }

    /// Enters a `MOVED`: this node serves the slot.
    pub(super) fn moved(&self, slot: u16, to: &Address) {
        self.known.lock().moved(slot, to);
    }

    /// Where the node is reached that another node has named by this text. `None`: it names no
    /// host.
    pub(super) fn reached(&self, said: &str) -> Option<Address> {
        let said = Address::read(said).filter(|said| !said.host.is_empty())?;
        Some(match &self.translation {
            Some(map) => map.reached(&said),
            None => said,
        })
    }

    /// Whether this shard serves any slot, as far as is known.
    pub(super) fn serves_slots(&self, shard: ShardId) -> bool {
        self.known.lock().serves_slots(shard)
    }

    /// The epoch of a shard, which grows when its address changes.
    pub(super) fn epoch_of(&self, shard: ShardId) -> Arc<AtomicU64> {
        let known = self.known.lock();
        known
            .shard(shard)
            .map_or_else(Arc::default, |it| Arc::clone(&it.epoch))
    }

    /// A connection to the node at this address, master or not.
    pub(super) fn open_at(&self, address: &Address, deadline: Deadline) -> RedisResult<Connection> {
        let limit = deadline.remaining_up_to(self.limit);
        let settings = self.client.get_connection_info().clone();
        let client = Client::open(with_address(settings, &address.host, address.port))?;
        let connection = connected(&client, limit / addresses(&client))?;
        set_timeouts(&connection, deadline.remaining_up_to(limit))?;
        Ok(connection)
    }

    /// Asks the nodes, and waits while another thread asks them.
    fn ask(&self, deadline: Deadline) -> Result<()> {
        let wanted = time::now();
        let deadline = Deadline::after(self.limit).or_sooner(deadline.moment());
        let asking = match deadline.moment() {
            Some(moment) => self.asking.try_lock_until(moment),
            None => Some(self.asking.lock()),
        };
        let asking = asking.ok_or_else(|| silent("another thread asks them", None))?;
        if asking.answered.is_some_and(|answered| answered >= wanted) {
            return Ok(());
        }
        let rest = asking
            .asked
            .map_or(Duration::ZERO, |at| REST.saturating_sub(at.elapsed()));
        thread::sleep(rest.min(deadline.remaining()));
        self.ask_in_turn(asking, deadline)
    }

    /// Asks the nodes, unless they were asked within `rest` or another thread asks them: then the
    /// map stays as it is.
    fn look_around(&self, rest: Duration, deadline: Deadline) {
        if let Some(asking) = self.asking.try_lock()
            && asking.has_rested(rest)
        {
            let _ = self.ask_in_turn(asking, deadline);
        }
    }

    /// Asks one node after another, until one answers. Each may take half of the time that is left.
    fn ask_in_turn(&self, mut asking: MutexGuard<'_, NodeQueue>, deadline: Deadline) -> Result<()> {
        let deadline = Deadline::after(self.limit).or_sooner(deadline.moment());
        let mut failure = silent("there was no time to ask them", None);
        let mut is_misuse = self.known.lock().addresses().is_empty();
        if let Some(node) = self.known.lock().named_by_a_move.take() {
            asking.put_first(node);
        }
        for _ in 0..asking.queue.len() {
            let Some(node) = asking.next().filter(|_| !deadline.has_passed()) else {
                is_misuse = false;
                break;
            };
            asking.asked = Some(time::now());
            match self.layout_of(&node, Deadline::after(deadline.remaining() / 2)) {
                Ok(layout) if layout.is_empty() => {
                    is_misuse = false;
                    failure = silent(&format!("{node} knows of no slot"), None);
                }
                Ok(layout) => {
                    let mut known = self.known.lock();
                    known.enter(&layout);
                    asking.failed.remove(&node);
                    asking.update(known.addresses());
                    asking.answered = Some(time::now());
                    return Ok(());
                }
                Err(error) => {
                    let reason = hints::of_node(&node, &error);
                    let source = Some(error).filter(|error| !hints::is_misuse(error));
                    is_misuse &= source.is_none();
                    failure = silent(&reason, source);
                }
            }
        }
        Err(if is_misuse {
            hints::misuse(failure)
        } else {
            failure
        })
    }

    fn layout_of(&self, node: &Address, deadline: Deadline) -> RedisResult<Layout> {
        let mut connection = self.open_at(node, deadline)?;
        let answer: Value = redis::cmd("CLUSTER").arg("SLOTS").query(&mut connection)?;
        layout::read(answer, node, self.translation.as_ref()).ok_or_else(makes_no_sense)
    }
}

fn silent(why: &str, source: Option<RedisError>) -> Error {
    Error::Pool {
        reason: format!("no node of the cluster says who has which keys: {why}"),
        source,
    }
}
