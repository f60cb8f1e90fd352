//! A job that every host starts at night and only one of them runs.
//!
//! `cargo run --example once_a_night [redis://…]`
//!
//! On each host, by cron: `0 3 * * * once_a_night redis://locks.example/`
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line program"
)]

mod at_hand;

use std::time::Duration;

use leasehold::{Error, Lease, Locks, Once};

const HOUR: Duration = Duration::from_hours(1);

fn main() -> anyhow::Result<()> {
    let (url, _server) = at_hand::server()?;

    let locks = Locks::connect(&url)?;
    let lock = locks.lock("report:nightly");
    if let Err(error) = lock.last_run() {
        // `run_once` retries silently while the server is down.
        eprintln!("retrying for an hour: {:#}", anyhow::Error::new(error));
    }
    // The period counts from the end of the last run, so it is shorter than a day. The wait is
    // longer than the job and a lease together, so another host takes over if the first one fails.
    let (period, wait) = (20 * HOUR, HOUR);
    match lock.run_once(period, wait, write_report) {
        Err(Error::Contended { .. }) => println!("another host is still writing the report"),
        Ok(Once::AlreadyRun(run)) => println!("the report was written {:?} ago", run.ago()),
        ran => {
            let chapters = ran?.done()?.unwrap_or_default();
            println!("wrote {chapters} chapters");
        }
    }
    Ok(())
}

fn write_report(lease: &Lease) -> anyhow::Result<u32> {
    for chapter in 1..=3 {
        lease.check()?; // fails if the lock was lost: stop, someone else may hold it
        println!("writing chapter {chapter}");
    }
    Ok(3) // after an error or a crash, a waiting host runs the job
}
