//! Moves money from one wallet to another, only while the lock on the order is held.
//!
//! `cargo run --example wallet [redis://…]`
//!
//! Give wallet 7 some money first: `redis-cli set wallet:7 20`. On a cluster, the lock and both
//! wallets need the same hash tag: `{shop}:order:4711`, `{shop}:wallet:7`.
#![allow(clippy::print_stdout, reason = "a command-line program")]

mod at_hand;

use std::time::Duration;

use leasehold::{Locks, redis::Commands};

fn main() -> anyhow::Result<()> {
    let (url, _server) = at_hand::server()?;

    let locks = Locks::connect(&url)?;
    let lease = locks.lock("order:4711").acquire(Duration::from_secs(30))?;
    let paid = lease.transaction(&["wallet:7"], |conn, pipe| {
        let funds: Option<i64> = conn.get("wallet:7")?;
        if funds.unwrap_or(0) < 5 {
            return Ok(false); // nothing is written
        }
        pipe.decr("wallet:7", 5).incr("wallet:8", 5);
        Ok(true) // now both writes happen, or neither
    })?;
    lease.release()?;
    println!("paid: {paid}");
    Ok(())
}
