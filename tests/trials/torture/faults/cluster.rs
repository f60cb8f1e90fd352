//! Faults of a shard of a cluster, and of its slots.

use anyhow::Context;

use super::{
    Hit, Kind, Made,
    several::{
        ALL_LOCKS, AtSeveral, WHAT_IT_HAS_NOT_GOT as LOST, of_cluster as of, told, wait_for_a_hold,
    },
};
use crate::common::{Cluster, Resharding, cluster::partner};

type At<'a> = AtSeveral<'a, Cluster>;

pub(super) const KINDS: &[Kind] = &[
    of("shard-kill", LOST, 1_500, |at| kill(at, false)),
    of("shard-write-lost", LOST, 1_500, |at| kill(at, true)),
    // A planned failover loses nothing.
    of("shard-replaced", &[], 1_500, replace),
    of("shard-stop", LOST, 1_500, stop),
    of("shard-stop-briefly", &[], 1_500, |at| {
        let master = some_master(at)?;
        at.halt(master, 50, 400)?;
        Ok(Some(Hit::all()))
    }),
    of("shard-cut-off", LOST, 1_500, cut_off),
    of("shard-replica-kill", &[], 1_500, kill_replica),
    of("slots-move", &[], 1_500, |at| move_slot(at, 0)),
    of("slot-left-open", &[], 1_500, |at| move_slot(at, 700)),
];

fn master_of(at: &At<'_>, lock: &str) -> anyhow::Result<usize> {
    at.servers.master_of(&format!("lock:{lock}"))
}

fn some_master(at: &mut At<'_>) -> anyhow::Result<usize> {
    let lock = at.some_lock();
    master_of(at, lock)
}

fn locks_of(at: &At<'_>, master: usize) -> Vec<&'static str> {
    let mut locks = ALL_LOCKS.to_vec();
    // The list may contain a lock whose master is unknown.
    locks.retain(|lock| master_of(at, lock).is_ok_and(|found| found == master));
    locks
}

/// Kills the master of a shard. `cut_first`: without its last writes on the replica.
fn kill(at: &mut At<'_>, cut_first: bool) -> Made {
    let lock = if cut_first {
        at.lock_with_long_leases()
    } else {
        at.some_lock()
    };
    let before = master_of(at, lock)?;
    let locks = locks_of(at, before);
    at.replaces();
    if cut_first {
        at.servers.gates[before].shut_for_replicas();
        wait_for_a_hold(&at.servers.nodes[before], lock)?;
    }
    at.servers.nodes[before].kill()?;
    at.servers.gates[before].open();
    at.servers.wait_until_master(partner(before))?;
    let until = told();
    at.servers.revive(before)?;
    Ok(Some(Hit::shard(locks).broke_until(until)))
}

fn replace(at: &mut At<'_>) -> Made {
    let before = some_master(at)?;
    at.replaces();
    at.servers.fail_over(before)?;
    at.servers.wait_until_whole()?;
    Ok(Some(Hit::all()))
}

/// Freezes the master until it was replaced, then resumes it.
fn stop(at: &mut At<'_>) -> Made {
    let before = some_master(at)?;
    let locks = locks_of(at, before);
    at.replaces();
    at.servers.nodes[before].freeze()?;
    let promoted = at.servers.wait_until_master(partner(before));
    let until = told();
    at.pause(1, 1_000);
    at.servers.nodes[before].thaw()?;
    promoted?;
    at.servers.wait_until_whole()?;
    Ok(Some(Hit::shard(locks).broke_until(until)))
}

/// Cuts the master off from the other nodes, but not from clients.
fn cut_off(at: &mut At<'_>) -> Made {
    let before = some_master(at)?;
    let locks = locks_of(at, before);
    at.replaces();
    at.servers.cut_off(before);
    let promoted = at.servers.wait_until_master(partner(before));
    let until = told();
    at.pause(200, 1_000);
    at.servers.open_gates();
    promoted?;
    at.servers.wait_until_whole()?;
    Ok(Some(Hit::shard(locks).broke_until(until)))
}

fn kill_replica(at: &mut At<'_>) -> Made {
    let replica = partner(some_master(at)?);
    at.servers.nodes[replica].kill()?;
    at.pause(200, 800);
    at.servers.revive(replica)?;
    Ok(Some(Hit::all()))
}

/// Moves a lock's slot to another shard. The slot is open between the two for up to `open`
/// milliseconds.
fn move_slot(at: &mut At<'_>, open: u64) -> Made {
    let lock = at.some_lock();
    let from = master_of(at, lock)?;
    let masters: Vec<_> = (0..at.servers.nodes.len())
        .filter(|node| *node != from && at.servers.nodes[*node].is_master())
        .collect();
    let to = *at.random.choice(&masters).context("no other master")?;
    let slot = at.servers.slot_of(&format!("lock:{lock}"))?;
    let millis = at.random.u64(..=open);
    let mut tries = 0;
    loop {
        let moved = || -> anyhow::Result<()> {
            let mut moving = Resharding::new(at.servers, from, to)?;
            moving.open(&[slot])?;
            std::thread::sleep(std::time::Duration::from_millis(millis));
            moving.move_keys(slot)?;
            moving.close(&[slot])
        }();
        tries += 1;
        if moved.is_ok() || tries == 5 {
            return moved.map(|()| Some(Hit::all()));
        }
    }
}
