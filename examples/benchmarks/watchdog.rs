//! One watchdog thread with very many leases: round trips, processor time, memory.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use leasehold::{
    Pool, Token, Watchdog,
    recipes::mutex::{self, End},
};

use crate::common::{Proxy, Server};

const LEASE: Duration = Duration::from_secs(10);
/// Linux counts processor time in hundredths of a second.
const TICKS_PER_SECOND: f64 = 100.0;
const PAGE_BYTES: f64 = 4096.0;

/// Keeps so many leases for so many thirds of a lease.
pub(crate) fn watchdog(server: &Server, leases: u32, thirds: u32) -> anyhow::Result<()> {
    let proxy = Proxy::in_front_of(server)?;
    let client = redis::Client::open(proxy.url())?;
    let mut direct = server.connection()?;
    let watchdog = Watchdog::start(&Pool::new(&client)?)?;

    let mut holds = Vec::new();
    for number in 0..leases {
        let (name, token) = (format!("benchmark-watchdog-{number}"), Token::random());
        mutex::try_acquire(&mut direct, &name, &token, End::After(LEASE * 6))?
            .context("the lock is held")?;
        holds.push(mutex::Hold::new(&name, &token)?);
    }
    let memory_before = resident_bytes()?;
    let renewals = holds
        .iter()
        .map(|hold| watchdog.keep(hold, LEASE))
        .collect::<leasehold::Result<Vec<_>>>()?;
    let memory = resident_bytes()? - memory_before;

    let (started, busy_before) = (Instant::now(), processor_seconds()?);
    let ((), traffic) = proxy.traffic_of(|| thread::sleep(LEASE * thirds / 3));
    let (took, busy) = (
        started.elapsed().as_secs_f64(),
        processor_seconds()? - busy_before,
    );
    anyhow::ensure!(
        renewals.iter().all(leasehold::Renewal::is_held),
        "a lease was lost"
    );

    let round_trips = f64::from(u32::try_from(traffic.round_trips)?);
    println!("one watchdog thread, {leases} leases of {LEASE:?}, {took:.0} s:");
    println!(
        "  round trips in a third of a lease   {:>8.1}",
        round_trips / f64::from(thirds)
    );
    println!(
        "  processor seconds a minute          {:>8.2}",
        busy / took * 60.0
    );
    println!(
        "  bytes of memory a lease             {:>8.0}",
        memory / f64::from(leases)
    );
    Ok(())
}

/// User and system time of this process: the proxy that counts is a part of it.
fn processor_seconds() -> anyhow::Result<f64> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let fields = stat.rsplit_once(')').context("not a stat file")?.1;
    let mut ticks = fields.split_whitespace().skip(11).map(str::parse::<f64>);
    match (ticks.next(), ticks.next()) {
        (Some(Ok(user)), Some(Ok(system))) => Ok((user + system) / TICKS_PER_SECOND),
        _ => anyhow::bail!("not a stat file"),
    }
}

fn resident_bytes() -> anyhow::Result<f64> {
    let statm = fs::read_to_string("/proc/self/statm")?;
    let pages = statm
        .split_whitespace()
        .nth(1)
        .context("not a statm file")?;
    Ok(pages.parse::<f64>()? * PAGE_BYTES)
}
