//! Passing a lock on to the next thread of this process, without asking the server.

use std::{sync::Arc, time::Instant};

use super::{
    guard::{Grant, Lease},
    kept::Kept,
    options::Options,
    release::SharedHold,
    renewal::RenewalState,
    terms::Terms,
    turns::Turns,
};
use crate::FencingToken;

impl Lease {
    /// Hands the lock to the first of those who wait for it. False: it has to be released.
    ///
    /// The lock on the server stays as it is. This guard is of no use afterwards: it must not release or renew.
    pub(super) fn hand_over(&self) -> bool {
        let Some(turns) = self.turns() else {
            return false;
        };
        let key = self.hold.lock_name().key();
        (self.shared.queues).hand_over(key, |options| self.successor(turns, options))
    }

    /// The guard of the next turn, with an identity of its own, and when it ends unless it is renewed. `None`: not from this
    /// one.
    fn successor(&self, turns: Turns, options: &Options) -> Option<(Self, Instant)> {
        let lock = self.hold.lock_name();
        if lock.prefix() != &*options.prefix {
            // The same key by another name.
            return None;
        }
        if self.kept.state() != RenewalState::Held {
            // A renewal that was done, but not answered, has moved the end further than we know.
            return None;
        }
        let now = self.shared.clock.now();
        let end = self.kept.end()?;
        let cap = options
            .max_hold
            .and_then(|longest| now.checked_add(longest));
        let turns = turns.next(now, end, options.longest_at_first())?;
        let fence = self.fencing_token().map(FencingToken::next);
        let terms = Terms {
            lease: options.lease,
            cap,
            end: Some(cap.map_or(end, |cap| cap.min(end))),
            renews: options.renewal,
            look_at: None,
        };
        let hold = SharedHold::new(&self.hold, fence);
        let kept = Kept::new(hold, terms.end, cap, self.shared.clock);
        let kept: Arc<Kept> = Arc::new(kept.told(options.events.clone()));
        let id = (self.shared.keeper).succeed(self.id, Arc::clone(&kept), terms)?;
        let grant = Grant {
            fence,
            since: now,
            turns: Some(turns),
        };
        let lease = Self::new(&self.shared, &self.hold, options, grant, (id, kept));
        Some((lease, end))
    }
}
