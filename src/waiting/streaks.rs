//! Threads that take a lock again as soon as they have released it, while nobody of their process
//! waits: a plain value.
//!
//! Such a thread asks before others have heard of the release. It is always granted, so it never
//! learns that they wait. So it pauses now and then, for as long as a message takes. If others have
//! the lock then, it is refused, stands in the queue, and [`turns`](super::turns) has processes
//! take turns. If not, the pauses grow rare.

use std::{
    hash::{BuildHasher, RandomState},
    time::{Duration, Instant},
};

/// A thread that comes later than this after its release has given others their chance. A pause
/// takes as long.
const AT_ONCE: Duration = Duration::from_millis(1);
/// A streak has its first pause after so long, and then after twice as long each time,
const FIRST: Duration = Duration::from_millis(10);
/// up to this.
const LAST: Duration = Duration::from_millis(100);
/// Two locks of one place disturb each other, and pause less often.
const PLACES: usize = 64;

/// Of the locks that were released last, as many as have places.
#[derive(Debug)]
pub(super) struct Streaks {
    hashes: RandomState,
    places: [Option<Streak>; PLACES],
}

#[derive(Clone, Copy, Debug)]
struct Streak {
    lock: u64,
    released: Instant,
    /// When it began, or last paused.
    began: Instant,
    /// It pauses after so long.
    pauses_after: Duration,
}

impl Streaks {
    pub(super) fn new() -> Self {
        Self {
            hashes: RandomState::new(),
            places: [None; PLACES],
        }
    }

    /// A thread of this process has released the lock.
    pub(super) fn released(&mut self, key: &str, now: Instant) {
        let (lock, place) = self.place(key);
        match place {
            Some(streak) if streak.lock == lock => streak.released = now,
            place => {
                *place = Some(Streak {
                    lock,
                    released: now,
                    began: now,
                    pauses_after: FIRST,
                });
            }
        }
    }

    /// How long a thread that wants the lock, for which nobody waits, pauses first.
    pub(super) fn pause(&mut self, key: &str, now: Instant) -> Duration {
        let (lock, place) = self.place(key);
        let Some(streak) = place.as_mut().filter(|streak| streak.lock == lock) else {
            return Duration::ZERO;
        };
        if now.saturating_duration_since(streak.released) >= AT_ONCE {
            *place = None;
            return Duration::ZERO;
        }
        if now.saturating_duration_since(streak.began) < streak.pauses_after {
            return Duration::ZERO;
        }
        streak.began = now + AT_ONCE;
        // The pause must not end the streak.
        streak.released = now + AT_ONCE;
        streak.pauses_after = LAST.min(streak.pauses_after * 2);
        AT_ONCE
    }

    fn place(&mut self, key: &str) -> (u64, &mut Option<Streak>) {
        let lock = self.hashes.hash_one(key);
        let place = usize::try_from(lock % PLACES as u64).unwrap_or(0);
        (lock, &mut self.places[place])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "lock:a";
    const STEP: Duration = Duration::from_micros(100);

    /// When a thread that comes again at once pauses, in the time that it works.
    fn pauses(streaks: &mut Streaks, turns: u32) -> Vec<Duration> {
        let began = crate::time::now();
        let (mut now, mut pauses) = (began, Vec::new());
        for _ in 0..turns {
            let pause = streaks.pause(KEY, now);
            if !pause.is_zero() {
                pauses.push(now - began);
            }
            now += pause + STEP;
            streaks.released(KEY, now);
            now += STEP / 10;
        }
        pauses
    }

    #[test]
    fn one_that_comes_again_at_once_pauses_after_10_ms_and_ever_more_rarely_up_to_every_100() {
        let pauses = pauses(&mut Streaks::new(), 4_000);
        let millis: Vec<_> = pauses.iter().map(Duration::as_millis).collect();
        assert_eq!(millis[..5], [10, 31, 72, 153, 254]);
    }

    #[test]
    fn one_that_leaves_others_their_chance_never_pauses() {
        let mut streaks = Streaks::new();
        let mut now = crate::time::now();
        for _ in 0..1_000 {
            assert_eq!(streaks.pause(KEY, now), Duration::ZERO);
            now += STEP;
            streaks.released(KEY, now);
            now += AT_ONCE;
        }
    }
}
