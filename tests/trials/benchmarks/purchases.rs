//! Purchases in the market: ours, against the book's seven round trips by hand, and against a
//! program in Python.

use std::{
    path::Path,
    process::{Command, Stdio},
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

use anyhow::Context;
use leasehold::{market, purchase_item_with_lock};
use redis::Connection;

use crate::{
    by_hand,
    common::Server,
    measure::{Comparison, Effort, Work, compare, median},
    worker::Worker,
};

const ITEMS: u64 = 600_000;

/// A well-stocked market: each purchase takes the next item for sale.
pub(crate) struct Market {
    next: AtomicU64,
}

impl Market {
    pub(crate) fn stocked(conn: &mut Connection) -> anyhow::Result<Self> {
        redis::cmd("HSET")
            .arg(market::user_key("buyer"))
            .arg("funds")
            .arg(ITEMS)
            .exec(conn)?;
        for first in (0..ITEMS).step_by(10_000) {
            let mut add = redis::cmd("ZADD");
            add.arg(market::MARKET);
            for item in first..first + 10_000 {
                add.arg(1).arg(format!("item{item}.seller"));
            }
            add.exec(conn)?;
        }
        Ok(Self {
            next: AtomicU64::new(0),
        })
    }

    fn next_item(&self) -> String {
        format!("item{}", self.next.fetch_add(1, Ordering::Relaxed))
    }

    fn purchase(&self, conn: &mut Connection) -> anyhow::Result<()> {
        let bought = purchase_item_with_lock(conn, "buyer", &self.next_item(), "seller", None)?;
        anyhow::ensure!(bought.is_bought(), "{bought:?}");
        Ok(())
    }

    pub(crate) fn beside_seven_round_trips(
        &self,
        connections: &mut [Connection],
        effort: Effort,
    ) -> anyhow::Result<Comparison> {
        let ours = |conn: &mut Connection, _: usize| self.purchase(conn);
        let by_hand = |conn: &mut Connection, _: usize| {
            by_hand::purchase_in_seven_round_trips(conn, "buyer", &self.next_item(), "seller")
        };
        let (ours, by_hand): (Work<'_>, Work<'_>) = (&ours, &by_hand);
        compare(connections, effort, ours, by_hand)
    }

    /// Returns `None` without Python or redis-py.
    pub(crate) fn beside_python(
        &self,
        server: &Server,
        conn: &mut Connection,
        effort: Effort,
    ) -> anyhow::Result<Option<Comparison>> {
        if !has_redis_py() {
            return Ok(None);
        }
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benchmarks/purchases.py");
        let mut python = Worker::of(Command::new("python3").arg(script).arg(server.url()))?;
        let mut rounds = Vec::new();
        for round in 0..=effort.rounds {
            let mut ours = 0.0;
            if round % 2 == 0 {
                ours = self.a_second(conn, effort)?;
            }
            let theirs = self.of_python(&mut python, effort)?;
            if round % 2 == 1 {
                ours = self.a_second(conn, effort)?;
            }
            if round > 0 {
                rounds.push((ours, theirs));
            }
        }
        Ok(Some(Comparison {
            ours_per_second: median(rounds.iter().map(|(ours, _)| *ours)),
            reference_per_second: median(rounds.iter().map(|(_, theirs)| *theirs)),
            ratio: median(rounds.iter().map(|(ours, theirs)| ours / theirs)),
        }))
    }

    fn a_second(&self, conn: &mut Connection, effort: Effort) -> anyhow::Result<f64> {
        let (started, mut made) = (Instant::now(), 0_u32);
        while started.elapsed() < effort.turn {
            self.purchase(conn)?;
            made += 1;
        }
        Ok(f64::from(made) / started.elapsed().as_secs_f64())
    }

    fn of_python(&self, python: &mut Worker, effort: Effort) -> anyhow::Result<f64> {
        let first = self.next.load(Ordering::Relaxed);
        let said = python.ask(&format!("{} {first}", effort.turn.as_millis()))?;
        let (made, a_second) = said
            .trim()
            .split_once(' ')
            .context("unexpected output of the Python program")?;
        self.next.fetch_add(made.parse()?, Ordering::Relaxed);
        Ok(a_second.parse()?)
    }
}

fn has_redis_py() -> bool {
    let mut python = Command::new("python3");
    python.args(["-c", "import redis"]).stderr(Stdio::null());
    python.status().is_ok_and(|status| status.success())
}
