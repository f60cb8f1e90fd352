//! Faults of a master with sentinels, of its replicas, and of the sentinels.

use std::{thread, time::Duration};

use super::{
    Hit, Kind, Made,
    several::{AtSeveral, WHAT_IT_HAS_NOT_GOT as LOST, of_group as of, told, wait_for_a_hold},
};
use crate::{clock::Nanos, common::Sentinels};

type At<'a> = AtSeveral<'a, Sentinels>;

pub(super) const KINDS: &[Kind] = &[
    of("master-kill", LOST, 1_500, |at| kill(at, false)),
    of("master-write-lost", LOST, 1_500, |at| kill(at, true)),
    of("master-replaced", LOST, 1_500, replace),
    of("master-stop", LOST, 1_500, stop),
    of("master-stop-briefly", &[], 1_500, |at| {
        let master = at.servers.master()?;
        at.halt(master, 50, 400)?;
        Ok(Some(Hit::all()))
    }),
    of("sentinel-stop", &[], 0, |at| stop_sentinels(at, 1)),
    of("sentinels-stop", &[], 1_500, |at| {
        stop_sentinels(at, usize::MAX)
    }),
    of("replica-kill", &[], 1_500, kill_replica),
    of("replication-cut", &[], 1_500, cut_replication),
];

/// Kills the master. `cut_first`: without its last writes on the replicas.
fn kill(at: &mut At<'_>, cut_first: bool) -> Made {
    let before = at.servers.master()?;
    at.replaces();
    if cut_first {
        at.servers.gates[before].shut_for_replicas();
        let lock = at.lock_with_long_leases();
        wait_for_a_hold(&at.servers.servers[before], lock)?;
    }
    at.servers.servers[before].kill()?;
    at.servers.gates[before].open();
    let next = promoted(at, before)?;
    at.servers.revive()?;
    Ok(Some(Hit::all().broke_until(next.until(at)?)))
}

/// Makes a planned failover, of which the old master does not know.
fn replace(at: &mut At<'_>) -> Made {
    let before = at.servers.master()?;
    at.replaces();
    at.servers.ask_for_failover()?;
    let next = promoted(at, before)?;
    at.pause(2_200, 3_000);
    at.servers.revive()?;
    Ok(Some(Hit::all().broke_until(next.until(at)?)))
}

/// Freezes the master until it was replaced, then resumes it.
fn stop(at: &mut At<'_>) -> Made {
    let before = at.servers.master()?;
    at.replaces();
    at.servers.servers[before].freeze()?;
    let next = promoted(at, before);
    at.pause(1, 1_000);
    at.servers.servers[before].thaw()?;
    let next = next?;
    at.pause(500, 2_000);
    at.servers.revive()?;
    Ok(Some(Hit::all().broke_until(next.until(at)?)))
}

/// The server that replaced a master.
struct Next {
    server: usize,
    /// The end of the time in which its promotion may break something.
    told: Nanos,
}

/// Clients learn of the promotion from the first sentinel that reports it.
fn promoted(at: &At<'_>, before: usize) -> anyhow::Result<Next> {
    let server = at.servers.promoted_after(before)?;
    at.servers.another_is_named(before)?;
    let told = told();
    Ok(Next { server, told })
}

impl Next {
    /// If the sentinels have replaced that server too, clients may have just learned of it.
    fn until(self, at: &At<'_>) -> anyhow::Result<Nanos> {
        let is_master = at.servers.master()? == self.server;
        Ok(if is_master { self.told } else { told() })
    }
}

/// Halts sentinels for less than the time that makes them doubt their clocks.
fn stop_sentinels(at: &mut At<'_>, most: usize) -> Made {
    let sentinels = &at.servers.watching;
    let count = most.min(sentinels.len());
    let first = at.random.usize(..sentinels.len());
    let chosen = || sentinels.iter().cycle().skip(first).take(count);
    for sentinel in chosen() {
        sentinel.freeze()?;
    }
    thread::sleep(Duration::from_millis(at.random.u64(200..1_300)));
    for sentinel in chosen() {
        sentinel.thaw()?;
    }
    Ok(Some(Hit::all()))
}

fn kill_replica(at: &mut At<'_>) -> Made {
    let master = at.servers.master()?;
    let replica = (master + 1) % at.servers.servers.len();
    at.servers.servers[replica].kill()?;
    at.pause(200, 800);
    at.servers.revive()?;
    Ok(Some(Hit::all()))
}

/// Stops replication for a while.
fn cut_replication(at: &mut At<'_>) -> Made {
    let master = at.servers.master()?;
    at.servers.gates[master].shut_for_replicas();
    at.pause(200, 1_000);
    at.servers.gates[master].open();
    at.servers.wait_until_whole()?;
    Ok(Some(Hit::all()))
}
