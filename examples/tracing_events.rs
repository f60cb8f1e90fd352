//! Hooks that tell `tracing` what happens to locks: a few things that can happen, as lines of a log.
//!
//! `cargo run --example tracing_events [redis://127.0.0.1/]`

use std::{
    error::Error as StdError,
    sync::{
        Arc,
        mpsc::{Sender, channel},
    },
    thread,
    time::Duration,
};

use anyhow::Context;
use leasehold::{
    Error, Events, FencingToken, Locks, Options,
    event::{AcquireFailed, Acquired, Contended, HoldEnd, Lost, Released, RenewalFailed, Renewed},
};
use tracing::{Level, debug, error, info, info_span, trace, warn};

/// A target of one's own, so that a filter can name it: `RUST_LOG=locks=debug` for those who filter by the environment.
const TARGET: &str = "locks";

/// Sends every event on. Most come on the thread that has called, and so in its span; those of
/// renewals and most losses come on the watchdog's threads: there the name of the lock says what
/// they are about.
///
/// While the server is away, each acquire and each renewal fails. Of such a row the first failure
/// is logged, the second, the fourth, and so on.
struct Traced {
    /// Of a loss, when it has been logged: the program ends then.
    told: Sender<()>,
}

impl Events for Traced {
    fn acquired(&self, acquired: &Acquired<'_>) {
        let fence = acquired.fencing_token().map(FencingToken::get);
        debug!(target: TARGET, lock = acquired.lock(), fence, waited = ?acquired.waited(), "acquired");
    }

    fn contended(&self, contended: &Contended<'_>) {
        info!(target: TARGET, lock = contended.lock(), waited = ?contended.waited(), "busy: given up");
    }

    fn failed(&self, failed: &AcquireFailed<'_>) {
        if failed.in_a_row().is_power_of_two() {
            let error: &(dyn StdError + 'static) = failed.error(); // logged with its sources
            warn!(target: TARGET, lock = failed.lock(), error, in_a_row = failed.in_a_row(), "not acquired");
        }
    }

    fn released(&self, released: &Released<'_>) {
        let (lock, held) = (released.lock(), released.held());
        match released.end() {
            HoldEnd::Released => debug!(target: TARGET, lock, ?held, "released"),
            end => warn!(target: TARGET, lock, ?held, ?end, "ended"),
        }
    }

    fn renewed(&self, renewed: &Renewed<'_>) {
        trace!(target: TARGET, lock = renewed.lock(), remaining = ?renewed.remaining(), "renewed");
    }

    fn renewal_failed(&self, failed: &RenewalFailed<'_>) {
        if failed.in_a_row().is_power_of_two() {
            let error: &(dyn StdError + 'static) = failed.error();
            warn!(target: TARGET, lock = failed.lock(), error, in_a_row = failed.in_a_row(), "not renewed: tried again");
        }
    }

    fn lost(&self, lost: &Lost<'_>) {
        error!(target: TARGET, lock = lost.lock(), reason = %lost.reason(), "lost");
        let _ = self.told.send(());
    }
}

fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt()
        .with_max_level(Level::TRACE)
        .init();
    let url = std::env::args()
        .nth(1)
        .unwrap_or("redis://127.0.0.1/".into());
    let (told, is_told) = channel();
    let options = Options::new()
        .lease(Duration::from_secs(3))
        .events(Arc::new(Traced { told }));
    let locks = Locks::connect(&url)?.with(options.clone());
    let lock = locks.lock("traced");

    let span = info_span!("report", page = 1).entered();
    let lease = lock.acquire(Duration::from_secs(5))?;
    let busy = thread::scope(|scope| {
        let second = scope.spawn(|| lock.acquire(Duration::from_millis(100)));
        second.join().map_err(|_| anyhow::anyhow!("it panicked"))
    })?;
    anyhow::ensure!(matches!(busy, Err(Error::Contended { .. })));
    thread::sleep(Duration::from_millis(1_500)); // it is renewed after a third of the lease
    lease.release()?;
    span.exit();

    let lease = lock.acquire(Duration::from_secs(5))?;
    let taken = lock.force_release()?; // as an operator would
    anyhow::ensure!(taken.is_held(), "somebody else was faster");
    let told = is_told.recv_timeout(Duration::from_secs(5)); // by the watchdog's thread
    told.context("nobody has noticed that the lock is lost")?;
    drop(lease);

    // A server that is away: nobody listens at port 1.
    let away = Locks::connect("redis://127.0.0.1:1/")?.with(options);
    for _ in 0..9 {
        anyhow::ensure!(away.lock("away").try_acquire().is_err());
    }
    Ok(())
}
