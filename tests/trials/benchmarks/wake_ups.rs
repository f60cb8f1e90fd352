//! The time from a release to the next holder in another process, against the same by hand and
//! against a `PING` after an equal pause.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use leasehold::{Lease, Lock, Locks};
use parking_lot::Mutex;
use redis::{Connection, PushKind, Script, Value};
use uuid::Uuid;

use crate::{common::Server, measure::median};

/// Long enough for a waiter to wait, and for idle cores to sleep.
const QUIET: Duration = Duration::from_millis(3);
const PATIENCE: Duration = Duration::from_mins(1);
/// The turns of one contender before those of the next.
const BLOCK: usize = 10;
const BLOCKS_A_ROUND: usize = 10;
const LOCK: &str = "benchmark-wake-up";
const SEMAPHORE: &str = "benchmark-wake-up-permits";

/// A way to lock, with the connections and threads of two processes.
trait Sides: Sync {
    type Held: Send;

    /// Waits for the lock.
    fn acquire(&self, side: usize) -> anyhow::Result<Self::Held>;

    fn release(&self, side: usize, held: Self::Held) -> anyhow::Result<()>;
}

/// Compares two `Locks` with a mutex and with a semaphore, the same scripts by hand, and a plain
/// `SET` by hand. Blocks of their turns alternate.
pub(crate) fn wake_ups(server: &Server, rounds: usize) -> anyhow::Result<()> {
    let both = [
        Locks::connect(&server.url())?,
        Locks::connect(&server.url())?,
    ];
    let ours = [both[0].lock(LOCK), both[1].lock(LOCK)];
    let permits = both.each_ref().map(|locks| locks.semaphore(SEMAPHORE, 3));
    let _two_are_kept = [permits[0].acquire(PATIENCE)?, permits[0].acquire(PATIENCE)?];
    let scripts = ByHand::new(server, Attempt::Script)?;
    let plain = ByHand::new(server, Attempt::Set)?;
    let mut conn = server.connection()?;
    let mut all: Vec<Round> = Vec::new();
    for round in 0..=rounds {
        let mut came = Round::default();
        for _ in 0..BLOCKS_A_ROUND {
            let pings = &mut came.pings;
            came.ours.extend(block(&ours, &mut conn, pings)?);
            came.permits.extend(block(&permits, &mut conn, pings)?);
            came.scripts.extend(block(&scripts, &mut conn, pings)?);
            came.plain.extend(block(&plain, &mut conn, pings)?);
        }
        // The first round does not count.
        if round > 0 {
            all.push(came);
        }
    }
    show(&all);
    Ok(())
}

/// Passes the lock to and fro. Each turn is followed by a `PING` after the same pause as the
/// release: idle cores are slower.
fn block<S: Sides>(
    sides: &S,
    conn: &mut Connection,
    pings: &mut Vec<f64>,
) -> anyhow::Result<Vec<f64>> {
    let mut took = Vec::new();
    let mut held = sides.acquire(0)?;
    // The first turn does not count, since it follows those of another contender.
    for turn in 1..=BLOCK + 1 {
        let (holder, next) = ((turn + 1) % 2, turn % 2);
        let (got, took_so_long) = thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let got = sides.acquire(next)?;
                anyhow::Ok((got, Instant::now()))
            });
            thread::sleep(QUIET);
            let released = Instant::now();
            sides.release(holder, held)?;
            let waited = waiting.join();
            let (got, at) = waited.map_err(|_| anyhow::anyhow!("a thread panicked"))??;
            anyhow::Ok((got, at - released))
        })?;
        held = got;
        thread::sleep(QUIET);
        let asked = Instant::now();
        redis::cmd("PING").exec(conn)?;
        if turn > 1 {
            took.push(took_so_long.as_secs_f64());
            pings.push(asked.elapsed().as_secs_f64());
        }
    }
    sides.release((BLOCK + 1) % 2, held)?;
    Ok(took)
}

/// The seconds of each contender's turns, and of the `PING`s between them.
#[derive(Default)]
struct Round {
    ours: Vec<f64>,
    permits: Vec<f64>,
    scripts: Vec<f64>,
    plain: Vec<f64>,
    pings: Vec<f64>,
}

fn show(rounds: &[Round]) {
    type Times = fn(&Round) -> &[f64];
    let ways: [(&str, Times); 5] = [
        ("Locks", |round| &round.ours),
        ("Locks, the last of 3 permits", |round| &round.permits),
        ("by hand, the same scripts", |round| &round.scripts),
        ("by hand, SET NX PX", |round| &round.plain),
        ("PING", |round| &round.pings),
    ];
    println!(
        "{:<30} {:>9} {:>9} {:>9} {:>14}",
        "wake-up", "p50", "p99", "in PINGs", "ours over it"
    );
    for (name, times) in ways {
        let micros = |share: f64| {
            median(rounds.iter().map(|round| percentile(times(round), share))) * 1_000_000.0
        };
        let over = |above: Times, below: Times| {
            median(
                rounds
                    .iter()
                    .map(|round| percentile(above(round), 0.5) / percentile(below(round), 0.5)),
            )
        };
        println!(
            "{name:<30} {:>6.0} µs {:>6.0} µs {:>9.2} {:>14.2}",
            micros(0.5),
            micros(0.99),
            over(times, |round| &round.pings),
            over(|round| &round.ours, times),
        );
    }
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "a few hundred values"
)]
fn percentile(times: &[f64], share: f64) -> f64 {
    let mut times = times.to_vec();
    times.sort_by(f64::total_cmp);
    let place = (times.len() as f64 * share) as usize;
    times.get(place).copied().unwrap_or(f64::NAN)
}

impl Sides for [Lock; 2] {
    type Held = Lease;

    fn acquire(&self, side: usize) -> anyhow::Result<Lease> {
        Ok(self[side].acquire(PATIENCE)?)
    }

    fn release(&self, _: usize, lease: Lease) -> anyhow::Result<()> {
        Ok(lease.release()?)
    }
}

/// The happy path of a waiting thread of [`Locks`] and nothing else: no queue of threads, no
/// renewal, no deadline, no end of the wait if the holder dies, no recovery from an error.
struct ByHand {
    sides: [Hands; 2],
    attempt: Attempt,
    acquire: Script,
    release: Script,
}

/// The command that acquires the lock. The library's script releases it.
#[derive(Clone, Copy)]
enum Attempt {
    /// The library's script, which returns a fencing token.
    Script,
    /// `SET NX PX`; after a refusal a read, so that the server notifies us of a change.
    Set,
}

/// The connections of one side.
struct Hands {
    waits: Mutex<Connection>,
    releases: Mutex<Connection>,
}

impl ByHand {
    fn new(server: &Server, attempt: Attempt) -> anyhow::Result<Self> {
        Ok(Self {
            sides: [Hands::new(server)?, Hands::new(server)?],
            attempt,
            acquire: Script::new(include_str!("../../../src/recipes/mutex/acquire.lua")),
            release: Script::new(include_str!("../../../src/wire/release.lua")),
        })
    }

    /// Returns a key of its own, so that this contender gets no notifications of the others.
    fn key(&self) -> String {
        match self.attempt {
            Attempt::Script => format!("lock:{LOCK}-script"),
            Attempt::Set => format!("lock:{LOCK}-set"),
        }
    }

    fn attempt(&self, conn: &mut Connection, key: &str, token: &str) -> anyhow::Result<bool> {
        match self.attempt {
            Attempt::Script => {
                let mut call = self.acquire.key(key);
                call.key(format!("{{{key}}}:lease"));
                call.arg(token).arg(10_000).arg("by hand");
                Ok(call.invoke::<Option<u64>>(conn)?.is_some())
            }
            Attempt::Set => {
                let mut set = redis::cmd("SET");
                set.arg(key).arg(token).arg("NX").arg("PX").arg(10_000);
                Ok(set.query(conn)?)
            }
        }
    }

    /// After a refusal, returns true if the lock still exists and a change will be notified. The
    /// script has read the key already.
    fn is_tracked(&self, conn: &mut Connection, key: &str) -> anyhow::Result<bool> {
        match self.attempt {
            Attempt::Script => Ok(true),
            Attempt::Set => Ok(redis::cmd("EXISTS").arg(key).query(conn)?),
        }
    }
}

impl Sides for ByHand {
    /// The token.
    type Held = String;

    fn acquire(&self, side: usize) -> anyhow::Result<String> {
        let (key, token) = (self.key(), Uuid::new_v4().to_string());
        let mut conn = self.sides[side].waits.lock();
        while !self.attempt(&mut conn, &key, &token)? {
            if self.is_tracked(&mut conn, &key)? {
                wait_for_a_change(&mut conn, &key)?;
            }
        }
        Ok(token)
    }

    fn release(&self, side: usize, token: String) -> anyhow::Result<()> {
        let mut conn = self.sides[side].releases.lock();
        let key = self.key();
        let released: bool = self.release.key(&key).arg(&token).invoke(&mut *conn)?;
        anyhow::ensure!(released, "the lock is lost");
        Ok(())
    }
}

impl Hands {
    fn new(server: &Server) -> anyhow::Result<Self> {
        let client = redis::Client::open(format!("{}?protocol=resp3", server.url()))?;
        let mut waits = client.get_connection()?;
        waits.set_read_timeout(Some(PATIENCE))?;
        let mut tracking = redis::cmd("CLIENT");
        tracking.arg("TRACKING").arg("ON").arg("NOLOOP");
        tracking.exec(&mut waits)?;
        Ok(Self {
            waits: Mutex::new(waits),
            releases: Mutex::new(server.connection()?),
        })
    }
}

/// Reads until the server reports that the key has changed.
fn wait_for_a_change(conn: &mut Connection, key: &str) -> anyhow::Result<()> {
    loop {
        if let Value::Push {
            kind: PushKind::Invalidate,
            data,
        } = conn.recv_response()?
        {
            let named = data.first().context("an invalidation without keys")?;
            let keys: Vec<String> = redis::from_redis_value(named.clone())?;
            if keys.iter().any(|named| named == key) {
                return Ok(());
            }
        }
    }
}
