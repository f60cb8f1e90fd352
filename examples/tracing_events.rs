//! Logs lock events with `tracing`: contention, a lost lock, and an unreachable server.
//!
//! `cargo run --features tracing --example tracing_events [redis://…]`

mod at_hand;

use std::{
    sync::{
        Arc,
        mpsc::{Sender, channel},
    },
    thread,
    time::Duration,
};

use anyhow::Context;
use leasehold::{Error, Events, Locks, Options, TracingEvents, event::Lost};
use tracing::{Level, info_span};

/// Signals that the loss was logged.
struct Logged(Sender<()>);

impl Events for Logged {
    fn lost(&self, _: &Lost<'_>) {
        let _ = self.0.send(());
    }
}

fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt()
        .with_max_level(Level::TRACE)
        .init();
    let (url, _server) = at_hand::server()?;

    let options = Options::new().lease(Duration::from_secs(3));
    let options = options.events(Arc::new(TracingEvents::new()));
    let locks = Locks::connect(&url)?.with(options.clone());

    let lock = locks.lock("traced");
    let span = info_span!("report", page = 1).entered();
    let lease = lock.acquire(Duration::from_secs(5))?;
    let busy = thread::scope(|scope| {
        let second = scope.spawn(|| lock.acquire(Duration::from_millis(100)));
        second.join().map_err(|_| anyhow::anyhow!("it panicked"))
    })?;
    anyhow::ensure!(matches!(busy, Err(Error::Contended { .. })));
    thread::sleep(Duration::from_millis(1_500)); // renewed after a third of the lease
    lease.release()?;

    let (sender, logged) = channel();
    let lock = lock.with(Options::new().events(Arc::new(Logged(sender)))); // these hooks too
    let lease = lock.acquire(Duration::from_secs(5))?;
    let taken = lock.force_release()?; // as an operator would
    anyhow::ensure!(taken.is_held(), "the lock was already gone");
    let logged = logged.recv_timeout(Duration::from_secs(5)); // by the watchdog's thread
    logged.context("the loss of the lock was not logged")?;
    drop(lease);
    span.exit();

    // An unreachable server: nothing listens on port 1.
    let away = Locks::connect("redis://127.0.0.1:1/")?.with(options);
    for _ in 0..9 {
        anyhow::ensure!(away.lock("away").try_acquire().is_err());
    }
    Ok(())
}
