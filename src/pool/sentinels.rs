//! Finds the master by asking sentinels.
//!
//! A sentinel is asked before a connection is opened, unless one has answered within the last
//! second and nothing has cast doubt on the answer since. One is also asked once a second while
//! connections are in use: after a planned failover, the old master keeps granting locks on its
//! open connections until it learns of the failover, ten seconds later. A different sentinel is
//! asked each second, because one that is partitioned together with the old master names that
//! master until the partition ends. The listener's thread also reads the announcements of one
//! sentinel. [`known`] compares their answers, and decides which to believe: at the start, at each
//! later question and for a probe. While one of them contradicts the known master, all are asked.
//!
//! Locks: `asking`, for as long as a sentinel is asked, and within it `known`, for a moment.

mod connections;
mod known;

use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use redis::Client;

use connections::SentinelConnections;
use known::{Known, NamedMaster, QUIET_AFTER_FAILOVER};

use super::{
    connector::{Address, MasterLocator, MasterPlace, Survey},
    reasons,
};
use crate::{
    error::{Error, Result},
    time::{self, Deadline},
};

/// An answer is believed for this long, unless something casts doubt on it.
const FRESH: Duration = Duration::from_secs(1);
/// The shortest time between two questions while the master is in doubt.
const REST: Duration = Duration::from_millis(50);
/// A periodic check of all sentinels together takes at most this long. The first one, which may be
/// distant, may use all of it.
const CHECK_LIMIT: Duration = Duration::from_millis(250);

/// The time limit for each sentinel of a survey.
const SURVEY_LIMIT: Duration = Duration::from_secs(1);

/// The hints for a refused login, and for a server of another kind.
const HINTS: [&str; 2] = [
    "the sentinels' password goes into the URL as `?sentinel_password=…`",
    "is not a sentinel; the URL of a server is `redis://HOST:PORT/`",
];

/// The sentinels that watch one master.
pub(super) struct Sentinels {
    master: String,
    /// The addresses of the sentinels, for errors.
    names: Vec<String>,
    known: Mutex<Known>,
    asking: Mutex<SentinelConnections>,
}

impl Sentinels {
    /// # Errors
    /// [`Error::Invalid`] if there are none, or the name is not valid for a master.
    pub(super) fn new(mut sentinels: Vec<Client>, master: &str) -> Result<Self> {
        if sentinels.is_empty() {
            return Err(Error::invalid("sentinels", "at least one is required"));
        }
        let is_usable = |sign: char| sign.is_ascii_alphanumeric() || ".-_".contains(sign);
        if master.is_empty() || !master.chars().all(is_usable) {
            let reason = "it must consist of letters, digits, `.`, `-` and `_`";
            return Err(Error::invalid("master", reason));
        }
        let mut names = Vec::new();
        // A sentinel that is named twice has one vote.
        sentinels.retain(|client| {
            let name = reasons::shown(client.get_connection_info().addr());
            let is_new = !names.contains(&name);
            names.extend(is_new.then_some(name));
            is_new
        });
        Ok(Self {
            master: master.to_owned(),
            names,
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
            let is_unsure = known.in_doubt || known.in_dispute;
            let fresh_for = if is_unsure { REST } else { FRESH };
            let is_fresh = (known.answered).is_some_and(|at| at.elapsed() < fresh_for);
            if let Some(place) = known.place().filter(|_| is_fresh) {
                return Ok(place);
            }
        }
        self.ask_unless_answered(deadline)?;
        let known = self.known.lock();
        (known.place()).ok_or_else(|| self.in_dispute(&known))
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

    fn grants_from(&self) -> Result<Option<Instant>> {
        let known = self.known.lock();
        if known.master.is_none() || known.in_dispute {
            return Err(self.in_dispute(&known));
        }
        Ok(known.replaced.map(|at| at + QUIET_AFTER_FAILOVER))
    }

    fn survey(&self, master: &Address, deadline: Deadline) -> Option<Survey> {
        let mut asking = self.asking.try_lock_for(deadline.remaining())?;
        let mut survey = Survey {
            asked: self.names.len(),
            ..Survey::default()
        };
        for which in 0..self.names.len() {
            let limit = deadline.remaining_up_to(SURVEY_LIMIT);
            if let Ok(said) = self.ask_and_note(&mut asking, which, limit) {
                survey.answered += 1;
                survey.agreed += usize::from(said.address == *master);
            }
        }
        let mut known = self.known.lock();
        known.settle(self.names.len(), time::now());
        survey.differing = (!known.is_undisputed()).then(|| self.answers(&known));
        Some(survey)
    }

    fn master_name(&self) -> String {
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
        let parts = u32::try_from(self.names.len() + 1).unwrap_or(u32::MAX);
        self.ask_until_believed(last, asking, deadline, deadline.remaining() / parts)
    }

    /// Asks the sentinels one after another, from `start_at` on, each with the time limit `each`,
    /// until an answer agrees with the known master. Before a master is known it asks all of them,
    /// since one may be partitioned. While the master is in doubt it asks until one names another
    /// master: the sentinel that leads a failover learns of the new master before the others.
    ///
    /// A sentinel that was silent lately is asked only if no other answers.
    fn ask_until_believed(
        &self,
        start_at: usize,
        mut asking: MutexGuard<'_, SentinelConnections>,
        deadline: Deadline,
        each: Duration,
    ) -> Result<()> {
        let (is_first, in_doubt) = {
            let mut known = self.known.lock();
            known.asked = Some(time::now());
            (known.master.is_none(), known.in_doubt)
        };
        let (mut is_answered, mut why) = (false, None);
        for which in asking.in_order(start_at) {
            let is_enough = || !is_first && !in_doubt && self.known.lock().is_undisputed();
            let may_stop = is_answered && (asking.was_silent_lately(which) || is_enough());
            if deadline.has_passed() || may_stop {
                break;
            }
            let limit = deadline.remaining_up_to(each);
            match self.ask_and_note(&mut asking, which, limit) {
                // The first answers are compared when all are there.
                Ok(_) if is_first => is_answered = true,
                Ok(_) => {
                    is_answered = true;
                    if self.known.lock().settle(self.names.len(), time::now()) {
                        asking.prefer(which);
                        return Ok(());
                    }
                }
                Err(error) => why = reasons::last_that_may_pass(why, error),
            }
        }
        if !is_answered {
            return Err(why.unwrap_or_else(|| self.not_named("none answered")));
        }
        let mut known = self.known.lock();
        if is_first {
            known.settle(self.names.len(), time::now());
        }
        if in_doubt {
            // Every sentinel that may know better, and answers in time, was asked. The next failure
            // casts doubt again.
            known.in_doubt = false;
        }
        Ok(())
    }

    /// Asks one sentinel and notes its answer.
    fn ask_and_note(
        &self,
        asking: &mut SentinelConnections,
        which: usize,
        limit: Duration,
    ) -> Result<NamedMaster> {
        let said = asking.question_one(which, &self.master, limit);
        let mut known = self.known.lock();
        let is_first = known.master.is_none();
        let (said, for_how_long) = said.map_err(|error| {
            reasons::no_useful_answer(&self.wanted(), &self.names[which], error, HINTS, is_first)
        })?;
        if is_first {
            known.note_age(for_how_long);
        }
        known.note(which, said.clone(), time::now());
        Ok(said)
    }

    fn wanted(&self) -> String {
        let (count, master) = (self.names.len(), &self.master);
        format!("no sentinel of {count} has named the master `{master}`")
    }

    fn not_named(&self, why: &str) -> Error {
        Error::pool(format!("{}: {why}", self.wanted()), None)
    }

    fn in_dispute(&self, known: &Known) -> Error {
        let before = known.master.as_ref();
        let before = before.map_or_else(String::new, |it| format!(", which was {it} before"));
        let (master, answers) = (&self.master, self.answers(known));
        let reason =
            format!("the sentinels do not agree on the master `{master}`{before}: {answers}");
        Error::pool(reason, None)
    }

    /// Lists the master that each sentinel names.
    fn answers(&self, known: &Known) -> String {
        let tell = |(which, said)| format!("{} names {said}", self.names[which]);
        let answers: Vec<_> = known.answers().map(tell).collect();
        answers.join(", ")
    }
}
