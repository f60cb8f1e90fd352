//! What was given back lately, where another server may take the place of the one that has answered.
//!
//! Replication is asynchronous: the replica that is promoted may not know of a release that the master before it has answered, and
//! there the lock would keep everybody out until its lease ends. So when another server has become the master, what was given
//! back before is given back there as well, by the watchdog's thread: by its token, so that nothing happens where the lock is free, or
//! somebody else's by now. A release without an answer is one of these, and what an acquire without an answer may have left: the
//! watchdog's thread gives that back until a master has answered, of which the next one may know as little.
//!
//! Locks: `releases`, for a moment, and nothing within it.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{recipes::hold::Holding, script::Call};

/// So long after it was answered, or its caller was told that no answer came, a release may be unknown to the next master: the
/// sentinels agree after half a minute by default.
const LONGEST: Duration = Duration::from_secs(60);
/// Where there are more releases than this, the oldest are forgotten.
const MOST: usize = 4_096;

/// The releases that may have to be repeated.
#[derive(Default)]
pub(crate) struct GivenBack {
    releases: Mutex<VecDeque<Release>>,
}

/// A release that may have to be repeated.
pub(crate) struct Release {
    hold: Arc<Holding>,
    /// It has also marked that the work was done.
    marks: bool,
    /// The epoch at which it was made: that of the server that was asked, or an earlier one.
    epoch: u64,
    /// When the lock ends by itself.
    end: Instant,
}

impl Release {
    pub(super) fn new(hold: &Arc<Holding>, marks: bool, epoch: u64, end: Instant) -> Self {
        let hold = Arc::clone(hold);
        Self {
            hold,
            marks,
            epoch,
            end,
        }
    }

    /// The same without the mark: the caller was not told that it stands, and the watchdog's thread gives back without one.
    pub(super) fn without_a_mark(self) -> Self {
        Self {
            marks: false,
            ..self
        }
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    fn call(&self) -> Call {
        let finishing = self.marks.then(|| self.hold.finishing()).flatten();
        finishing.unwrap_or_else(|| self.hold.giving_back())
    }
}

impl GivenBack {
    pub(super) fn remember(&self, release: Release, now: Instant) {
        let end = release.end.min(now + LONGEST);
        let mut releases = self.releases.lock();
        while releases.front().is_some_and(|first| first.end <= now) || releases.len() >= MOST {
            releases.pop_front();
        }
        releases.push_back(Release { end, ..release });
    }

    /// What has to be given back on the server that is the master now, once for each server.
    pub(super) fn again(&self, epoch: u64, now: Instant) -> Vec<Call> {
        let mut releases = self.releases.lock();
        releases.retain(|release| release.end > now);
        let of_before = releases.iter_mut().filter(|release| release.epoch != epoch);
        of_before
            .map(|release| {
                release.epoch = epoch;
                release.call()
            })
            .collect()
    }

    /// Whether somebody has to find out when another server becomes the master.
    pub(super) fn is_relied_on(&self, now: Instant) -> bool {
        self.releases.lock().iter().any(|release| release.end > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{recipes::hold::Kind, token::Token};

    fn hold(name: &str) -> Arc<Holding> {
        Arc::new(Holding::named(Kind::Mutex, name, &Token::random()).unwrap())
    }

    #[test]
    fn each_is_repeated_once_for_each_server_until_its_lease_ends() {
        let (releases, now) = (GivenBack::default(), Instant::now());
        let second = Duration::from_secs(1);
        releases.remember(Release::new(&hold("short"), false, 1, now + second), now);
        releases.remember(Release::new(&hold("long"), false, 1, now + 3 * second), now);
        assert!(releases.is_relied_on(now));
        assert_eq!(releases.again(1, now).len(), 0);
        assert_eq!(releases.again(2, now).len(), 2);
        assert_eq!(releases.again(2, now).len(), 0);
        let later = releases.again(3, now + 2 * second);
        assert_eq!(
            later.iter().map(Call::key).collect::<Vec<_>>(),
            ["lock:long"]
        );
        assert!(!releases.is_relied_on(now + 4 * second));
    }

    #[test]
    fn they_are_kept_for_a_minute_and_the_last_few_thousand_of_them() {
        let (releases, now) = (GivenBack::default(), Instant::now());
        let end = now + 100 * LONGEST;
        releases.remember(Release::new(&hold("first"), false, 1, end), now);
        let hold = hold("a");
        for _ in 0..MOST {
            releases.remember(Release::new(&hold, false, 1, end), now);
        }
        let again = releases.again(2, now);
        assert_eq!(again.len(), MOST);
        assert!(again.iter().all(|call| call.key() == "lock:a"));
        assert!(!releases.is_relied_on(now + LONGEST));
    }
}
