//! One of several processes leads. The others wait until it exits, dies or is paused.
//!
//! `cargo run --example leader [redis://…]`
//!
//! Start it in several terminals with the URL of one server: if the first one has started a private
//! server, it prints that URL. Stop the leader with Ctrl-C or `kill` (it hands over at once), `kill
//! -9` (another one leads after the lease), or `kill -STOP` and later `kill -CONT` (it notices that
//! another one leads, and waits again).
#![allow(clippy::print_stdout, reason = "a command-line program")]

mod at_hand;

use std::{
    process,
    time::{Duration, SystemTime},
};

use leasehold::{Cancel, Error, Holder, Lease, Locks, Options, Owner};

/// The time without a leader after the leader has died.
const LEASE: Duration = Duration::from_secs(3);
/// The time from one step of the work to the next.
const STEP: Duration = Duration::from_millis(100);

fn main() -> anyhow::Result<()> {
    let (url, _server) = at_hand::server()?;

    let stop = Cancel::new();
    let at_signal = stop.clone();
    ctrlc::set_handler(move || at_signal.cancel())?; // also SIGTERM: ctrlc's feature `termination`
    let address = format!("http://127.0.0.1:8080/{}", process::id()); // where others reach this one
    let options = Options::new().owner(Owner::new(address)?);
    let options = options.lease(LEASE).cancel(&stop);
    let lock = Locks::connect(&url)?.lock("leader").with(options);
    // Fails now if the server cannot be reached; acquire would wait.
    if let Some(address) = lock.inspect()?.holders().first().and_then(Holder::owner) {
        println!("the leader is at {address}");
    }
    while !stop.is_cancelled() {
        println!("waiting");
        let lease = match lock.acquire(Duration::MAX) {
            Err(Error::Cancelled { .. }) => break,
            acquired => acquired?,
        };
        lead(&lease, &stop);
        match lease.release() {
            Ok(()) => println!("handed over"),
            Err(error) => println!("no longer leading: {error}"),
        }
    }
    Ok(())
}

/// Works in steps much shorter than the lease, until the lease is lost or the process must exit.
fn lead(lease: &Lease, stop: &Cancel) {
    while !stop.is_cancelled() {
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        if lease.check().is_err() {
            return; // another process may lead
        }
        println!("leading at {} ms", now.as_millis()); // or lease.commit(…), which is never late
        let _is_lost = lease.lost().wait_for(STEP); // a loss ends the pause
    }
}
