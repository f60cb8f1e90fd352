//! Runs the cells one after the other: sets the stage, lets the threads trade, and checks the
//! result.

use std::{
    io::{IsTerminal, stderr},
    sync::atomic::AtomicBool,
    thread::{self, Scope, ScopedJoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow};
use leasehold::{Cancel, Locks, Pool, redis::Client};

use crate::{
    invariants::Audit,
    options::{Cell, Load, Options},
    several,
    stage::{Stage, Stock},
    trade::{Sales, Shift, buy_items, list_items},
};

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
    let simulation = Simulation {
        pool: &pool,
        locks: several::locks(&client, u32::from(everybody.buyers))?,
        seconds: options.seconds,
        interrupted,
    };
    let outcomes: anyhow::Result<_> = cells.iter().map(|&cell| simulation.run(cell)).collect();
    let cleared = all_users.clear(&pool);
    outcomes.and_then(|outcomes| cleared.map(|()| outcomes))
}

struct Simulation<'a> {
    pool: &'a Pool,
    locks: Locks,
    seconds: Duration,
    interrupted: &'a Cancel,
}

impl Simulation<'_> {
    /// `None`: interrupted.
    fn run(&self, cell: Cell) -> anyhow::Result<Option<Outcome>> {
        if stderr().is_terminal() {
            eprintln!("{} by {}", cell.load.in_words(), cell.strategy.name());
        }
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
