//! Keeps the map of slots that all connections of a cluster share, and asks nodes for it.
//!
//! The nodes are asked when a slot is unknown, when something casts doubt on the map, and every ten
//! seconds while connections are lent. The first answer is believed. If it is wrong, a `MOVED`
//! corrects the map, or an error casts doubt on it and the next node is asked: no node is asked
//! twice before all others. A node that failed is asked after the others for ten seconds, so that a
//! silent one does not delay connections to healthy shards.
//!
//! Locks: `asking` while nodes are asked, and within it `known`, for a moment.

use std::{
    collections::{HashMap, VecDeque},
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Mutex, MutexGuard};
use redis::{Client, Connection, RedisError, RedisResult, Value};

use super::{
    layout::{self, Layout},
    slot_map::{ShardId, SlotMap, slot_of},
};
use crate::{
    error::{Error, Result, code, makes_no_sense},
    pool::{
        Access, Address, AddressMap, MasterPlace, asked, last_that_may_pass, no_useful_answer,
        with_address,
    },
    time::{self, Deadline},
};

/// An error by which a node refuses a call that it cannot execute. Nothing was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Redirect {
    /// Another node has the slot.
    Moved,
    /// The slot is being moved to another node (`ASK`, `TRYAGAIN`): a later attempt may succeed.
    Moving,
    /// No node serves the slot now, or the node does not know which does.
    Down,
}

/// The shortest time between two questions to the nodes.
const REST: Duration = Duration::from_millis(100);
/// The greatest age of the map while connections are lent.
const MAP_AGE: Duration = Duration::from_secs(10);
/// A node that failed is asked after the others for this long.
const ASKED_LAST_FOR: Duration = Duration::from_secs(10);
/// A periodic check of the map takes at most this long.
const CHECK_LIMIT: Duration = Duration::from_millis(250);

const WANTED: &str = "no node of the cluster has returned the map of slots";
/// The hints for a refused login, and for a server of another kind.
const HINTS: [&str; 2] = [
    "use the URL `redis+cluster://:PASSWORD@…`",
    "is not a node of a cluster; the URL of one server is `redis://HOST:PORT/`, \
     of a sentinel `redis+sentinel://HOST:PORT/MASTER`",
];

/// The map of one cluster.
pub(super) struct Map {
    pub(super) access: Access,
    translation: Option<AddressMap>,
    /// The time limit for asking nodes one after another.
    limit: Duration,
    pub(super) known: Mutex<SlotMap>,
    asking: Mutex<NodeQueue>,
}

/// The nodes, in the order in which they are asked.
struct NodeQueue {
    /// The nodes of the URL, which are asked even if no answer names them.
    seeds: Vec<Address>,
    /// All nodes. A node that is asked goes to the end.
    queue: VecDeque<Address>,
    /// The nodes that have not answered, with the moment at which they were asked.
    /// [`next`](Self::next) adds a node, and [`Map::ask_in_turn`] removes it once it answers.
    failed: HashMap<Address, Instant>,
    /// The moment at which a node was last asked.
    asked: Option<Instant>,
    /// The moment at which a node last answered.
    answered: Option<Instant>,
}

impl NodeQueue {
    /// Sets the nodes, and puts those that were asked before at the end.
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
        let has_failed = |node: &Address| {
            self.failed
                .get(node)
                .is_some_and(|at| at.elapsed() < ASKED_LAST_FOR)
        };
        let first = self.queue.iter().position(|node| !has_failed(node));
        let node = self.queue.remove(first.unwrap_or(0))?;
        self.queue.push_back(node.clone());
        self.failed.insert(node.clone(), time::now());
        Some(node)
    }

    /// The time left of this pause, which began with the last question.
    fn rest_left(&self, rest: Duration) -> Duration {
        self.asked
            .map_or(Duration::ZERO, |at| rest.saturating_sub(at.elapsed()))
    }
}

impl Map {
    pub(super) fn new(
        access: Access,
        seeds: Vec<Address>,
        translation: Option<AddressMap>,
        limit: Duration,
    ) -> Self {
        Self {
            access,
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

    /// Returns the shard of this key. Asks the nodes if the shard is unknown or in doubt. Ends by
    /// the deadline.
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
            // The other half of the time is for the call.
            Some(_) => self.refresh(REST, Deadline::after(deadline.remaining() / 2)),
            None => self.ask(deadline)?,
        }
        let known = self.known.lock();
        known.shard_of(slot).ok_or_else(|| {
            let reason = format!("no node of the cluster serves the slot {slot} of `{key}`");
            Error::pool(reason, None)
        })
    }

    /// Returns the address of a shard's master. If that is in doubt, asks the nodes first, unless
    /// another thread is asking or they were asked just now: then the known master is tried.
    pub(super) fn locate(&self, shard: ShardId, deadline: Deadline) -> Result<MasterPlace> {
        if self.known.lock().is_in_doubt(shard) {
            // The other half of the time is for the connection.
            self.refresh(REST, Deadline::after(deadline.remaining() / 2));
        }
        let place = self.known.lock().place(shard);
        place.ok_or_else(|| no_map("no answer has named this shard"))
    }

    /// Asks a node for the map if that is in doubt, or if no node was asked for [`MAP_AGE`]. Takes
    /// at most a quarter of a second.
    pub(super) fn check(&self, shard: ShardId, unless_within: Duration) {
        let rest = if self.known.lock().is_in_doubt(shard) {
            REST
        } else {
            MAP_AGE.max(unless_within)
        };
        self.refresh(rest, Deadline::after(CHECK_LIMIT));
    }

    /// Records a redirect in the map. `None`: the error is not a redirect. Sends nothing and does
    /// not wait.
    pub(super) fn redirect(&self, error: &RedisError) -> Option<Redirect> {
        let moved_to = match code(error) {
            "ASK" | "TRYAGAIN" => return Some(Redirect::Moving),
            "CLUSTERDOWN" | "MASTERDOWN" | "LOADING" => None,
            "MOVED" => error.redirect_node().and_then(|(said, slot)| {
                let to = layout::read_address(said).filter(|to| !to.host.is_empty())?;
                Some((slot, AddressMap::reached(self.translation.as_ref(), to)))
            }),
            _ => return None,
        };
        let mut known = self.known.lock();
        let Some((slot, to)) = moved_to else {
            known.in_doubt = true;
            return Some(Redirect::Down);
        };
        known.moved(slot, &to);
        Some(Redirect::Moved)
    }

    /// Opens a connection to the node at this address, master or not, and asks the first question.
    pub(super) fn ask_at<T: Send + 'static>(
        &self,
        client: &Client,
        address: &Address,
        deadline: Deadline,
        ask: impl Fn(&mut Connection) -> RedisResult<T> + Send + Sync + 'static,
    ) -> RedisResult<(Connection, T)> {
        let client = with_address(client, &address.host, address.port)?;
        asked(&client, deadline.remaining_up_to(self.limit), ask)
    }

    /// Asks the nodes, unless another thread got an answer while this one waited for it.
    fn ask(&self, deadline: Deadline) -> Result<()> {
        let wanted = time::now();
        // The limit covers both the wait for another thread and the questions.
        let deadline = Deadline::after(self.limit).or_sooner(deadline.moment());
        let asking = self.asking.try_lock_for(deadline.remaining());
        let asking = asking.ok_or_else(|| no_map("another thread is still asking the nodes"))?;
        if asking.answered.is_some_and(|answered| answered >= wanted) {
            return Ok(());
        }
        thread::sleep(asking.rest_left(REST).min(deadline.remaining()));
        self.ask_in_turn(asking, deadline)
    }

    /// Asks the nodes, unless they were asked within `rest` or another thread is asking: then the
    /// map stays as it is.
    fn refresh(&self, rest: Duration, deadline: Deadline) {
        if let Some(asking) = self.asking.try_lock()
            && asking.rest_left(rest).is_zero()
        {
            let _ = self.ask_in_turn(asking, deadline);
        }
    }

    /// Asks one node after another until one answers. Each may take half of the time that is left.
    fn ask_in_turn(&self, mut asking: MutexGuard<'_, NodeQueue>, deadline: Deadline) -> Result<()> {
        let deadline = Deadline::after(self.limit).or_sooner(deadline.moment());
        let knows_none_yet = {
            let mut known = self.known.lock();
            if let Some(node) = known.named_by_a_move.take() {
                asking.put_first(node);
            }
            known.addresses().is_empty()
        };
        let client = self.access.client(deadline)?;
        let mut why = None;
        for _ in 0..asking.queue.len() {
            let Some(node) = asking.next().filter(|_| !deadline.has_passed()) else {
                break;
            };
            asking.asked = Some(time::now());
            let error =
                match self.layout_of(&client, &node, Deadline::after(deadline.remaining() / 2)) {
                    Ok(layout) if layout.is_empty() => no_map(&format!("{node} knows no slots")),
                    Ok(layout) => {
                        let mut known = self.known.lock();
                        known.enter(layout);
                        asking.failed.remove(&node);
                        asking.update(known.addresses());
                        asking.answered = Some(time::now());
                        return Ok(());
                    }
                    Err(error) => no_useful_answer(WANTED, &node, error, HINTS, knows_none_yet),
                };
            why = last_that_may_pass(why, error);
        }
        Err(why.unwrap_or_else(|| no_map("the time was over before a node was asked")))
    }

    fn layout_of(
        &self,
        client: &Client,
        node: &Address,
        deadline: Deadline,
    ) -> RedisResult<Layout> {
        let slots = |connection: &mut Connection| {
            redis::cmd("CLUSTER")
                .arg("SLOTS")
                .query::<Value>(connection)
        };
        let (_, answer) = self.ask_at(client, node, deadline, slots)?;
        layout::read(answer, node, self.translation.as_ref()).ok_or_else(makes_no_sense)
    }
}

fn no_map(why: &str) -> Error {
    Error::pool(format!("{WANTED}: {why}"), None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learnt(line: &str) -> Option<Redirect> {
        let client = Client::open("redis://127.0.0.1/").unwrap();
        let map = Map::new(
            Access::new(client, None),
            Vec::new(),
            None,
            Duration::from_secs(1),
        );
        let answer = redis::parse_redis_value(line.as_bytes()).unwrap();
        map.redirect(&answer.extract_error().unwrap_err())
    }

    #[test]
    fn each_error_is_classified() {
        assert_eq!(learnt("-MOVED 7 ::1:9\r\n"), Some(Redirect::Moved));
        let in_scripts = [
            // By Redis 7.0 and by 6.2.
            "-ERR Script attempted to access a non local key in a cluster node script: 0f, on \
             @user_script:17.\r\n",
            "-ERR Error running script (call to f_0f): @user_script: 17: Script attempted to access \
             a non local key in a cluster node\r\n",
        ];
        let moving = ["-ASK 7 [::1]:9\r\n", "-ASK\r\n", "-TRYAGAIN later\r\n"];
        for line in moving.into_iter().chain(in_scripts) {
            assert_eq!(learnt(line), Some(Redirect::Moving), "{line}");
        }
        for line in [
            "-CLUSTERDOWN Hash slot not served\r\n",
            "-LOADING not yet\r\n",
            "-MASTERDOWN no\r\n",
            "-ERR Script attempted to execute a command while the cluster is down script: 0f\r\n",
            // A `MOVED` that names no host.
            "-MOVED 7 :9\r\n",
            "-MOVED 7\r\n",
            "-MOVED x y\r\n",
        ] {
            assert_eq!(learnt(line), Some(Redirect::Down), "{line}");
        }
        for line in ["-ERR no\r\n", "-CROSSSLOT no\r\n", "-NOSCRIPT no\r\n"] {
            assert_eq!(learnt(line), None, "{line}");
        }
    }

    #[test]
    fn a_thread_that_waits_for_another_to_ask_keeps_its_own_limit() {
        const LIMIT: Duration = Duration::from_millis(300);
        // A node that accepts connections and never answers.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::new("127.0.0.1", silent.local_addr().unwrap().port());
        let client = Client::open("redis://127.0.0.1/").unwrap();
        let map = Map::new(Access::new(client, None), vec![address], None, LIMIT);
        let by = Deadline::after(100 * LIMIT);
        let begun = time::now();
        thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| assert!(map.shard_of("a", by).is_err()));
            }
        });
        // If the threads asked one after another, each would take half of the limit.
        assert!(begun.elapsed() < 5 * LIMIT, "{:?}", begun.elapsed());
    }
}
