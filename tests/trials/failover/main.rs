//! Shows a failover. Starts a master, replicas and three sentinels, or a Redis Cluster of six
//! nodes, lets a few threads compete for one lock, and kills or replaces the master. Draws which
//! thread held the lock when, which locks were lost, and the longest time without a holder. Stops
//! all servers at the end.
//!
//! ```text
//! cargo run --package trials --bin failover -- crash
//! cargo run --package trials --bin failover -- planned
//! cargo run --package trials --bin failover -- freeze --replicas 1 --servers 3
//! cargo run --package trials --bin failover -- crash --on cluster
//! ```

#![allow(clippy::print_stdout, reason = "a command-line program")]

#[path = "../../common/mod.rs"]
#[allow(clippy::unwrap_used, reason = "the tests' helpers fail by panicking")]
mod common;

mod picture;
mod servers;

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use clap::Parser;
use leasehold::{Error, Locks, Options};

use crate::{
    picture::{Ended, Hold, Picture},
    servers::{Servers, Topology, What},
};

/// The name of the lock.
const NAME: &str = "job";
/// The longest wait of one attempt to acquire the lock.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Parser)]
#[command(about = "Draws what a failover does to a lock")]
struct Arguments {
    /// The failure of the master.
    #[arg(value_enum)]
    what: What,
    /// The topology of the servers.
    #[arg(long, value_enum, default_value = "sentinels")]
    on: Topology,
    /// Replicas that must confirm a lock.
    #[arg(long, default_value_t = 0)]
    replicas: u32,
    /// Servers in a group with sentinels, including the master.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(2..=5))]
    servers: u8,
    /// Seconds to continue after the failover.
    #[arg(long, default_value_t = 6.0)]
    seconds: f64,
    /// Threads that compete for the lock. Each has its own connections, as a process would.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=20))]
    holders: u8,
    /// The lease, in milliseconds.
    #[arg(long, default_value_t = 1_500)]
    lease_ms: u64,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    println!("starting the servers ...");
    let mut group = Servers::start(arguments.on, arguments.servers)?;
    let options = Options::new()
        .lease(Duration::from_millis(arguments.lease_ms))
        .replicas(arguments.replicas, Duration::from_millis(100));
    let (holds, stop) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    let url = group.url();
    let mut picture = Picture::begin(arguments.holders.into());
    println!("{} threads compete for a lock at {url}", arguments.holders);
    thread::scope(|scope| -> anyhow::Result<()> {
        for holder in 0..arguments.holders.into() {
            let (url, options, holds, stop) = (&url, &options, &holds, &stop);
            scope.spawn(move || work(holder, url, options, holds, stop));
        }
        thread::sleep(Duration::from_millis(1_500));
        let key = format!("lock:{NAME}");
        let done = group.fail_over(arguments.what, &key, &mut picture);
        thread::sleep(Duration::from_secs_f64(arguments.seconds));
        stop.store(true, Ordering::SeqCst);
        done
    })?;
    let holds = holds.into_inner().unwrap_or_else(PoisonError::into_inner);
    print!("{}", picture.drawn(&holds, Instant::now()));
    Ok(())
}

/// Acquires the lock repeatedly, and works for a moment under it.
fn work(holder: usize, url: &str, options: &Options, holds: &Mutex<Vec<Hold>>, stop: &AtomicBool) {
    let Ok(locks) = Locks::connect(url) else {
        return;
    };
    let lock = locks.lock(NAME).with(options.clone());
    while !stop.load(Ordering::SeqCst) {
        let Ok(lease) = lock.acquire(PATIENCE) else {
            continue;
        };
        let from = Instant::now();
        let mut until = from;
        while lease.is_held() && from.elapsed() < Duration::from_millis(150) {
            until = Instant::now();
            thread::sleep(Duration::from_millis(1));
        }
        let ended = match lease.release() {
            Ok(()) => Ended::GivenBack,
            Err(Error::Lost { .. }) => Ended::Lost,
            Err(_) => Ended::Unknown,
        };
        let hold = Hold {
            holder,
            from,
            until,
            ended,
        };
        holds
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(hold);
    }
}
