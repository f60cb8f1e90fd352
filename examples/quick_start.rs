//! A job that must not run twice, under a lock that renews itself.
//!
//! `cargo run --example quick_start [redis://127.0.0.1/]`
#![allow(clippy::print_stdout, reason = "a program that talks")]

use std::time::Duration;

use leasehold::Locks;

fn main() -> anyhow::Result<()> {
    let url = std::env::args()
        .nth(1)
        .unwrap_or("redis://127.0.0.1/".into());

    let locks = Locks::connect(&url)?;
    let lease = locks.lock("report:daily").acquire(Duration::from_secs(5))?;
    for chapter in 1..=3 {
        lease.check()?; // an error if the lock was lost: stop, somebody else may have it
        println!("writing chapter {chapter}; nobody else can meanwhile, however long it takes");
    }
    lease.release()?;
    println!("done, the next one can");
    Ok(())
}
