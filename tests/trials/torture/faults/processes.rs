//! Faults of processes: killed, halted, forked.

use std::{thread, time::Duration};

use leasehold::redis::{Commands, Connection};
use nix::sys::signal::Signal;

use super::{AtClients, Hit, Kind, Made, Make, SEMAPHORES, Target};
use crate::{checks::Checker, role::Part};

pub(super) const KINDS: &[Kind] = &[
    of("kill-holder", Make::AtClients(kill_holder)),
    of("kill-waiter", Make::AtClients(kill_waiter)),
    of("stop-holder", Make::AtClients(stop_holders)),
    of("stop-holder-briefly", Make::AtClients(stop_holder_briefly)),
    of("stop-waiter", Make::AtClients(stop_waiter)),
    of("stop-all", Make::AtClients(stop_all)),
    of("fork", Make::ByWorkers),
    of("pool-of-one", Make::ByWorkers),
    of("client-clock-fast", Make::ByClock(250_000)),
    of("client-clock-slow", Make::ByClock(-40_000)),
    Kind {
        announces: &[
            Checker::Exclusion,
            Checker::Fencing,
            Checker::ServerLog,
            Checker::Deadline,
        ],
        ..of("client-clock-too-slow", Make::ByClock(-250_000))
    },
];

/// None of these excuses a violation: a dead or halted holder loses its lock within its lease.
const fn of(name: &'static str, make: Make) -> Kind {
    Kind {
        name,
        announces: &[],
        disturbs: 0,
        fails_over: false,
        make,
    }
}

fn kill_holder(at: &mut AtClients<'_>) -> Made {
    let Some(holder) = holders(at)?.pop() else {
        return Ok(None);
    };
    Part::signal(holder.pid, Signal::SIGKILL);
    Ok(hit(&[holder]))
}

fn kill_waiter(at: &mut AtClients<'_>) -> Made {
    let Some(waiter) = somebody_else(at)? else {
        return Ok(None);
    };
    Part::signal(waiter.pid, Signal::SIGKILL);
    Ok(hit(&[waiter]))
}

/// Halts all workers that hold a lock, for longer than the lease.
fn stop_holders(at: &mut AtClients<'_>) -> Made {
    let mut holders = holders(at)?;
    // At least one worker must still want the locks meanwhile.
    holders.truncate(at.targets().len().saturating_sub(1).max(1));
    let millis = at.random.u64(450..1_000);
    Ok(halt(&holders, millis))
}

fn stop_holder_briefly(at: &mut AtClients<'_>) -> Made {
    let holders: Vec<_> = holders(at)?.into_iter().take(1).collect();
    let millis = at.random.u64(20..250);
    Ok(halt(&holders, millis))
}

fn stop_waiter(at: &mut AtClients<'_>) -> Made {
    let waiter: Vec<_> = somebody_else(at)?.into_iter().collect();
    let millis = at.random.u64(100..900);
    Ok(halt(&waiter, millis))
}

#[allow(clippy::unnecessary_wraps, reason = "the signature of all kinds")]
fn stop_all(at: &mut AtClients<'_>) -> Made {
    let all = at.targets();
    let millis = at.random.u64(100..900);
    Ok(halt(&all, millis))
}

fn halt(targets: &[Target], millis: u64) -> Option<Hit> {
    for target in targets {
        Part::signal(target.pid, Signal::SIGSTOP);
    }
    thread::sleep(Duration::from_millis(millis));
    for target in targets {
        Part::signal(target.pid, Signal::SIGCONT);
    }
    hit(targets)
}

fn hit(targets: &[Target]) -> Option<Hit> {
    let workers = targets.iter().map(|target| target.worker).collect();
    (!targets.is_empty()).then(|| Hit::workers(workers))
}

/// Returns the workers that hold a lock now, in random order.
fn holders(at: &mut AtClients<'_>) -> anyhow::Result<Vec<Target>> {
    let mut conns = at.operators()?;
    let mut found: Vec<Target> = Vec::new();
    for lock in at.locks {
        for target in holders_at_any(&mut conns, lock, &at.targets())? {
            if found.iter().all(|other| other.worker != target.worker) {
                found.push(target);
            }
        }
    }
    at.random.shuffle(&mut found);
    Ok(found)
}

/// Asks several servers: one has the lock, and the others may refuse to answer.
fn holders_at_any(
    conns: &mut [Connection],
    lock: &str,
    targets: &[Target],
) -> anyhow::Result<Vec<Target>> {
    if let [conn] = conns {
        return holders_at(conn, lock, targets);
    }
    let each = conns.iter_mut();
    let found = each.filter_map(|conn| holders_at(conn, lock, targets).ok());
    Ok(found.flatten().collect())
}

fn holders_at(
    conn: &mut Connection,
    lock: &str,
    targets: &[Target],
) -> anyhow::Result<Vec<Target>> {
    if !conn.exists(format!("lock:{lock}"))? {
        return Ok(Vec::new());
    }
    let companion = format!("{{lock:{lock}}}:lease");
    let owners: Vec<String> = if SEMAPHORES.contains(&lock) {
        let fields: Vec<(String, String)> = conn.hgetall(companion)?;
        let permits = fields
            .into_iter()
            .filter(|(name, _)| name.starts_with("p:"));
        permits.map(|(_, permit)| permit).collect()
    } else {
        let owner: Option<String> = conn.hget(companion, "owner")?;
        owner.into_iter().collect()
    };
    let workers = owners.iter().filter_map(|owner| worker_in(owner, targets));
    Ok(workers.collect())
}

/// Returns the worker whose process an owner's text names.
fn worker_in(owner: &str, targets: &[Target]) -> Option<Target> {
    let mut numbers = owner.split(|sign: char| !sign.is_ascii_digit());
    numbers.find_map(|number| {
        let pid = number.parse::<i32>().ok()?;
        let mut of_workers = targets.iter();
        of_workers
            .find(|target| target.pid.as_raw() == pid)
            .copied()
    })
}

/// Returns a worker that does not hold the lock of the target.
fn somebody_else(at: &mut AtClients<'_>) -> anyhow::Result<Option<Target>> {
    let holds: Vec<u32> = holders(at)?.iter().map(|target| target.worker).collect();
    let mut others = at.targets();
    at.random.shuffle(&mut others);
    let waits = others.iter().find(|other| !holds.contains(&other.worker));
    Ok(waits.or(others.first()).copied())
}
