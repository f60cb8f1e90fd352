//! Compares the speed with the same work written by hand, in one run: `cargo run --release
//! --package trials --bin benchmarks`.
#![allow(clippy::print_stdout, reason = "a command-line program")]

mod by_hand;
mod chart;
mod clusters;
#[path = "../../common/mod.rs"]
#[allow(clippy::unwrap_used, reason = "the tests' helpers fail by panicking")]
mod common;
mod crowds;
#[allow(dead_code, reason = "shared with examples that draw other charts")]
#[path = "../../../examples/shared/drawing.rs"]
mod drawing;
mod guards;
mod measure;
mod mutex;
mod pairs;
mod processes;
mod purchases;
mod semaphores;
mod wake_ups;
mod watchdog;
mod worker;

use std::{path::PathBuf, time::Duration};

use clap::Parser;
use leasehold::{acquire_lock_with_timeout, release_lock};
use measure::{Comparison, Effort, compare};
use purchases::Market;
use redis::Connection;

/// Measures the figures of docs/benchmarks.md.
#[derive(Parser)]
struct Options {
    /// The rounds of each comparison; the median is printed
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// The milliseconds of each of the two turns of a round
    #[arg(long, default_value_t = 300)]
    turn_ms: u64,
    /// The leases of 10 s that the watchdog keeps
    #[arg(long, default_value_t = 10_000)]
    leases: u32,
    /// The thirds of a lease for which it keeps them, twice
    #[arg(long, default_value_t = 6)]
    thirds: u32,
    /// A build of an earlier version of this program, whose rounds of `pairs` and `processes`
    /// alternate with ours
    #[arg(long)]
    before: Option<PathBuf>,
    /// The SVG file for the chart of `pairs`
    #[arg(long)]
    chart: Option<PathBuf>,
    /// Run only this group
    #[arg(long, value_parser = GROUPS)]
    only: Option<String>,
}

impl Options {
    fn want(&self, name: &str) -> bool {
        self.only.as_deref().is_none_or(|only| only == name)
    }
}

const GROUPS: [&str; 12] = [
    "locks",
    "purchases",
    "mutex",
    "guards",
    "cluster",
    "wake-ups",
    "pairs",
    "crowd",
    "turns",
    "processes",
    "semaphore",
    "watchdog",
];
const LEASE: Duration = Duration::from_secs(10);

fn main() -> anyhow::Result<()> {
    if processes::works()? || pairs::works()? {
        return Ok(());
    }
    let options = Options::parse();
    let effort = Effort {
        rounds: options.rounds,
        turn: Duration::from_millis(options.turn_ms),
    };
    let server = common::Server::start()?;
    let mut connections = (0..8)
        .map(|_| server.connection())
        .collect::<anyhow::Result<Vec<_>>>()?;

    if GROUPS[..5].iter().any(|name| options.want(name)) {
        println!("{:<44} {:>9} {:>9} {:>7}", "", "ours/s", "hand/s", "ratio");
    }
    if options.want("locks") {
        for threads in [1, 8] {
            let compared = compare(
                &mut connections[..threads],
                effort,
                &lock_and_unlock,
                &lock_and_unlock_by_hand,
            )?;
            show(
                &format!("acquire + release, {threads} thread(s)"),
                &compared,
            );
        }
    }
    if options.want("purchases") {
        let market = Market::stocked(&mut connections[0])?;
        let compared = market.beside_seven_round_trips(&mut connections[..1], effort)?;
        show("purchase under an item lock / 7 round trips", &compared);
        match market.beside_python(&server, &mut connections[0], effort)? {
            Some(compared) => show("the same / a program in Python", &compared),
            None => println!("no Python with redis-py: not compared with it"),
        }
    }
    if options.want("mutex") {
        mutex::mutex(&mut connections[..1], effort)?;
    }
    if options.want("guards") {
        guards::free(&server, &mut connections, effort)?;
    }
    if options.want("cluster") {
        clusters::free(&server, &mut connections, effort)?;
    }
    if options.want("wake-ups") {
        wake_ups::wake_ups(&server, options.rounds)?;
    }
    if options.want("pairs") {
        let (before, chart) = (options.before.as_deref(), options.chart.as_deref());
        pairs::pairs(&server, options.rounds, effort.turn, before, chart)?;
    }
    if options.want("crowd") {
        crowds::crowds(&server, effort.turn * 10)?;
    }
    if options.want("turns") {
        crowds::hand_overs(&server, options.rounds, effort.turn * 4)?;
    }
    if options.want("processes") {
        let before = options.before.as_deref();
        processes::processes(&server, options.rounds, effort.turn * 10, before)?;
    }
    if options.want("semaphore") {
        semaphores::semaphores(&server, options.rounds, effort.turn * 4)?;
    }
    if options.want("watchdog") {
        watchdog::watchdog(&server, options.leases, options.thirds)?;
    }
    Ok(())
}

fn show(what: &str, compared: &Comparison) {
    let Comparison {
        ours_per_second,
        reference_per_second,
        ratio,
    } = compared;
    println!("{what:<44} {ours_per_second:>9.0} {reference_per_second:>9.0} {ratio:>7.2}");
}

fn lock_and_unlock(conn: &mut Connection, thread: usize) -> anyhow::Result<()> {
    let name = format!("benchmark-{thread}");
    let token = acquire_lock_with_timeout(conn, &name, Duration::ZERO, LEASE)?;
    let token = token.ok_or_else(|| anyhow::anyhow!("the lock is held"))?;
    anyhow::ensure!(release_lock(conn, &name, &token)?, "the lock is lost");
    Ok(())
}

fn lock_and_unlock_by_hand(conn: &mut Connection, thread: usize) -> anyhow::Result<()> {
    by_hand::lock_and_unlock(conn, &format!("lock:benchmark-{thread}"))
}
