//! Lock metrics for Prometheus: the threads that wait and hold now, their wait and hold times, and
//! the outcomes.
//!
//! `cargo run --example metrics [redis://…]`
#![allow(clippy::print_stdout, reason = "a command-line program")]

mod at_hand;

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use leasehold::{
    Error, Events, Locks, Options,
    event::{
        AcquireFailed, Acquired, AlreadyRun, Contended, HoldEnd, Lost, Released, RenewalFailed,
        Waiting,
    },
};

/// Stands in for your client's registry: a number for each name and label.
#[derive(Default)]
struct Registry(Mutex<BTreeMap<(&'static str, String), f64>>);

impl Registry {
    fn add(&self, name: &'static str, lock: &str, number: f64) {
        // Each label value is its own series: use `account`, not `account:4711`.
        let label = lock.split(':').next().unwrap_or(lock);
        let mut series = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *series.entry((name, label.to_owned())).or_default() += number;
    }

    /// The text format that Prometheus reads.
    fn text(&self) -> String {
        let series = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = String::new();
        for ((name, label), number) in &*series {
            let _ = writeln!(text, "{name}{{lock=\"{label}\"}} {number}");
        }
        text
    }
}

#[derive(Default)]
struct Metrics(Registry);

impl Metrics {
    fn wait_ends(&self, lock: &str, waited: Duration) {
        self.0.add("lock_waiting", lock, -1.0);
        self.0.add("lock_wait_seconds_count", lock, 1.0);
        (self.0).add("lock_wait_seconds_sum", lock, waited.as_secs_f64());
    }
}

impl Events for Metrics {
    fn waiting(&self, waiting: &Waiting<'_>) {
        self.0.add("lock_waiting", waiting.lock(), 1.0);
    }

    fn acquired(&self, acquired: &Acquired<'_>) {
        self.wait_ends(acquired.lock(), acquired.waited());
        self.0.add("lock_held", acquired.lock(), 1.0);
    }

    fn contended(&self, contended: &Contended<'_>) {
        self.wait_ends(contended.lock(), contended.waited());
        self.0.add("lock_contended_total", contended.lock(), 1.0);
    }

    fn already_run(&self, run: &AlreadyRun<'_>) {
        self.wait_ends(run.lock(), run.waited());
    }

    fn failed(&self, failed: &AcquireFailed<'_>) {
        self.wait_ends(failed.lock(), failed.waited());
        let name = match failed.error() {
            Error::Cancelled { .. } => "lock_cancelled_total",
            _ => "lock_failed_total",
        };
        self.0.add(name, failed.lock(), 1.0);
    }

    fn released(&self, released: &Released<'_>) {
        let (lock, held) = (released.lock(), released.held());
        self.0.add("lock_held", lock, -1.0);
        self.0.add("lock_hold_seconds_count", lock, 1.0);
        self.0
            .add("lock_hold_seconds_sum", lock, held.as_secs_f64());
        if released.end() == HoldEnd::Unknown {
            self.0.add("lock_release_failed_total", lock, 1.0);
        }
    }

    fn renewal_failed(&self, failed: &RenewalFailed<'_>) {
        self.0.add("lock_renewal_failed_total", failed.lock(), 1.0);
    }

    fn lost(&self, lost: &Lost<'_>) {
        self.0.add("lock_lost_total", lost.lock(), 1.0);
    }
}

fn main() -> anyhow::Result<()> {
    let (url, _server) = at_hand::server()?;
    let metrics = Arc::new(Metrics::default());
    let locks = Locks::connect(&url)?.with(Options::new().events(metrics.clone()));

    let lock = locks.lock("account:4711");
    let lease = lock.acquire(Duration::from_secs(30))?;
    thread::scope(|scope| {
        let patient =
            [(); 2].map(|()| scope.spawn(|| lock.acquire(Duration::from_secs(20))?.release()));
        let hasty = lock.acquire(Duration::from_millis(50));
        anyhow::ensure!(matches!(hasty, Err(Error::Contended { .. })));
        while lock.inspect()?.waiting_here() < patient.len() {
            thread::sleep(Duration::from_millis(10));
        }
        println!("while two threads wait:\n{}", metrics.0.text());
        lease.release()?;
        for thread in patient {
            let released = thread.join();
            released.map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        }
        anyhow::Ok(())
    })?;
    println!("afterwards:\n{}", metrics.0.text());
    Ok(())
}
