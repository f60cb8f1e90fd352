//! Finds the master by asking sentinels.
//!
//! A sentinel is asked before a connection is opened, unless one has answered within the last
//! second and nothing has happened since that casts doubt on the answer; and once a second while
//! somebody relies on a connection, since a master that was replaced as planned goes on granting
//! locks on its open connections until it is told, ten seconds later. Each second another one is
//! asked: one that is cut off together with the old master says "as before" until the cut is over.
//! The listener's thread also reads the announcements of one of them.
//!
//! [`known`] decides which of their answers is believed.
//!
//! Locks: `asking`, for as long as a sentinel is asked, and within it `known`, for a moment.

mod asking;
mod known;

use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use redis::{Client, RedisError};

use asking::SentinelConnections;
use known::{HEARING, Known};

use super::{
    connector::{MasterLocator, MasterPlace},
    dial::prepared,
    reasons,
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

/// The sentinels that watch one master.
pub(super) struct Sentinels {
    master: String,
    count: usize,
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
            known: Mutex::default(),
            asking: Mutex::new(SentinelConnections::new(clients)),
        })
    }
}

impl MasterLocator for Sentinels {
    fn epoch(&self) -> u64 {
        self.known.lock().epoch
    }

    fn look(&self, deadline: Deadline) -> Result<MasterPlace> {
        {
            let known = self.known.lock();
            let for_so_long = if known.in_doubt { REST } else { FRESH };
            let is_fresh = (known.answered).is_some_and(|at| at.elapsed() < for_so_long);
            if let Some(place) = known.place().filter(|_| is_fresh) {
                return Ok(place);
            }
        }
        self.ask(deadline)?;
        (self.known.lock().place()).ok_or_else(|| self.silent("none", None))
    }

    fn confirm(&self, epoch: u64) {
        let mut known = self.known.lock();
        known.in_doubt &= epoch != known.epoch;
    }

    fn doubt(&self) {
        self.known.lock().in_doubt = true;
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
    /// Asks the sentinels, unless another thread has been answered while this one waited for it.
    fn ask(&self, deadline: Deadline) -> Result<()> {
        let wanted = time::now();
        let asking = self.asking.try_lock_for(deadline.remaining());
        let why = "another thread has asked them, and waits for an answer";
        let asking = asking.ok_or_else(|| self.silent(why, None))?;
        if self.known.lock().answered.is_some_and(|at| at >= wanted) {
            return Ok(());
        }
        let last = asking.last;
        // The last part is for the connection to the master.
        let parts = u32::try_from(self.count + 1).unwrap_or(u32::MAX);
        self.ask_from(last, asking, deadline, deadline.remaining() / parts)
    }

    /// Asks one after another, from this one on, each for so long, until one names what can be
    /// believed. While the master is in doubt, until one names another: the one that leads a
    /// failover knows of it before the others. At first, until most of them have answered: one of
    /// them may be cut off.
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
            let is_enough = answers >= enough || asking.was_silent_lately(at);
            if deadline.has_passed() || is_known && is_enough {
                break;
            }
            match asking.ask(at, &self.master, deadline.remaining_up_to(each)) {
                Ok((said, since)) => {
                    answers += 1;
                    let mut known = self.known.lock();
                    if is_first {
                        known.heard_at_first(since);
                    }
                    match known.believe((at, self.count), said, time::now()) {
                        Err(reason) => why = self.silent(reason, None),
                        Ok(true) if !is_first => {
                            asking.prefer(at);
                            return Ok(());
                        }
                        Ok(_) => is_known = true,
                    }
                }
                Err(error) => {
                    let reason = reasons::of_sentinel(asking.address(at), &error);
                    let source = Some(error).filter(|error| !reasons::is_misuse(error));
                    misused += usize::from(source.is_none());
                    why = self.silent(&reason, source);
                }
            }
        }
        if is_known {
            // Those who could know better have been asked. The next failure is a doubt again.
            self.known.lock().in_doubt &= !in_doubt;
            return Ok(());
        }
        Err(if is_first && misused == self.count {
            reasons::misuse(why)
        } else {
            why
        })
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
