//! Where the master is, as sentinels say.
//!
//! A sentinel is asked before a connection is opened, unless one has answered within the last second and nothing has happened
//! since that casts doubt on the answer; and once a second while somebody relies on a connection, since a master that was
//! replaced as planned goes on granting locks on its open connections until it is told, ten seconds later.
//!
//! What of their answers is believed: [`known`].
//!
//! Locks: `asking`, for as long as a sentinel is asked, and within it `known`, for a moment.

pub(super) mod known;

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use parking_lot::{Mutex, MutexGuard};
use redis::{Client, Connection, ErrorKind, RedisError, RedisResult, Value};

use known::{Belief, Known, Master};

use super::{
    dial::{prepared, set_timeouts},
    whereabouts::{Place, Whereabouts},
};
use crate::{
    error::{Error, Result, makes_no_sense},
    exchange::exchange,
    time::{self, Deadline},
};

/// An answer is believed for so long, while nothing casts doubt on it.
const FRESH: Duration = Duration::from_secs(1);
/// In doubt nobody is asked again sooner.
const REST: Duration = Duration::from_millis(50);
/// One that was silent is asked after the others for so long.
const FORGIVEN: Duration = Duration::from_secs(5);
/// How long all sentinels together may take when it is only looked whether anything has changed.
const LOOK: Duration = Duration::from_millis(250);

/// The sentinels that watch one master.
pub(super) struct Sentinels {
    master: String,
    clients: Vec<Client>,
    /// Grows when another server has become the master.
    epoch: AtomicU64,
    known: Mutex<Known>,
    asking: Mutex<Asking>,
}

/// Which sentinels are asked first, and which last.
#[derive(Default)]
struct Asking {
    /// The number of the sentinel that has answered last.
    first: usize,
    /// A connection, kept for the next question, with the number of its sentinel.
    connection: Option<(usize, Connection)>,
    /// The sentinels that were silent, and when.
    silent: HashMap<usize, Instant>,
}

impl Asking {
    /// The sentinels in the order in which they are asked: those that were silent lately come last.
    fn in_order(&self, count: usize) -> Vec<usize> {
        let mut order: Vec<_> = (0..count).map(|step| (self.first + step) % count).collect();
        order.sort_by_key(|at| self.was_silent_lately(*at));
        order
    }

    fn was_silent_lately(&self, at: usize) -> bool {
        (self.silent.get(&at)).is_some_and(|silent| silent.elapsed() < FORGIVEN)
    }
}

impl Sentinels {
    /// # Errors
    /// [`Error::Invalid`] if there are none, or their settings cannot be used.
    pub(super) fn new(sentinels: &[Client], master: &str) -> Result<Self> {
        if sentinels.is_empty() {
            return Err(Error::invalid("sentinels", "there has to be at least one"));
        }
        let is_usable = |sign: char| sign.is_ascii_alphanumeric() || ".-_".contains(sign);
        if master.is_empty() || !master.chars().all(is_usable) {
            let reason = "it has to be letters, digits, `.`, `-` and `_`, as sentinels have it";
            return Err(Error::invalid("master", reason));
        }
        Ok(Self {
            master: master.to_owned(),
            clients: sentinels.iter().map(prepared).collect::<Result<_>>()?,
            epoch: AtomicU64::new(0),
            known: Mutex::default(),
            asking: Mutex::default(),
        })
    }
}

impl Whereabouts for Sentinels {
    fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    fn look(&self, deadline: Deadline) -> Result<Place> {
        if let Some(place) = self.fresh() {
            return Ok(place);
        }
        let wanted = time::now();
        self.ask(wanted, deadline)?;
        self.place().ok_or_else(|| self.silent("none", None))
    }

    fn confirm(&self, epoch: u64) {
        if epoch == self.epoch() {
            self.known.lock().in_doubt = false;
        }
    }

    fn doubt(&self) {
        self.known.lock().in_doubt = true;
    }

    /// A sentinel that is silent costs no more than its part of a quarter of a second, and is not asked again for a second.
    fn check(&self, unless_within: Duration) {
        let asked = self.known.lock().asked;
        if asked.is_none_or(|asked| asked.elapsed() < unless_within) {
            return;
        }
        // While another thread asks, this one need not.
        let Some(asking) = self.asking.try_lock() else {
            return;
        };
        let _ = self.ask_all(asking, Deadline::after(LOOK));
    }

    fn whom(&self) -> String {
        format!("the master `{}`", self.master)
    }
}

impl Sentinels {
    /// What is known, if it need not be asked for.
    fn fresh(&self) -> Option<Place> {
        let known = self.known.lock();
        let for_so_long = if known.in_doubt { REST } else { FRESH };
        let is_fresh = known.answered?.elapsed() < for_so_long;
        drop(known);
        self.place().filter(|_| is_fresh)
    }

    fn place(&self) -> Option<Place> {
        let known = self.known.lock();
        let master = known.master.as_ref()?;
        Some(Place {
            host: master.host.clone(),
            port: master.port,
            epoch: self.epoch(),
        })
    }

    /// Asks the sentinels, unless another thread has been answered since this moment.
    fn ask(&self, wanted: Instant, deadline: Deadline) -> Result<()> {
        let asking = match deadline.moment() {
            Some(moment) => self.asking.try_lock_until(moment),
            None => Some(self.asking.lock()),
        };
        let asking = asking.ok_or_else(|| self.silent("somebody else waits for them", None))?;
        if self.known.lock().answered.is_some_and(|at| at >= wanted) {
            return Ok(());
        }
        self.ask_all(asking, deadline)
    }

    /// One after another, the one that has answered last first, until one says what can be believed; while that is in doubt, until
    /// one says something new, since the one that leads a failover knows of it two seconds before the others. While one counts the
    /// configurations in another way, the others are asked whether they do.
    ///
    /// One that was silent lately is asked only if no other answers.
    fn ask_all(&self, mut asking: MutexGuard<'_, Asking>, deadline: Deadline) -> Result<()> {
        let in_doubt = {
            let mut known = self.known.lock();
            known.asked = Some(time::now());
            known.in_doubt && known.master.is_some()
        };
        let count = self.clients.len();
        // What is left then is for the connection to the master.
        let parts = u32::try_from(count + 1).unwrap_or(u32::MAX);
        let each = deadline.remaining() / parts;
        let mut why = self.silent("none answers", None);
        let (mut old_news, mut agrees) = (false, false);
        for at in asking.in_order(count) {
            if deadline.has_passed() || old_news && asking.was_silent_lately(at) {
                break;
            }
            let kept = asking.connection.take_if(|(of, _)| *of == at);
            let kept = kept.map(|(_, connection)| connection);
            match self.answer_of(at, kept, deadline.remaining_up_to(each)) {
                Ok((master, connection)) => match self.believe(at, master) {
                    Belief::Not(reason) => why = self.silent(reason, None),
                    belief => {
                        let is_news = belief == Belief::News;
                        if is_news || !agrees {
                            asking.first = at;
                            asking.connection = Some((at, connection));
                        }
                        agrees |= belief == Belief::AsBefore;
                        old_news = true;
                        if is_news || belief == Belief::AsBefore && !in_doubt {
                            return Ok(());
                        }
                    }
                },
                Err(error) => {
                    if error.is_timeout() {
                        asking.silent.insert(at, time::now());
                    }
                    why = self.silent("the last one failed", Some(error));
                }
            }
        }
        if old_news { Ok(()) } else { Err(why) }
    }

    /// The answer of one sentinel, and the connection on which it came.
    fn answer_of(
        &self,
        at: usize,
        kept: Option<Connection>,
        limit: Duration,
    ) -> RedisResult<(Master, Connection)> {
        let deadline = Deadline::after(limit);
        if let Some(mut connection) = kept {
            match self.question(&mut connection, limit) {
                Ok(master) => return Ok((master, connection)),
                // The sentinel may have been started again: a new connection tells.
                Err(error) if error.is_connection_dropped() => {}
                Err(error) => return Err(error),
            }
        }
        let left = deadline.remaining_up_to(limit);
        let mut connection = self.clients[at].get_connection_with_timeout(left)?;
        let master = self.question(&mut connection, deadline.remaining_up_to(limit))?;
        Ok((master, connection))
    }

    /// Both in one write, so that both are of the same moment: during a failover the first names the new master as soon as the
    /// second counts it.
    fn question(&self, connection: &mut Connection, limit: Duration) -> RedisResult<Master> {
        set_timeouts(connection, limit)?;
        let mut both = redis::pipe();
        both.cmd("SENTINEL")
            .arg("GET-MASTER-ADDR-BY-NAME")
            .arg(&self.master);
        both.cmd("SENTINEL").arg("MASTER").arg(&self.master);
        let mut replies = exchange(connection, &both.get_packed_pipeline(), 2)?.into_iter();
        let (address, facts) = (replies.next(), replies.next());
        let address = address.ok_or_else(makes_no_sense)?.extract_error()?;
        if address == Value::Nil {
            let kind = ErrorKind::Client;
            return Err((kind, "it knows no master of this name").into());
        }
        let (host, port): (String, u16) = redis::from_redis_value(address)?;
        let facts = facts.ok_or_else(makes_no_sense)?.extract_error()?;
        let config_epoch = config_epoch_in(facts).ok_or_else(makes_no_sense)?;
        Ok(Master {
            host,
            port,
            config_epoch,
        })
    }

    /// Takes what a sentinel says for true, or says why not.
    fn believe(&self, at: usize, said: Master) -> Belief {
        let mut known = self.known.lock();
        let is_first = known.master.is_none();
        let belief = known.believe((at, self.clients.len()), said, time::now());
        if belief == Belief::News && !is_first {
            self.epoch.fetch_add(1, Ordering::SeqCst);
        }
        belief
    }

    fn silent(&self, why: &str, source: Option<RedisError>) -> Error {
        Error::Pool {
            reason: format!(
                "no sentinel of {} says where the master `{}` is: {why}",
                self.clients.len(),
                self.master
            ),
            source,
        }
    }
}

/// In RESP2 a list of names and values, in RESP3 a map.
fn config_epoch_in(facts: Value) -> Option<u64> {
    let facts: HashMap<String, String> = redis::from_redis_value(facts).ok()?;
    facts.get("config-epoch")?.parse().ok()
}
