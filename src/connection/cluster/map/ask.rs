//! Asking the nodes of a cluster who serves which slot: whom, in which order, and what one of them says.
//!
//! One thread at a time asks. The others wait for its answer if they know no node to go to; the rest go where the map says
//! meanwhile. The node that a `MOVED` has named is asked first, then the one that has answered last, the masters, the replicas
//! and the nodes of the URL. A silent node takes no more than its part of the time, and for five seconds it is asked last.
//! While the map is in doubt, a node that has said nothing new is asked after the others, since it may be cut off from them.
//! Where a node says itself that it does not reach most of the masters, the others are asked as
//! well, and those that it names, until five have said so: then it is the cluster that is down.

use std::{collections::HashSet, thread, time::Duration};

use parking_lot::MutexGuard;
use redis::{Connection, RedisResult, Value};

use super::{
    Asking, FRESH, Map, Need, REST, STRANGE,
    round::{CUT_OFF, Disbelief, Heard, Left, Refused},
    silent,
    streak::Streak,
};
use crate::{
    connection::{
        cluster::{
            answer::Answer,
            known::Known,
            layout::{self, Address},
        },
        dial::{is_forbidden, set_timeouts},
        hints,
    },
    error::{Result, makes_no_sense},
    exchange::exchange,
    time::{self, Deadline},
};

/// A node that was silent is asked after the others for so long.
const FORGIVEN: Duration = Duration::from_secs(5);
/// A node that is silent may take so much of the time at most.
const PARTS: usize = 8;

impl Asking {
    /// The nodes in the order in which they are asked, each once; this one first, unless it was
    /// silent lately. Last come the nodes that were silent lately.
    pub(super) fn in_order(
        &mut self,
        mut all: Vec<Address>,
        first: Option<&Address>,
    ) -> Vec<Address> {
        let mut seen = HashSet::new();
        all.retain(|address| seen.insert(address.clone()));
        if all
            .iter()
            .all(|address| self.knew_nothing.contains(address))
        {
            self.knew_nothing.clear();
        }
        all.sort_by_key(|at| {
            let is_first = Some(at) == first;
            let knew_nothing = self.knew_nothing.contains(at);
            let was_silent = self.was_silent_lately(at);
            (was_silent, !is_first, knew_nothing)
        });
        all
    }

    fn was_silent_lately(&self, address: &Address) -> bool {
        let at = self.silent.get(address);
        at.is_some_and(|at| at.elapsed() < FORGIVEN)
    }

    /// Whether only nodes of another cluster have answered for long, as they do now.
    fn has_heard_strangers_alone(&mut self) -> bool {
        self.strange.goes_on(time::now()) >= STRANGE
    }

    /// This node has answered, and its answer is believed.
    fn heard(&mut self, address: Address, connection: Connection, is_news: bool, in_doubt: bool) {
        if is_news {
            self.knew_nothing.clear();
        } else if in_doubt {
            self.knew_nothing.insert(address.clone());
        }
        self.silent.remove(&address);
        self.strange = Streak::default();
        self.last = Some(address.clone());
        self.connection = Some((address, connection));
    }
}

impl Map {
    /// Asks the nodes, unless another thread gets an answer while this one waits for its turn, or nodes may not be asked yet.
    pub(super) fn ask(
        &self,
        need: Need,
        first: Option<&Address>,
        deadline: Deadline,
    ) -> Result<()> {
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
        self.ask_all(asking, first, deadline)
    }

    /// Asks one node after another, until an answer is believed. `first` is asked first, unless it was silent lately.
    pub(super) fn ask_all(
        &self,
        mut asking: MutexGuard<'_, Asking>,
        first: Option<&Address>,
        deadline: Deadline,
    ) -> Result<()> {
        if deadline.has_passed() {
            // Nobody was asked, so that whoever has time can ask at once.
            return Err(silent("there is no time left to ask them", None));
        }
        let (all, in_doubt, asked_before) = {
            let mut known = self.known.lock();
            let asked_before = known.asked.replace(time::now());
            let all = self.nodes(&asking, &known);
            (all, known.is_in_doubt(), asked_before)
        };
        let all = asking.in_order(all, first);
        let parts = u32::try_from(PARTS.min(all.len() + 1)).unwrap_or(u32::MAX);
        let each = deadline.remaining() / parts;
        let mut refused = Refused {
            is_forgotten: asked_before.is_none_or(|asked| asked.elapsed() > FRESH * 2),
            ..Refused::default()
        };
        let (mut left, mut is_misuse) = (Left::of(all), self.known.lock().addresses().is_empty());
        while let Some(address) = left.next() {
            if deadline.has_passed() {
                refused.strange = None;
                is_misuse = false;
                break;
            }
            if refused.cut_off >= CUT_OFF {
                break;
            }
            let heard = self.hear(&mut asking, &address, deadline.remaining_up_to(each));
            let (answer, connection) = match heard {
                Ok(heard) => heard,
                Err(error) => {
                    let reason = hints::of_node(&address, &error);
                    let source = Some(error).filter(|error| !hints::is_misuse(error));
                    is_misuse &= source.is_none();
                    refused.why = Some(silent(&reason, source));
                    continue;
                }
            };
            is_misuse = false;
            match self.believe(&answer) {
                Ok(is_news) => {
                    if first == Some(&address) && !is_news {
                        // It may be cut off from the others: they can be asked at once if something casts doubt on the map.
                        self.known.lock().asked = asked_before;
                    }
                    asking.heard(address, connection, is_news, in_doubt);
                    return Ok(());
                }
                Err(why) => {
                    if !answer.is_well() && !matches!(why, Disbelief::Strange) {
                        asking.knew_nothing.insert(address.clone());
                        left.add(answer.addresses());
                    }
                    refused.enter((answer, address, connection), why);
                }
            }
        }
        let believed = self.believe_one_of(refused, &mut asking);
        let believed = believed.map_err(|why| if is_misuse { hints::misuse(why) } else { why });
        let ((_, address, connection), is_news) = believed?;
        asking.heard(address, connection, is_news, in_doubt);
        Ok(())
    }

    /// If none was believed at once, the second best is believed as far as it goes; and if only nodes of another cluster have answered
    /// for long, one of these.
    fn believe_one_of(&self, refused: Refused, asking: &mut Asking) -> Result<(Heard, bool)> {
        let why = refused.why.unwrap_or_else(|| silent("none answers", None));
        if refused.is_one_known {
            asking.strange = Streak::default();
        }
        let mut known = self.known.lock();
        let is_news = if let Some((answer, ..)) = &refused.second_best {
            let epoch = answer.config_epoch(known.config_epoch);
            known.believe_in_part(&answer.layout, epoch)
        } else if let Some((answer, ..)) = &refused.strange {
            if !asking.has_heard_strangers_alone() && !refused.is_forgotten {
                return Err(why);
            }
            known.begin_anew();
            known.believe(&answer.layout, answer.config_epoch(0))
        } else {
            return Err(why);
        };
        let Ok(is_news) = is_news else {
            return Err(why);
        };
        known.answered = Some(time::now());
        let believed = refused.second_best.or(refused.strange);
        known.is_second_best = believed.as_ref().is_some_and(|(it, ..)| !it.is_well());
        believed.map(|heard| (heard, is_news)).ok_or(why)
    }

    fn believe(&self, answer: &Answer) -> Result<bool, Disbelief> {
        let mut known = self.known.lock();
        if known.is_strange(&answer.layout) {
            return Err(Disbelief::Strange);
        }
        let epoch = answer.config_epoch(known.config_epoch);
        (known.refuse_what_is_older(epoch)).map_err(Disbelief::Older)?;
        if !answer.is_well() {
            // Its map is as old as its cut, and would lead back to masters that were replaced each time that it is asked.
            let why = "the last one does not reach most of the masters";
            return Err(Disbelief::Because(why));
        }
        let is_news = known.believe(&answer.layout, epoch);
        let is_news = is_news.map_err(Disbelief::Because)?;
        known.is_second_best = false;
        known.answered = Some(time::now());
        Ok(is_news)
    }

    /// The addresses of all nodes, the likeliest to know first.
    fn nodes(&self, asking: &Asking, known: &Known) -> Vec<Address> {
        let named = known.named.iter().cloned();
        let last = asking.last.iter().cloned();
        let (all, seeds) = (known.addresses(), self.seeds.iter().cloned());
        named.chain(last).chain(all).chain(seeds).collect()
    }

    /// Asks one node. Enters that it was silent, if it was.
    fn hear(
        &self,
        asking: &mut Asking,
        address: &Address,
        limit: Duration,
    ) -> RedisResult<(Answer, Connection)> {
        let kept = asking.connection.take_if(|(of, _)| of == address);
        let heard = self.answer_of(address, kept.map(|(_, connection)| connection), limit);
        heard.inspect_err(|_| {
            asking.silent.insert(address.clone(), time::now());
        })
    }

    /// The answer of one node, and the connection on which it came.
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
                // The node may have been started again: a new connection tells.
                Err(error) if error.is_connection_dropped() => {}
                Err(error) => return Err(error),
            }
        }
        let mut connection = self.open_at(address, deadline)?;
        let left = deadline.remaining_up_to(limit);
        let answer = self.question(&mut connection, address, left)?;
        Ok((answer, connection))
    }

    /// Sends both questions in one write, so that both answers are of the same moment.
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
