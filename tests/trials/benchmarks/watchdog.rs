//! The cost of keeping ten thousand locks alive with one thread.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use leasehold::{Keep, Pool, Renewal, Token, Watchdog, recipes::Hold};

use crate::common::{Proxy, Server};

const LEASE: Duration = Duration::from_secs(10);
/// The kernel's unit of processor time, in seconds.
const TICK: f64 = 0.01;

/// Prints the round trips per third of a lease, the processor time per minute, and the memory per
/// lease.
pub(crate) fn watchdog(server: &Server, leases: u32, thirds: u32) -> anyhow::Result<()> {
    let holds = hold_all(server, leases)?;
    let proxy = Proxy::in_front_of(server)?;
    let counted = Watchdog::new(&Pool::connect(&proxy.url())?)?;
    let memory = resident_bytes()?;
    let renewals = keep_all(&counted, &holds)?;
    let memory = resident_bytes()?.saturating_sub(memory);
    thread::sleep(LEASE / 3);
    let ((), traffic) = proxy.traffic_of(|| thread::sleep(LEASE / 3 * thirds));
    all_held(&renewals)?;
    drop(renewals);
    drop(counted);

    let watchdog = Watchdog::new(&Pool::connect(&server.url())?)?;
    let renewals = keep_all(&watchdog, &holds)?;
    thread::sleep(LEASE / 3);
    let (cpu, started) = (cpu_seconds()?, Instant::now());
    thread::sleep(LEASE / 3 * thirds);
    let (cpu, took) = (cpu_seconds()? - cpu, started.elapsed());
    all_held(&renewals)?;

    let a_third = |count: usize| anyhow::Ok(f64::from(u32::try_from(count)?) / f64::from(thirds));
    println!("one watchdog, {leases} leases of {LEASE:?}");
    println!(
        "  renewals a third {:>10.0}",
        a_third(traffic.commands.len())?
    );
    println!(
        "  round trips a third {:>7.1}",
        a_third(traffic.round_trips)?
    );
    println!(
        "  CPU seconds a minute {:>6.2}",
        cpu * 60.0 / took.as_secs_f64()
    );
    println!("  bytes a lease {:>13}", memory / u64::from(leases));
    Ok(())
}

fn hold_all(server: &Server, leases: u32) -> anyhow::Result<Vec<Hold>> {
    let (mut set, mut holds) = (redis::pipe(), Vec::new());
    for number in 0..leases {
        let (name, token) = (format!("watched:{number}"), Token::random());
        set.cmd("SET")
            .arg(format!("lock:{name}"))
            .arg(token.to_string())
            .arg("PX")
            .arg(600_000);
        holds.push(Hold::mutex(&name, &token)?);
    }
    set.exec(&mut server.connection()?)?;
    Ok(holds)
}

fn keep_all(watchdog: &Watchdog, holds: &[Hold]) -> anyhow::Result<Vec<Renewal>> {
    let until = Instant::now() + LEASE;
    let keep = |hold| Ok(watchdog.keep_with(hold, Keep::new(LEASE).held_until(until))?);
    holds.iter().map(keep).collect()
}

fn all_held(renewals: &[Renewal]) -> anyhow::Result<()> {
    anyhow::ensure!(renewals.iter().all(Renewal::is_held), "a lock was lost");
    Ok(())
}

/// Returns the processor time of this process so far.
fn cpu_seconds() -> anyhow::Result<f64> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    // The name in parentheses may contain spaces; user and system time are fields 12 and 13 after
    // it.
    let (_, fields) = stat
        .rsplit_once(')')
        .context("cannot parse /proc/self/stat")?;
    let ticks: Vec<u32> = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    Ok(f64::from(ticks.iter().sum::<u32>()) * TICK)
}

fn resident_bytes() -> anyhow::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .context("no VmRSS in /proc/self/status")?;
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kilobytes * 1024)
}
