//! The holds of reentrant locks that have ended, as far as one `Locks` knows.
//!
//! A failover may undo a release. The new master then has the remains of the hold, under the same
//! owner: if that owner entered them again, it would get the fencing token of the old hold, below
//! one that another owner got in between. Holds of one lock follow each other, so one number says
//! which have ended: all up to the last that was released, and all before one that was granted.

use std::{
    collections::HashMap,
    fmt,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::token::FencingToken;

/// Remains may end later than their lease, by the difference of two servers' clocks.
const SKEW: Duration = Duration::from_secs(1);
/// Beyond this number of locks, those whose remains end first are forgotten.
const MOST: usize = 10_000;

/// For each lock, by its key, the last hold that has ended. While it is locked, no other mutex is
/// locked and nothing waits.
#[derive(Default)]
pub(crate) struct EndedHolds(Mutex<HashMap<String, LastEnded>>);

struct LastEnded {
    fence: FencingToken,
    /// The time at which the remains of such a hold have ended too.
    until: Instant,
}

impl EndedHolds {
    /// Returns the greatest fencing token of a hold of this lock that has ended, or 0.
    pub(crate) fn last(&self, key: &str) -> FencingToken {
        let holds = self.0.lock();
        holds.get(key).map_or(FencingToken::new(0), |it| it.fence)
    }

    /// Notes that all holds up to this fencing token have ended, and that the lease of one of them
    /// ends at this time.
    pub(crate) fn note(&self, key: &str, fence: FencingToken, lease_end: Instant, now: Instant) {
        let until = lease_end + SKEW;
        let mut holds = self.0.lock();
        if let Some(known) = holds.get_mut(key) {
            known.fence = known.fence.max(fence);
            known.until = known.until.max(until);
            return;
        }
        if holds.len() >= MOST {
            forget_some(&mut holds, now);
        }
        holds.insert(key.to_owned(), LastEnded { fence, until });
    }
}

/// Forgets the locks that have no remains any more, and half of the others if that is not enough.
fn forget_some(holds: &mut HashMap<String, LastEnded>, now: Instant) {
    holds.retain(|_, it| it.until > now);
    if holds.len() > MOST / 2 {
        let mut ends: Vec<Instant> = holds.values().map(|it| it.until).collect();
        let (_, middle, _) = ends.select_nth_unstable(MOST / 4);
        let middle = *middle;
        holds.retain(|_, it| it.until > middle);
    }
}

impl fmt::Debug for EndedHolds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EndedHolds").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_keeps_the_greatest_number_and_a_bounded_number_of_locks() {
        let (ended, now) = (EndedHolds::default(), Instant::now());
        let fence = FencingToken::new;
        ended.note("a", fence(7), now + 2 * SKEW, now);
        ended.note("a", fence(5), now, now);
        assert_eq!((ended.last("a"), ended.last("b")), (fence(7), fence(0)));
        for number in 0..3 * MOST {
            let soon = u64::try_from(number).unwrap();
            let end = now + Duration::from_micros(soon);
            ended.note(&number.to_string(), fence(1), end, now);
            assert!(ended.0.lock().len() <= MOST);
        }
        assert_eq!(ended.last("a"), fence(7));
        assert_eq!(ended.last(&(3 * MOST - 1).to_string()), fence(1));
    }

    #[test]
    fn what_has_ended_is_forgotten_first() {
        let (ended, now) = (EndedHolds::default(), Instant::now());
        let fence = FencingToken::new(1);
        for number in 0..MOST {
            let end = if number == 0 { now + SKEW } else { now };
            ended.note(&number.to_string(), fence, end, now);
        }
        ended.note("new", fence, now, now + SKEW);
        assert_eq!(ended.0.lock().len(), 2);
        assert_eq!(ended.last("0"), fence);
    }
}
