//! Finds the master by asking sentinels.
//!
//! A sentinel is asked before a connection is opened, unless one has answered within the last
//! second and nothing has cast doubt on the answer since. One is also asked once a second while
//! connections are in use: after a planned failover, the old master keeps granting locks on its
//! open connections until it learns of the failover, ten seconds later. A different sentinel is
//! asked each second, because one that is partitioned together with the old master names that
//! master until the partition ends. The listener's thread also reads the announcements of one
//! sentinel.
//! [`known`] decides which of their answers to believe.
//!
//! Locks: `asking`, for as long as a sentinel is asked, and within it `known`, for a moment.

mod known;

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use parking_lot::{Mutex, MutexGuard};
use redis::{Client, Connection, ErrorKind, ProtocolVersion, RedisResult, Value};

use known::{Known, NamedMaster, QUIET_AFTER_FAILOVER};

use super::{
    connector::{Address, MasterLocator, MasterPlace, Survey},
    dial::{asked, set_timeouts, speaking},
    reasons,
};
use crate::{
    error::{Error, Result, makes_no_sense},
    time::{self, Deadline},
    wire::{exchange, within},
};

/// An answer is believed for this long, unless something casts doubt on it.
const FRESH: Duration = Duration::from_secs(1);
/// In doubt, the shortest time between two questions.
const REST: Duration = Duration::from_millis(50);
/// A periodic check of all sentinels together takes at most this long. The first one, which may be
/// distant, may use all of it.
const CHECK_LIMIT: Duration = Duration::from_millis(250);

/// The time limit for each sentinel of a survey.
const SURVEY_LIMIT: Duration = Duration::from_secs(1);

/// A sentinel that timed out is asked after the others for this long.
const FORGIVEN: Duration = Duration::from_secs(5);
/// The pause between two attempts to subscribe to announcements.
const SUBSCRIBE_PAUSE: Duration = Duration::from_secs(5);
/// Reading announcements should not wait, but a socket has no shorter time-out.
const AT_ONCE: Duration = Duration::from_millis(1);
/// If subscribing takes longer, it is retried later.
const SUBSCRIBING: Duration = Duration::from_millis(250);
/// The sentinel that leads a failover announces the second as soon as the new master is one, and
/// the first after all replicas follow it. The others announce the first as soon as they learn of
/// it.
const CHANNELS: [&str; 2] = ["+switch-master", "+failover-state-reconf-slaves"];

/// The hints for a refused login, and for a server of another kind.
const HINTS: [&str; 2] = [
    "the sentinels' password goes into the URL as `?sentinel_password=…`",
    "is not a sentinel; the URL of a server is `redis://HOST:PORT/`",
];

/// The sentinels that watch one master.
pub(super) struct Sentinels {
    master: String,
    count: usize,
    known: Mutex<Known>,
    asking: Mutex<SentinelConnections>,
}

impl Sentinels {
    /// # Errors
    /// [`Error::Invalid`] if there are none, or the name is not valid for a master.
    pub(super) fn new(sentinels: Vec<Client>, master: &str) -> Result<Self> {
        if sentinels.is_empty() {
            return Err(Error::invalid("sentinels", "at least one is required"));
        }
        let is_usable = |sign: char| sign.is_ascii_alphanumeric() || ".-_".contains(sign);
        if master.is_empty() || !master.chars().all(is_usable) {
            let reason = "it must consist of letters, digits, `.`, `-` and `_`";
            return Err(Error::invalid("master", reason));
        }
        Ok(Self {
            master: master.to_owned(),
            count: sentinels.len(),
            known: Mutex::default(),
            asking: Mutex::new(SentinelConnections::new(sentinels)),
        })
    }
}

impl MasterLocator for Sentinels {
    fn epoch(&self) -> u64 {
        self.known.lock().epoch
    }

    fn locate(&self, deadline: Deadline) -> Result<MasterPlace> {
        {
            let known = self.known.lock();
            let fresh_for = if known.in_doubt { REST } else { FRESH };
            let is_fresh = (known.answered).is_some_and(|at| at.elapsed() < fresh_for);
            if let Some(place) = known.place().filter(|_| is_fresh) {
                return Ok(place);
            }
        }
        self.ask_unless_answered(deadline)?;
        (self.known.lock().place()).ok_or_else(|| self.not_named("none answered"))
    }

    fn confirm(&self, epoch: u64) {
        let mut known = self.known.lock();
        known.in_doubt &= epoch != known.epoch;
    }

    fn doubt(&self) {
        self.known.lock().in_doubt = true;
    }

    /// Asks the next sentinel. A silent one costs at most a quarter of a second, once in five
    /// seconds. Before the first question there is nothing to check: it is asked when the first
    /// connection is opened.
    fn check(&self, unless_within: Duration) {
        let asked = self.known.lock().asked;
        if asked.is_none_or(|asked| asked.elapsed() < unless_within) {
            return;
        }
        // If another thread is asking, this one need not.
        if let Some(asking) = self.asking.try_lock() {
            let next = asking.last + 1;
            let _ =
                self.ask_until_believed(next, asking, Deadline::after(CHECK_LIMIT), CHECK_LIMIT);
        }
    }

    fn listen(&self) {
        if let Some(mut asking) = self.asking.try_lock()
            && let Some(which) = asking.has_news()
        {
            let _ =
                self.ask_until_believed(which, asking, Deadline::after(CHECK_LIMIT), CHECK_LIMIT);
        }
    }

    fn grants_from(&self) -> Option<Instant> {
        self.known
            .lock()
            .replaced
            .map(|at| at + QUIET_AFTER_FAILOVER)
    }

    fn survey(&self, master: &Address, deadline: Deadline) -> Option<Survey> {
        let mut asking = self.asking.try_lock_for(deadline.remaining())?;
        let mut survey = Survey {
            asked: self.count,
            answered: 0,
            agreed: 0,
        };
        for which in 0..self.count {
            let limit = deadline.remaining_up_to(SURVEY_LIMIT);
            if let Ok((said, _)) = asking.question_one(which, &self.master, limit) {
                survey.answered += 1;
                survey.agreed += usize::from(said.address == *master);
            }
        }
        Some(survey)
    }

    fn whom(&self) -> String {
        format!("the master `{}`", self.master)
    }
}

impl Sentinels {
    /// Asks the sentinels, unless another thread got an answer while this one waited for it.
    fn ask_unless_answered(&self, deadline: Deadline) -> Result<()> {
        let wanted = time::now();
        let asking = self.asking.try_lock_for(deadline.remaining());
        let why = "another thread is still waiting for an answer";
        let asking = asking.ok_or_else(|| self.not_named(why))?;
        if self.known.lock().answered.is_some_and(|at| at >= wanted) {
            return Ok(());
        }
        let last = asking.last;
        // The last part of the time is for the connection to the master.
        let parts = u32::try_from(self.count + 1).unwrap_or(u32::MAX);
        self.ask_until_believed(last, asking, deadline, deadline.remaining() / parts)
    }

    /// Asks one sentinel after another, from this one on, each with the time limit `each`, until
    /// one names a master that can be believed. While the master is in doubt, asks until one names
    /// another: the sentinel that leads a failover knows of it first. For the first answer, asks
    /// until most sentinels have answered, since one of them may be partitioned.
    ///
    /// A sentinel that was silent lately is asked only if no other answers.
    fn ask_until_believed(
        &self,
        start_at: usize,
        mut asking: MutexGuard<'_, SentinelConnections>,
        deadline: Deadline,
        each: Duration,
    ) -> Result<()> {
        let (knows_none_yet, in_doubt) = {
            let mut known = self.known.lock();
            known.asked = Some(time::now());
            (known.master.is_none(), known.in_doubt)
        };
        let enough = match (knows_none_yet, in_doubt) {
            (true, _) => self.count / 2 + 1,
            (false, true) => self.count,
            (false, false) => 1,
        };
        let (mut is_known, mut answers, mut why) = (false, 0, None);
        for which in asking.in_order(start_at) {
            let may_skip = answers >= enough || asking.was_silent_lately(which);
            if deadline.has_passed() || is_known && may_skip {
                break;
            }
            let limit = deadline.remaining_up_to(each);
            match self.ask_and_enter(&mut asking, which, knows_none_yet, limit) {
                Ok(true) if !knows_none_yet => {
                    asking.prefer(which);
                    return Ok(());
                }
                Ok(_) => (is_known, answers) = (true, answers + 1),
                Err(error) => why = reasons::last_that_may_pass(why, error),
            }
        }
        if is_known {
            // The sentinels that could know better were asked. The next failure casts doubt again.
            if in_doubt {
                self.known.lock().in_doubt = false;
            }
            return Ok(());
        }
        Err(why.unwrap_or_else(|| self.not_named("none answered")))
    }

    /// Asks one sentinel and enters its answer. `true`: it names a master other than the known one,
    /// or the first.
    fn ask_and_enter(
        &self,
        asking: &mut SentinelConnections,
        which: usize,
        knows_none_yet: bool,
        limit: Duration,
    ) -> Result<bool> {
        match asking.question_one(which, &self.master, limit) {
            Ok((said, for_how_long)) => {
                let mut known = self.known.lock();
                if knows_none_yet {
                    known.note_age(for_how_long);
                }
                let believed = known.believe((which, self.count), said, time::now());
                believed.map_err(|why| self.not_named(why))
            }
            Err(error) => {
                let address = asking.sentinels[which].client.get_connection_info().addr();
                let wanted = self.wanted();
                Err(reasons::no_useful_answer(
                    &wanted,
                    &reasons::shown(address),
                    error,
                    HINTS,
                    knows_none_yet,
                ))
            }
        }
    }

    fn wanted(&self) -> String {
        let (count, master) = (self.count, &self.master);
        format!("no sentinel of {count} has named the master `{master}`")
    }

    fn not_named(&self, why: &str) -> Error {
        Error::Pool {
            reason: format!("{}: {why}", self.wanted()),
            source: None,
        }
    }
}

/// The connections to the sentinels: one to each for questions, and one subscription to the
/// announcements of one of them.
struct SentinelConnections {
    sentinels: Vec<SentinelConnection>,
    /// The index of the sentinel that has answered last.
    last: usize,
    /// The subscription, with the index of its sentinel.
    announcements: Option<(usize, Connection)>,
    /// The moment of the last attempt to subscribe.
    tried: Option<Instant>,
}

struct SentinelConnection {
    client: Client,
    /// The connection for the next question.
    kept: Option<Connection>,
    /// The moment of its last time-out.
    silent: Option<Instant>,
}

impl SentinelConnections {
    fn new(clients: Vec<Client>) -> Self {
        let sentinels = clients.into_iter().map(|client| SentinelConnection {
            client,
            kept: None,
            silent: None,
        });
        Self {
            sentinels: sentinels.collect(),
            last: 0,
            announcements: None,
            tried: None,
        }
    }

    /// The sentinels in the order in which they are asked: those that were silent lately come last.
    fn in_order(&self, start_at: usize) -> Vec<usize> {
        let count = self.sentinels.len();
        let mut order: Vec<_> = (0..count).map(|step| (start_at + step) % count).collect();
        order.sort_by_key(|which| self.was_silent_lately(*which));
        order
    }

    fn was_silent_lately(&self, which: usize) -> bool {
        let silent = self.sentinels[which].silent;
        silent.is_some_and(|silent| silent.elapsed() < FORGIVEN)
    }

    /// Asks one sentinel for the master.
    fn question_one(
        &mut self,
        which: usize,
        master: &str,
        limit: Duration,
    ) -> RedisResult<(NamedMaster, Duration)> {
        let sentinel = &mut self.sentinels[which];
        let said = sentinel.question(master, limit);
        match &said {
            Ok(_) => self.last = which,
            Err(error) if error.is_timeout() => sentinel.silent = Some(time::now()),
            Err(_) => {}
        }
        said
    }

    /// Returns the sentinel that may know of a failover: it has announced one, or the subscription
    /// is new, since earlier announcements are not repeated. If there is no subscription,
    /// subscribes to the sentinel that answered last.
    fn has_news(&mut self) -> Option<usize> {
        let Some((which, connection)) = &mut self.announcements else {
            let is_due = self
                .tried
                .is_none_or(|tried| tried.elapsed() >= SUBSCRIBE_PAUSE);
            if !is_due {
                return None;
            }
            self.tried = Some(time::now());
            self.announcements = Some((self.last, self.sentinels[self.last].subscribed()?));
            return Some(self.last);
        };
        let (which, mut has_announced) = (*which, false);
        loop {
            match connection.recv_response() {
                Ok(Value::Push { .. }) => has_announced = true,
                Err(error) if error.is_timeout() => break,
                Ok(_) | Err(_) => {
                    self.announcements = None;
                    break;
                }
            }
        }
        has_announced.then_some(which)
    }

    /// Drops the subscription to another sentinel, which may be partitioned: this one named the new
    /// master first.
    fn prefer(&mut self, which: usize) {
        if (self.announcements.as_ref()).is_some_and(|(subscribed, _)| *subscribed != which) {
            (self.announcements, self.tried) = (None, None);
        }
    }
}

impl SentinelConnection {
    fn question(&mut self, master: &str, limit: Duration) -> RedisResult<(NamedMaster, Duration)> {
        let deadline = Deadline::after(limit);
        let name = master.to_owned();
        if let Some(mut connection) = self.kept.take() {
            let peer = reasons::shown(self.client.get_connection_info().addr());
            let name = name.clone();
            let said = within(&peer, limit, move || {
                let said = question(&mut connection, &name, limit)?;
                Ok((connection, said))
            });
            match said {
                // The sentinel may have restarted: try a new connection.
                Err(error) if error.is_connection_dropped() => {}
                said => {
                    let (connection, said) = said?;
                    self.kept = Some(connection);
                    return Ok(said);
                }
            }
        }
        let limit = deadline.remaining_up_to(limit);
        let (connection, said) = asked(&self.client, limit, move |connection| {
            question(connection, &name, deadline.remaining_up_to(limit))
        })?;
        self.kept = Some(connection);
        Ok(said)
    }

    /// Opens a subscription, by RESP3, in which messages are distinguishable from replies.
    fn subscribed(&self) -> Option<Connection> {
        let client = speaking(&self.client, ProtocolVersion::RESP3).ok()?;
        let subscribe = |connection: &mut Connection| {
            let mut subscribe = redis::cmd("SUBSCRIBE");
            let subscribe = subscribe.arg(&CHANNELS).get_packed_command();
            connection.send_packed_command(&subscribe)?;
            for _ in CHANNELS {
                let Value::Push { .. } = connection.recv_response()? else {
                    return Err(makes_no_sense());
                };
            }
            connection.set_read_timeout(Some(AT_ONCE))
        };
        let (connection, ()) = asked(&client, SUBSCRIBING, subscribe).ok()?;
        Some(connection)
    }
}

/// Asks for the master, and for its age as far as the sentinel knows.
///
/// Both questions go in one write, so that both answers describe the same moment: during a failover
/// the first names the new master as soon as the second counts its age.
fn question(
    connection: &mut Connection,
    master: &str,
    limit: Duration,
) -> RedisResult<(NamedMaster, Duration)> {
    set_timeouts(connection, limit)?;
    let mut both = redis::pipe();
    both.cmd("SENTINEL")
        .arg("GET-MASTER-ADDR-BY-NAME")
        .arg(master);
    both.cmd("SENTINEL").arg("MASTER").arg(master);
    let mut replies = exchange(connection, &both.get_packed_pipeline(), 2)?.into_iter();
    let (address, facts) = (replies.next(), replies.next());
    let address = address.ok_or_else(makes_no_sense)?.extract_error()?;
    if address == Value::Nil {
        let kind = ErrorKind::Client;
        return Err((kind, "it knows no master of this name").into());
    }
    let (host, port): (String, u16) = redis::from_redis_value(address)?;
    let facts = facts.ok_or_else(makes_no_sense)?.extract_error()?;
    // In RESP2 this is a list of names and values, in RESP3 a map.
    let facts: HashMap<String, String> = redis::from_redis_value(facts)?;
    let number = |name: &str| facts.get(name)?.parse().ok();
    let config_epoch = number("config-epoch").ok_or_else(makes_no_sense)?;
    let master = NamedMaster {
        address: Address::new(&host, port),
        config_epoch,
    };
    let is_failing_over =
        (facts.get("flags")).is_some_and(|it| it.contains("failover_in_progress"));
    let since = match number("role-reported-time") {
        _ if is_failing_over => Duration::ZERO,
        Some(millis) => Duration::from_millis(millis),
        None => Duration::MAX,
    };
    Ok((master, since))
}
