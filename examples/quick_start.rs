//! Runs a job under a lock that renews itself, so that the job never runs twice at once.
//!
//! `cargo run --example quick_start [redis://…]`
#![allow(clippy::print_stdout, reason = "a command-line program")]

mod at_hand;

use std::time::Duration;

use leasehold::Locks;

fn main() -> anyhow::Result<()> {
    let (url, _server) = at_hand::server()?;

    let locks = Locks::connect(&url)?;
    let lease = locks
        .lock("report:daily")
        .acquire(Duration::from_secs(30))?;
    for chapter in 1..=3 {
        lease.check()?; // fails if the lock was lost: stop, someone else may hold it
        println!("writing chapter {chapter}; no one else can, however long it takes");
    }
    lease.release()?;
    println!("done; the lock is free");
    Ok(())
}
