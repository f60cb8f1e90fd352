//! Shared by all faults of several servers: the effects of a failover, and the detection of one
//! that happens by itself.

use std::{thread, time::Duration};

use leasehold::redis::{Commands, pipe};

use super::{Hit, Kind, Log, Made, Make, Maker, OF_SETS, REPLICATED, SEMAPHORES, made::note};
use crate::{
    checks::Checker,
    clock::{Nanos, millis, now},
    common::{Cluster, Sentinels, Server},
    options::Only,
    stage,
};

/// All locks of the workers.
pub(super) const ALL_LOCKS: &[&str] = &[
    "m0", "m1", "h0", "r0", "w0", "d0", "p0", "o0", "c0", "s0", "l0", "f0", "x0", "t0{w}", "t1{w}",
    "n0", "n1",
];

/// Writes that the next master has not received are lost: a second holder, and lost data. Writes
/// that all replicas confirmed are safe.
pub(super) const WHAT_IT_HAS_NOT_GOT: &[Checker] = &[
    Checker::Exclusion,
    Checker::Fencing,
    Checker::ServerLog,
    Checker::ReEntry,
    Checker::Once,
    Checker::Sums,
];

/// The time after which the last client has learned of a promotion.
const TOLD: Nanos = millis(2_000);

/// A busy machine that delays a master can cause a failover.
pub(super) const BY_ITSELF: &Kind = &Kind {
    name: "replaced-by-itself",
    announces: WHAT_IT_HAS_NOT_GOT,
    disturbs: 5_000,
    fails_over: true,
    make: Make::ByWorkers,
};

/// The context of a fault of several servers.
pub(crate) struct AtSeveral<'a, S> {
    pub(super) servers: &'a mut S,
    pub(super) random: fastrand::Rng,
    only: Option<Only>,
    masters: Masters,
}

/// The servers that claimed to be master when last checked.
#[derive(Default)]
struct Masters {
    known: Vec<usize>,
    looked_at: Nanos,
    /// A fault is replacing a master.
    replaced: bool,
    /// The times at which masters changed without a fault.
    changed: Vec<(Nanos, Nanos)>,
}

/// A group of servers some of which are masters.
pub(super) trait Several {
    fn each(&self) -> &[Server];
}

impl Several for Sentinels {
    fn each(&self) -> &[Server] {
        &self.servers
    }
}

impl Several for Cluster {
    fn each(&self) -> &[Server] {
        &self.nodes
    }
}

#[allow(private_bounds, reason = "implemented for two known types")]
impl<'a, S: Several> AtSeveral<'a, S> {
    pub(crate) fn new(servers: &'a mut S, only: Option<Only>, random: fastrand::Rng) -> Self {
        let mut at = Self {
            servers,
            random,
            only,
            masters: Masters::default(),
        };
        at.masters.replaced = true;
        at.look();
        at
    }

    /// Notes that a fault is about to replace a master.
    pub(super) fn replaces(&mut self) {
        self.look();
        self.masters.replaced = true;
    }

    /// Checks which servers are masters, and notes an unexpected change.
    fn look(&mut self) {
        let servers = self.servers.each().iter().enumerate();
        let masters: Vec<_> = servers
            .filter_map(|(at, server)| server.is_master().then_some(at))
            .collect();
        let seen = &mut self.masters;
        let is_new = masters.iter().any(|master| !seen.known.contains(master));
        if is_new && !seen.replaced {
            seen.changed.push((seen.looked_at, now() + TOLD));
        }
        seen.known = masters;
        seen.looked_at = now();
        seen.replaced = false;
    }

    /// Picks a lock with some leases longer than a failover.
    pub(super) fn lock_with_long_leases(&mut self) -> &'static str {
        let [one, other] = match (self.only, SEMAPHORES) {
            (Some(Only::Permits(_)), [one, other]) => [*one, *other],
            (Some(Only::Sets), _) => [OF_SETS[0], OF_SETS[1]],
            _ => ["m0", REPLICATED],
        };
        if self.random.bool() { one } else { other }
    }

    pub(super) fn some_lock(&mut self) -> &'static str {
        let locks = match self.only {
            None => ALL_LOCKS,
            Some(Only::Permits(_)) => SEMAPHORES,
            Some(Only::Sets) => OF_SETS,
        };
        locks[self.random.usize(..locks.len())]
    }

    pub(super) fn pause(&mut self, least: u64, most: u64) {
        thread::sleep(Duration::from_millis(self.random.u64(least..most)));
    }

    /// Freezes a server for a while.
    pub(super) fn halt(&mut self, server: usize, least: u64, most: u64) -> anyhow::Result<()> {
        self.servers.each()[server].freeze()?;
        self.pause(least, most);
        self.servers.each()[server].thaw()
    }

    pub(super) fn note_what_came_by_itself(&mut self, log: &Log) {
        self.look();
        for (from, until) in self.masters.changed.drain(..) {
            note(
                BY_ITSELF,
                from,
                Ok(Some(Hit::all().broke_until(until))),
                log,
            );
        }
    }
}

/// Waits briefly until a surviving worker has acquired a lock on this server that it did not hold
/// before.
pub(super) fn wait_for_a_hold(server: &Server, lock: &str) -> anyhow::Result<()> {
    let (mut conn, key) = (stage::operator(&server.url())?, format!("lock:{lock}"));
    let mut holder = || -> anyhow::Result<(Option<String>, i64)> {
        if !SEMAPHORES.contains(&lock) {
            return Ok(pipe().get(&key).pttl(&key).query(&mut conn)?);
        }
        // The permit that ends last.
        let last: Vec<String> = conn.zrevrange(&key, 0, 0)?;
        Ok((last.into_iter().next(), conn.pttl(&key)?))
    };
    let (before, patience) = (holder()?.0, now() + millis(3_000));
    let mut last = None;
    while now() < patience {
        thread::sleep(Duration::from_millis(30));
        let (has_it, left) = holder()?;
        let stays = has_it.is_some() && has_it == last && left > 2_000;
        if stays && has_it != before {
            break;
        }
        last = has_it;
    }
    Ok(())
}

/// Returns the end of the time in which a promotion that has just happened may break something.
pub(super) fn told() -> Nanos {
    now() + TOLD
}

pub(super) const fn of_group(
    name: &'static str,
    announces: &'static [Checker],
    disturbs: u64,
    make: fn(&mut AtSeveral<'_, Sentinels>) -> Made,
) -> Kind {
    kind(name, announces, disturbs, Make::AtSentinels(make))
}

pub(super) const fn of_cluster(
    name: &'static str,
    announces: &'static [Checker],
    disturbs: u64,
    make: fn(&mut AtSeveral<'_, Cluster>) -> Made,
) -> Kind {
    kind(name, announces, disturbs, Make::AtCluster(make))
}

const fn kind(
    name: &'static str,
    announces: &'static [Checker],
    disturbs: u64,
    make: Make,
) -> Kind {
    Kind {
        name,
        announces,
        disturbs,
        fails_over: !announces.is_empty(),
        make,
    }
}

impl Maker for AtSeveral<'_, Sentinels> {
    fn random(&mut self) -> &mut fastrand::Rng {
        &mut self.random
    }

    fn make(&mut self, kind: &'static Kind) -> Made {
        match kind.make {
            Make::AtSentinels(make) => make(self),
            _ => Ok(None),
        }
    }

    fn after_each(&mut self, log: &Log) {
        self.note_what_came_by_itself(log);
    }
}

impl Maker for AtSeveral<'_, Cluster> {
    fn random(&mut self) -> &mut fastrand::Rng {
        &mut self.random
    }

    fn make(&mut self, kind: &'static Kind) -> Made {
        match kind.make {
            Make::AtCluster(make) => make(self),
            _ => Ok(None),
        }
    }

    fn after_each(&mut self, log: &Log) {
        self.note_what_came_by_itself(log);
    }
}
