//! Where the master is, as sentinels say.
//!
//! A sentinel is asked before a connection is opened, unless one has answered within the last
//! second and nothing has happened since that casts doubt on the answer; and once a second while
//! somebody relies on a connection, since a master that was replaced as planned goes on granting
//! locks on its open connections until it is told, ten seconds later. Each second another one is
//! asked: one that is cut off together with the old master says "as before" until the cut is over.
//! The listener's thread also reads the announcements of one of them.
//!
//! What of their answers is believed: [`known`].
//!
//! Locks: `asking`, for as long as a sentinel is asked, and within it `known`, for a moment.

mod asking;
mod known;

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use parking_lot::{Mutex, MutexGuard};
use redis::{Client, RedisError};

use asking::SentinelConnections;
use known::{Belief, Known, Master};

use super::{
    dial::prepared,
    hints,
    master_locator::{MasterLocator, MasterPlace},
};
use crate::{
    error::{Error, Result},
    time::{self, Deadline},
};

/// An answer is believed for so long, while nothing casts doubt on it.
const FRESH: Duration = Duration::from_secs(1);
/// In doubt nobody is asked again sooner.
const REST: Duration = Duration::from_millis(50);
/// How long all sentinels together may take when it is only looked whether anything has changed.
/// The first may take all of it: it may be far away.
const LOOK: Duration = Duration::from_millis(250);
/// For so long after we have heard of a new master no lock is asked for there. Other processes hear
/// of it meanwhile, and are told which of their leases the new master does not have.
const HEARING: Duration = Duration::from_millis(500);

/// The sentinels that watch one master.
pub(super) struct Sentinels {
    master: String,
    count: usize,
    /// Grows when another server has become the master.
    epoch: AtomicU64,
    known: Mutex<Known>,
    asking: Mutex<SentinelConnections>,
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
        let clients = sentinels.iter().map(prepared).collect::<Result<_>>()?;
        Ok(Self {
            master: master.to_owned(),
            count: sentinels.len(),
            epoch: AtomicU64::new(0),
            known: Mutex::default(),
            asking: Mutex::new(SentinelConnections::new(clients)),
        })
    }
}

impl MasterLocator for Sentinels {
    fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    fn look(&self, deadline: Deadline) -> Result<MasterPlace> {
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

    fn is_left_by_replicas(&self) {
        self.doubt();
    }

    /// Asks the next sentinel. One that is silent costs no more than a quarter of a second, once in
    /// five seconds.
    fn check(&self, unless_within: Duration) {
        let asked = self.known.lock().asked;
        if asked.is_none_or(|asked| asked.elapsed() < unless_within) {
            return;
        }
        // While another thread asks, this one need not.
        if let Some(asking) = self.asking.try_lock() {
            let next = asking.last + 1;
            let _ = self.ask_from(next, asking, Deadline::after(LOOK), LOOK);
        }
    }

    fn listen(&self) {
        if let Some(mut asking) = self.asking.try_lock()
            && let Some(at) = asking.has_news()
        {
            let _ = self.ask_from(at, asking, Deadline::after(LOOK), LOOK);
        }
    }

    fn grants_from(&self) -> Option<Instant> {
        self.known.lock().replaced.map(|at| at + HEARING)
    }

    fn whom(&self) -> String {
        format!("the master `{}`", self.master)
    }
}

impl Sentinels {
    /// What is known, if it need not be asked for.
    fn fresh(&self) -> Option<MasterPlace> {
        let known = self.known.lock();
        let for_so_long = if known.in_doubt { REST } else { FRESH };
        let is_fresh = known.answered?.elapsed() < for_so_long;
        drop(known);
        self.place().filter(|_| is_fresh)
    }

    fn place(&self) -> Option<MasterPlace> {
        let known = self.known.lock();
        let master = known.master.as_ref()?;
        Some(MasterPlace {
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
        let asking = asking.ok_or_else(|| {
            self.silent(
                "another thread has asked them, and waits for an answer",
                None,
            )
        })?;
        if self.known.lock().answered.is_some_and(|at| at >= wanted) {
            return Ok(());
        }
        let last = asking.last;
        // What is left then is for the connection to the master.
        let parts = u32::try_from(self.count + 1).unwrap_or(u32::MAX);
        self.ask_from(last, asking, deadline, deadline.remaining() / parts)
    }

    /// One after another, from this one on, each for so long, until one says what can be believed.
    /// While the master is in doubt, until one says something new: the one that leads a failover
    /// knows of it before the others. At first, until most of them have answered: one of them may
    /// be cut off.
    ///
    /// One that was silent lately is asked only if no other answers.
    fn ask_from(
        &self,
        first: usize,
        mut asking: MutexGuard<'_, SentinelConnections>,
        deadline: Deadline,
        each: Duration,
    ) -> Result<()> {
        let (is_first, in_doubt) = {
            let mut known = self.known.lock();
            known.asked = Some(time::now());
            (known.master.is_none(), known.in_doubt)
        };
        let enough = match (is_first, in_doubt) {
            (true, _) => self.count / 2 + 1,
            (false, true) => self.count,
            (false, false) => 1,
        };
        let mut why = self.silent("none answers", None);
        let (mut is_known, mut answers, mut misused) = (false, 0, 0);
        for at in asking.in_order(first) {
            if deadline.has_passed() || is_known && asking.was_silent_lately(at) {
                break;
            }
            match asking.ask(at, &self.master, deadline.remaining_up_to(each)) {
                Ok((said, since)) => {
                    answers += 1;
                    if is_first {
                        self.heard_of_a_failover(since);
                    }
                    match self.believe(at, said) {
                        Belief::Not(reason) => why = self.silent(reason, None),
                        Belief::News if !is_first => {
                            asking.prefer(at);
                            return Ok(());
                        }
                        Belief::News | Belief::AsBefore => is_known = true,
                    }
                }
                Err(error) => {
                    let reason = hints::of_sentinel(asking.client(at), &error);
                    let source = Some(error).filter(|error| !hints::is_misuse(error));
                    misused += usize::from(source.is_none());
                    why = self.silent(&reason, source);
                }
            }
            if is_known && answers >= enough {
                break;
            }
        }
        if is_first && misused == self.count {
            why = hints::misuse(why);
        }
        if !is_known {
            return Err(why);
        }
        if in_doubt {
            // All have been asked. The next failure is a doubt again.
            self.known.lock().in_doubt = false;
        }
        Ok(())
    }

    /// A process that has just started learns whether the master was replaced a moment ago, which
    /// other processes may not have heard of yet.
    fn heard_of_a_failover(&self, before: Duration) {
        if let Some(at) = time::now().checked_sub(before).filter(|_| before < HEARING) {
            let mut known = self.known.lock();
            known.replaced = known.replaced.max(Some(at));
        }
    }

    /// Takes what a sentinel says for true, or says why not.
    fn believe(&self, at: usize, said: Master) -> Belief {
        let mut known = self.known.lock();
        let is_first = known.master.is_none();
        let belief = known.believe((at, self.count), said, time::now());
        if belief == Belief::News && !is_first {
            self.epoch.fetch_add(1, Ordering::SeqCst);
        }
        belief
    }

    fn silent(&self, why: &str, source: Option<RedisError>) -> Error {
        Error::Pool {
            reason: format!(
                "no sentinel of {} says where the master `{}` is: {why}",
                self.count, self.master
            ),
            source,
        }
    }
}
