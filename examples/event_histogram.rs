//! Hooks that count: how long locks are waited for and held, printed as a small table.
//!
//! `cargo run --example event_histogram [redis://127.0.0.1/]`
#![allow(clippy::print_stdout, reason = "a program that talks")]

use std::{
    hint,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use leasehold::{
    Events, Locks, Options,
    event::{AcquireFailed, Acquired, Contended, Lost, Released},
};

const THREADS: usize = 8;
/// An hour.
const MAX: u64 = 3_600_000_000;
const LENGTH: Duration = Duration::from_secs(2);

/// What is counted: times in microseconds.
struct Counts {
    waited: Histogram<u64>,
    held: Histogram<u64>,
    attempts: u64,
    contended: u64,
    failed: u64,
    lost: u64,
}

struct Metrics(Mutex<Counts>);

impl Metrics {
    fn new() -> anyhow::Result<Self> {
        Ok(Self(Mutex::new(Counts {
            waited: Histogram::new_with_bounds(1, MAX, 3)?,
            held: Histogram::new_with_bounds(1, MAX, 3)?,
            attempts: 0,
            contended: 0,
            failed: 0,
            lost: 0,
        })))
    }

    fn count(&self, count: impl FnOnce(&mut Counts)) {
        count(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Events for Metrics {
    fn acquired(&self, acquired: &Acquired<'_>) {
        self.count(|counts| {
            counts.waited.saturating_record(micros(acquired.waited()));
            counts.attempts += u64::from(acquired.attempts());
        });
    }

    fn contended(&self, _: &Contended<'_>) {
        self.count(|counts| counts.contended += 1);
    }

    fn failed(&self, _: &AcquireFailed<'_>) {
        self.count(|counts| counts.failed += 1);
    }

    fn released(&self, released: &Released<'_>) {
        self.count(|counts| counts.held.saturating_record(micros(released.held())));
    }

    fn lost(&self, _: &Lost<'_>) {
        self.count(|counts| counts.lost += 1);
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn main() -> anyhow::Result<()> {
    let url = std::env::args()
        .nth(1)
        .unwrap_or("redis://127.0.0.1/".into());
    let metrics = Arc::new(Metrics::new()?);
    let locks = Locks::connect(&url)?.with(Options::new().events(metrics.clone()));

    let started = Instant::now();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|number| {
                let lock = locks.lock(&format!("histogram:{}", number % 2));
                scope.spawn(move || {
                    while started.elapsed() < LENGTH {
                        let _lease = lock.acquire(Duration::from_secs(5))?;
                        let inside = Instant::now();
                        while inside.elapsed() < Duration::from_micros(100) {
                            hint::spin_loop();
                        }
                    }
                    anyhow::Ok(())
                })
            })
            .collect();
        for thread in threads {
            thread
                .join()
                .map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        }
        anyhow::Ok(())
    })?;

    metrics.count(|counts| {
        println!("{THREADS} threads on 2 locks for {LENGTH:?}, 100 µs inside");
        println!(
            "{:<8} {:>9} {:>9} {:>9} {:>9}",
            "", "times", "p50 µs", "p99 µs", "max µs"
        );
        for (name, times) in [("waited", &counts.waited), ("held", &counts.held)] {
            let at = |quantile| times.value_at_quantile(quantile);
            let (p50, p99) = (at(0.5), at(0.99));
            println!(
                "{name:<8} {:>9} {p50:>9} {p99:>9} {:>9}",
                times.len(),
                times.max()
            );
        }
        let Counts {
            attempts,
            contended,
            failed,
            lost,
            ..
        } = counts;
        println!("{attempts} attempts, {contended} given up, {failed} failed, {lost} lost");
    });
    Ok(())
}
