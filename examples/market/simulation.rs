//! Runs the cells one after the other: sets the stage, lets the threads trade, and checks the
//! result.

use std::{
    sync::atomic::AtomicBool,
    thread::{self, Scope, ScopedJoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow};
use indicatif::{ProgressBar, ProgressStyle};
use leasehold::{Cancel, Locks, Pool, redis::Client};

use crate::{
    invariants::Audit,
    options::{Cell, Load, Options},
    several,
    stage::{Stage, Stock},
    trade::{Sales, Shift, buy_items, list_items},
};

const TICK: Duration = Duration::from_millis(50);

/// The result of one cell.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) cell: Cell,
    pub(crate) seconds: Duration,
    pub(crate) listed: u64,
    pub(crate) sales: Sales,
    pub(crate) audit: Audit,
}

/// The time of a purchase, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waits {
    pub(crate) mean_ms: f64,
    pub(crate) p99_ms: f64,
}

impl Outcome {
    /// `None` if nothing was bought.
    pub(crate) fn waits(&self) -> Option<Waits> {
        let micros = &self.sales.waits;
        let p99 = u32::try_from(micros.value_at_quantile(0.99)).unwrap_or(u32::MAX);
        (!micros.is_empty()).then(|| Waits {
            mean_ms: micros.mean() / 1_000.0,
            p99_ms: f64::from(p99) / 1_000.0,
        })
    }
}

/// Runs all cells on a server and restores it. `None`: interrupted.
pub(crate) fn run(
    options: &Options,
    url: &str,
    interrupted: &Cancel,
) -> anyhow::Result<Option<Vec<Outcome>>> {
    let cells = options.cells();
    let most = |count: fn(&Cell) -> u16| cells.iter().map(count).max().unwrap_or(1);
    let everybody = Load {
        listers: most(|cell| cell.load.listers),
        buyers: most(|cell| cell.load.buyers),
    };
    let client = Client::open(url).context("invalid URL")?;
    let pool = Pool::builder()
        .max_size(u32::from(everybody.listers + everybody.buyers))
        .build(&client)?;

    let all_users = Stage::new(everybody);
    all_users.claim(&pool)?;
    let progress = progress_bar(&cells, options.seconds)?;
    let simulation = Simulation {
        pool: &pool,
        locks: several::locks(&client, u32::from(everybody.buyers))?,
        seconds: options.seconds,
        interrupted,
        progress: &progress,
    };
    let outcomes: anyhow::Result<_> = cells.iter().map(|&cell| simulation.run(cell)).collect();
    progress.finish_and_clear();
    let cleared = all_users.clear(&pool);
    outcomes.and_then(|outcomes| cleared.map(|()| outcomes))
}

/// Counts the milliseconds of all cells. indicatif hides the bar if there is no terminal.
fn progress_bar(cells: &[Cell], seconds: Duration) -> anyhow::Result<ProgressBar> {
    let total = seconds * u32::try_from(cells.len())?;
    let progress = ProgressBar::new(u64::try_from(total.as_millis())?);
    progress.set_style(ProgressStyle::with_template("{wide_bar} {msg} {eta:>4}")?);
    Ok(progress)
}

struct Simulation<'a> {
    pool: &'a Pool,
    locks: Locks,
    seconds: Duration,
    interrupted: &'a Cancel,
    progress: &'a ProgressBar,
}

impl Simulation<'_> {
    /// `None`: interrupted.
    fn run(&self, cell: Cell) -> anyhow::Result<Option<Outcome>> {
        self.progress.set_message(format!(
            "{} by {}",
            cell.load.in_words(),
            cell.strategy.name()
        ));
        let stage = Stage::new(cell.load);
        stage.set(self.pool)?;
        let (listed, sales) = self.trade(cell, &stage)?;
        if self.interrupted.is_cancelled() {
            return Ok(None);
        }
        let audit = Audit::of(&stage, self.pool)?;
        Ok(Some(Outcome {
            cell,
            seconds: self.seconds,
            listed,
            sales,
            audit,
        }))
    }

    /// Lets all threads of a cell trade until its time is up.
    fn trade(&self, cell: Cell, stage: &Stage) -> anyhow::Result<(u64, Sales)> {
        // All threads connect before the clock starts.
        let connect = |users: &[String]| {
            let connections = users.iter().map(|_| self.pool.get());
            connections.collect::<leasehold::Result<Vec<_>>>()
        };
        let (lister_connections, buyer_connections) =
            (connect(&stage.sellers)?, connect(&stage.buyers)?);
        let shift = &Shift {
            end: Instant::now() + self.seconds,
            interrupted: self.interrupted,
            failed: AtomicBool::new(false),
        };
        thread::scope(|scope| {
            let mut listers = Vec::new();
            for (seller, mut conn) in stage.sellers.iter().zip(lister_connections) {
                let stock = Stock::new(seller);
                let list = move || list_items(&mut conn, cell.strategy, stock, shift);
                listers.push(start(scope, shift, list)?);
            }
            let mut buyers = Vec::new();
            for (buyer, mut conn) in stage.buyers.iter().zip(buyer_connections) {
                let locks = &self.locks;
                let buy = move || buy_items(&mut conn, locks, cell.strategy, buyer, shift);
                buyers.push(start(scope, shift, buy)?);
            }
            self.show_progress(shift);

            let mut listed = 0;
            for lister in listers {
                listed += result_of(lister)?;
            }
            let mut sales = Sales::none()?;
            for buyer in buyers {
                sales.add(&result_of(buyer)?)?;
            }
            Ok((listed, sales))
        })
    }

    fn show_progress(&self, shift: &Shift<'_>) {
        let done = self.progress.position();
        while shift.goes_on() {
            thread::sleep(TICK.min(shift.remaining()));
            let elapsed = self.seconds.saturating_sub(shift.remaining());
            self.progress
                .set_position(done + u64::try_from(elapsed.as_millis()).unwrap_or(0));
        }
    }
}

fn start<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    shift: &'scope Shift<'_>,
    work: impl FnOnce() -> anyhow::Result<T> + Send + 'scope,
) -> anyhow::Result<ScopedJoinHandle<'scope, anyhow::Result<T>>> {
    let started = thread::Builder::new().spawn_scoped(scope, || shift.work(work));
    // If one could not start, the threads already running stop.
    shift.work(|| started.context("could not start a thread"))
}

fn result_of<T>(thread: ScopedJoinHandle<'_, anyhow::Result<T>>) -> anyhow::Result<T> {
    thread
        .join()
        .map_err(|_| anyhow!("a thread of the simulation panicked"))?
}
