//! Asking the nodes of a cluster who serves which slot: whom, in which order, and what one of them says.
//!
//! One thread at a time asks. The others wait for its answer if they know no node to go to; the rest go where the map says
//! meanwhile. The node that a `MOVED` has named is asked first, then the one that has answered last, the masters, the replicas
//! and the nodes of the URL. A silent node takes no more than its part of the time, and for five seconds it is asked last.
//! While the map is in doubt, a node that has said nothing new is asked after the others, since it may be cut off from them.

use std::{collections::HashSet, thread, time::Duration};

use parking_lot::MutexGuard;
use redis::{Connection, RedisResult, Value};

use super::{Asking, Map, Need, REST, silent};
use crate::{
    connection::{
        cluster::{
            answer::Answer,
            known::Known,
            layout::{self, Address},
        },
        dial::{is_forbidden, set_timeouts},
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
    /// The nodes in the order in which they are asked, each once.
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

    /// This node has answered, and its answer is believed.
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

impl Map {
    /// Asks the nodes, unless another thread gets an answer while this one waits for its turn, or nodes may not be asked yet.
    pub(super) fn ask(&self, need: Need, deadline: Deadline) -> Result<()> {
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

    /// Asks one node after another, until an answer is believed. If each has a hole, the best of them is believed in part.
    pub(super) fn ask_all(
        &self,
        mut asking: MutexGuard<'_, Asking>,
        deadline: Deadline,
    ) -> Result<()> {
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

    /// The addresses of all nodes, the likeliest to know first.
    fn nodes(&self, asking: &Asking, known: &Known) -> Vec<Address> {
        let named = known.named.iter().cloned();
        let last = asking.last.iter().cloned();
        let (all, seeds) = (known.addresses(), self.seeds.iter().cloned());
        named.chain(last).chain(all).chain(seeds).collect()
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
