//! The shortest use of the book's functions: a job that must not run twice at once.
//!
//! `cargo run --example book_lock [redis://…]`
#![allow(clippy::print_stdout, reason = "a command-line program")]

mod at_hand;

use std::time::Duration;

use leasehold::{Pool, acquire_lock_with_timeout, release_lock};

fn main() -> anyhow::Result<()> {
    let (url, _server) = at_hand::server()?;

    let pool = Pool::connect(&url)?;
    let mut conn = pool.get()?;
    let (wait, lease) = (Duration::from_secs(90), Duration::from_mins(1));
    let Some(token) = acquire_lock_with_timeout(&mut conn, "report:daily", wait, lease)? else {
        anyhow::bail!("another process is writing the report");
    };
    println!("writing the report; no one else can for the next {lease:?}");
    if !release_lock(&mut conn, "report:daily", &token)? {
        anyhow::bail!("the work took longer than the lease: another process may have started");
    }
    println!("done; the lock is free");
    Ok(())
}
