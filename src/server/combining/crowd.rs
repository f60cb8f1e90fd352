//! Whether a call goes alone, by a connection of its own, or in one write with others.
//!
//! To go together saves system calls and costs a switch of threads. That pays when many threads ask a server that is near.

use std::{
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use crate::time;

/// So many threads go alone, however near the server is.
const FEW: usize = 4;
/// For each time that a round trip takes so long, one thread more goes alone.
const NEAR: Duration = Duration::from_micros(50);
/// What a command takes that goes along with others, at most.
const EACH: Duration = Duration::from_micros(5);

/// A thread that lets others run and comes back later than this was not delayed by threads of ours alone.
const BUSY: Duration = Duration::from_millis(1);
/// So many calls go alone then.
const HASTE: u32 = 256;

/// How many ask, and how far the server is.
#[derive(Debug, Default)]
pub(in crate::server) struct Crowd {
    /// How many threads ask at this moment.
    inside: AtomicUsize,
    /// How many were in the last write.
    together: AtomicUsize,
    /// The shortest of the last round trips, in nanoseconds.
    trip: AtomicU64,
    /// How many calls still go alone, since the machine is busy.
    haste: AtomicU32,
    /// Nobody goes alone.
    always: AtomicBool,
}

/// A thread that asks, until it is dropped.
#[derive(Debug)]
pub(in crate::server) struct Inside<'a> {
    crowd: &'a Crowd,
    /// How many were before it.
    others: usize,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.crowd.inside.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Crowd {
    /// One more that asks.
    pub(in crate::server) fn enter(&self) -> Inside<'_> {
        Inside {
            crowd: self,
            others: self.inside.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// From now on nobody goes alone.
    pub(in crate::server) fn go_together_always(&self) {
        self.always.store(true, Ordering::Relaxed);
    }

    pub(in crate::server) fn always_goes_together(&self) -> bool {
        self.always.load(Ordering::Relaxed)
    }

    /// A round trip with so many commands has taken so long.
    pub(in crate::server) fn took(&self, trip: Duration, commands: usize) {
        let others = u32::try_from(commands).unwrap_or(u32::MAX);
        let trip = trip.saturating_sub(EACH.saturating_mul(others));
        let trip = u64::try_from(trip.as_nanos()).unwrap_or(u64::MAX).max(1);
        let before = self.trip.load(Ordering::Relaxed);
        // Another server that is farther away is noticed in some hundred round trips.
        let a_little_more = before.saturating_add(before / 256 + 100);
        let shortest = if before == 0 {
            trip
        } else {
            trip.min(a_little_more)
        };
        self.trip.store(shortest, Ordering::Relaxed);
    }

    pub(in crate::server) fn went_together(&self, count: usize) {
        self.together.store(count, Ordering::Relaxed);
    }

    /// Whether the last write had more than one command, so that it is worth to let others come.
    pub(in crate::server) fn is_dense(&self) -> bool {
        self.together.load(Ordering::Relaxed) > 1
    }

    /// Lets other threads run before this one goes on. False: not now, since it might come back late. Where other programs want
    /// all cores, a thread that steps aside comes back late, and a late leader delays all that wait for it: calls go alone then.
    pub(in crate::server) fn steps_aside(&self) -> bool {
        if self.haste.load(Ordering::Relaxed) > 0 {
            return false;
        }
        let before = time::now();
        thread::yield_now();
        if time::now().saturating_duration_since(before) > BUSY {
            self.haste.store(HASTE, Ordering::Relaxed);
        }
        true
    }

    /// The shortest of the last round trips.
    pub(in crate::server) fn trip(&self) -> Duration {
        Duration::from_nanos(self.trip.load(Ordering::Relaxed))
    }
}

impl Inside<'_> {
    /// Whether this one goes alone, where a pool has so many connections.
    pub(in crate::server) fn goes_alone(&self, connections: usize) -> bool {
        if self.crowd.always_goes_together() {
            return false;
        }
        let haste = self.crowd.haste.load(Ordering::Relaxed);
        if haste > 0 {
            self.crowd.haste.store(haste - 1, Ordering::Relaxed);
            return self.others < connections;
        }
        let far = self.crowd.trip().as_nanos() / NEAR.as_nanos();
        let few = usize::try_from(far).unwrap_or(usize::MAX).max(FEW);
        self.others < few.min(connections)
    }
}
