//! The plain functions with `Nodes::run` while a shard fails over and slots move.
//!
//! No two holds overlap, measured on one clock; every acknowledged write exists, none was executed
//! twice, and no call exceeds its time limit.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};

use leasehold::{
    Error, Nodes, Pool, PoolBuilder, Result, Token, acquire_lock_with_timeout, commit_while_held,
    release_lock, transaction_while_held, transaction_with_lock, with_lock,
};
use redis::{Commands, ConnectionLike, Value};

use crate::{
    common::{
        Cluster, LONG, MS, Resharding, SLACK,
        cluster::{partner, shared},
        hold::comes_true,
        server::signal,
        wait::comes_true_within,
    },
    history::{History, Hold, violations},
};

const WORKERS: usize = 4;
const LEASE: Duration = Duration::from_secs(30);
const GET: Duration = Duration::from_secs(1);
const IO: Duration = Duration::from_millis(500);
/// The wait of a function for a lock that is held.
const WAIT: Duration = Duration::from_millis(20);

/// Stops the work when dropped, also on a panic.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// True if a replica has the writes of this connection.
fn is_on_a_replica(conn: &mut impl ConnectionLike) -> bool {
    let replicas = redis::cmd("WAIT").arg(&[1, 200]).query::<u32>(conn);
    replicas.is_ok_and(|replicas| replicas > 0)
}

/// The results of the workers under one lock.
struct Work {
    nodes: Nodes,
    tag: String,
    lock: String,
    count: String,
    /// The start and end of each hold.
    history: History,
    done: AtomicU64,
    perhaps: AtomicU64,
    over: AtomicBool,
    /// Holders make sure that a replica has the lock too.
    is_confirmed: AtomicBool,
}

impl Work {
    fn on(cluster: &Cluster, tag: &str) -> Self {
        Self::with(
            Pool::builder().get_timeout(GET).io_timeout(IO),
            cluster,
            tag,
        )
    }

    /// For calls that must not time out.
    fn patient(cluster: &Cluster, tag: &str) -> Self {
        let builder = Pool::builder().get_timeout(LONG).io_timeout(LONG);
        Self::with(builder.connect_timeout(LONG), cluster, tag)
    }

    fn with(builder: PoolBuilder, cluster: &Cluster, tag: &str) -> Self {
        Self {
            nodes: builder.connect_nodes(&cluster.url()).unwrap(),
            tag: tag.to_owned(),
            lock: format!("{{{tag}}}:lock"),
            count: format!("{{{tag}}}:count"),
            history: History::default(),
            done: AtomicU64::new(0),
            perhaps: AtomicU64::new(0),
            over: AtomicBool::new(false),
            is_confirmed: AtomicBool::new(false),
        }
    }

    /// A call; asserts that it takes no longer than its limit and one I/O time-out.
    fn timed<T>(call: impl FnOnce() -> Result<T>) -> Result<T> {
        let asked = Instant::now();
        let outcome = call();
        let took = asked.elapsed();
        assert!(took < GET + IO + WAIT + SLACK, "{took:?}");
        outcome
    }

    /// Records the outcome of a write.
    fn wrote<T>(&self, outcome: Result<T>) -> Result<T> {
        match &outcome {
            Ok(_) => self.done.fetch_add(1, SeqCst),
            Err(error) if error.may_have_happened() => self.perhaps.fetch_add(1, SeqCst),
            Err(_) => 0,
        };
        outcome
    }

    fn under_a_lock(&self, token: &Token) {
        let (lock, count) = (&self.lock, &self.count);
        let _ = self.wrote(Self::timed(|| {
            self.nodes.run(lock, |conn| {
                commit_while_held::<Value>(conn, lock, token, |pipe| _ = pipe.incr(count, 1))
            })
        }));
        let _ = self.wrote(Self::timed(|| {
            self.nodes.run(lock, |conn| {
                transaction_while_held(conn, lock, token, &[count], |conn, pipe| {
                    let before: Option<u64> = conn.get(count)?;
                    pipe.set(count, before.unwrap_or(0) + 1);
                    Ok(())
                })
            })
        }));
    }

    /// Releases until the outcome is known: no other worker gets in before.
    fn give_back(&self, token: &Token) {
        let lock = &self.lock;
        while !self.over.load(SeqCst) {
            let released =
                Self::timed(|| self.nodes.run(lock, |conn| release_lock(conn, lock, token)));
            if released.is_ok() {
                return;
            }
        }
    }

    /// The token, and whether the hold counts.
    fn acquire(&self) -> Result<Option<(Token, bool)>> {
        let wanted = self.is_confirmed.load(SeqCst);
        self.nodes.run(&self.lock, |conn| {
            let token = acquire_lock_with_timeout(conn, &self.lock, WAIT, LEASE)?;
            Ok(token.map(|token| (token, !wanted || is_on_a_replica(conn))))
        })
    }

    /// Records a hold from `from` until now; the release has not been sent yet.
    fn had_it(&self, from: Instant) {
        let hold = Hold::without_a_fence(from, Instant::now());
        self.history.lock().unwrap().push(hold);
    }

    fn in_one(&self) -> Result<Option<()>> {
        let (lock, count) = (&self.lock, &self.count);
        let keys = [count.as_str()];
        let wanted = self.is_confirmed.load(SeqCst);
        let outcome = Self::timed(|| {
            self.nodes.run(lock, |conn| {
                transaction_with_lock(conn, lock, WAIT, LEASE, &keys, |conn, pipe| {
                    // The first read acquires the lock.
                    let before: Option<u64> = conn.get(count)?;
                    let counts = !wanted || is_on_a_replica(conn);
                    let from = Instant::now();
                    pipe.set(count, before.unwrap_or(0) + 1);
                    if counts {
                        self.had_it(from);
                    }
                    Ok(())
                })
            })
        });
        match outcome {
            Ok(None) => Ok(None),
            outcome => self.wrote(outcome),
        }
    }

    fn run(&self, worker: usize) {
        let lock = &self.lock;
        while !self.over.load(SeqCst) {
            let left = if worker == 0 {
                self.in_one().err()
            } else {
                match Self::timed(|| self.acquire()) {
                    Ok(Some((token, counts))) => {
                        if counts {
                            let from = Instant::now();
                            self.under_a_lock(&token);
                            self.had_it(from);
                        }
                        self.give_back(&token);
                        None
                    }
                    Ok(None) => None,
                    Err(error) => Some(error),
                }
            };
            // It may have been granted: then a wait for the lock lasts until its release.
            let token = left.as_ref().and_then(Error::token);
            while let Some(token) = token
                && !self.over.load(SeqCst)
                && self
                    .nodes
                    .run(lock, |conn| release_lock(conn, lock, token))
                    .is_err()
            {}
        }
    }

    /// Works while `happens` runs.
    fn meanwhile(&self, happens: impl FnOnce()) {
        thread::scope(|scope| {
            for worker in 0..WORKERS {
                scope.spawn(move || self.run(worker));
            }
            let _over = Over(&self.over);
            happens();
        });
    }

    /// No two holds overlap, and there was at least one of each kind.
    fn check_holds(&self) {
        let holds = std::mem::take(&mut *self.history.lock().unwrap());
        println!("{}: {} holds", self.tag, holds.len());
        assert!(holds.len() > 10, "{}", holds.len());
        assert_eq!(violations(holds.into()), 0, "two held the lock at once");
    }

    /// The writes that exist are those acknowledged, and some with an unknown outcome.
    fn check(&self, at_least: u64) {
        self.check_holds();
        let mut conn = self.nodes.get_for_key(&self.count).unwrap();
        let there: u64 = conn.get(&self.count).unwrap();
        let (done, perhaps) = (self.done.load(SeqCst), self.perhaps.load(SeqCst));
        println!(
            "{}: {there} writes, {done} acknowledged, {perhaps} perhaps",
            self.tag
        );
        assert!(
            (done..=done + perhaps).contains(&there),
            "{done} {there} {perhaps}"
        );
        assert!(done >= at_least, "{done}");
    }
}

#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn a_slot_that_moves_back_and_forth_loses_no_write_and_no_exclusion() {
    let cluster = shared();
    let tag = cluster.tag(2, "following").unwrap();
    let slot = [cluster.slot_of(&tag).unwrap()];
    let work = Work::on(&cluster, &tag);
    work.meanwhile(|| {
        let mut there = Resharding::new(&cluster, 2, 0).unwrap();
        let mut back = Resharding::new(&cluster, 0, 2).unwrap();
        for _ in 0..15 {
            for way in [&mut there, &mut back] {
                way.run(&slot).unwrap();
                thread::sleep(20 * MS);
            }
            // And a slot that stays open for a while.
            there.open(&slot).unwrap();
            thread::sleep(10 * MS);
            there.call_off(&slot).unwrap();
        }
        thread::sleep(200 * MS);
    });
    work.check(20);
}

/// As on one server, writes that no replica has are lost when the master dies. So each worker makes
/// sure that a replica has its lock.
#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn a_crash_of_a_master_keeps_exclusion() {
    let mut cluster = Cluster::planned(Duration::from_millis(500), false).unwrap();
    for round in 0..3 {
        let tag = cluster.tag(0, &format!("crash-{round}")).unwrap();
        let before = cluster.master_of(&tag).unwrap();
        let work = Work::on(&cluster, &tag);
        work.is_confirmed.store(true, SeqCst);
        let mut later = (false, false);
        work.meanwhile(|| {
            // Each of them is on the replica too.
            let had_it = || work.history.lock().unwrap().len() > 10;
            assert!(comes_true(had_it), "no worker has the lock");
            let at_first = work.done.load(SeqCst);
            signal(cluster.nodes[before].process(), "KILL").unwrap();
            cluster.wait_until_master(partner(before)).unwrap();
            // The new master has no replica.
            work.is_confirmed.store(false, SeqCst);
            let promoted = work.done.load(SeqCst);
            // The next master may lack the last release; then the lock lasts until its lease ends.
            let goes_on = comes_true_within(LEASE + GET, || work.done.load(SeqCst) > promoted);
            later = (at_first > 0, goes_on);
        });
        work.check_holds();
        let mut conn = work.nodes.get_for_key(&work.count).unwrap();
        let there: u64 = conn.get(&work.count).unwrap();
        let (done, perhaps) = (work.done.load(SeqCst), work.perhaps.load(SeqCst));
        println!("{there} writes, {done} acknowledged, {perhaps} perhaps");
        assert!(there <= done + perhaps, "{done} {there} {perhaps}");
        assert_eq!(later, (true, true), "work before and after it");
        cluster.nodes[before].kill().unwrap();
        cluster.revive(before).unwrap();
    }
}

#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn a_planned_failover_loses_no_write_and_keeps_exclusion() {
    let cluster = Cluster::start().unwrap();
    let tag = cluster.tag(0, "following").unwrap();
    let work = Work::on(&cluster, &tag);
    work.meanwhile(|| {
        thread::sleep(300 * MS);
        cluster.fail_over(0).unwrap();
        thread::sleep(500 * MS);
    });
    work.check(20);
}

/// It cannot be released on the node where it was acquired.
#[test]
fn a_lock_that_moves_during_a_transaction_is_reported_with_its_token() {
    let cluster = shared();
    let tag = cluster.tag(1, "away").unwrap();
    let slot = [cluster.slot_of(&tag).unwrap()];
    let work = Work::patient(&cluster, &tag);
    let (lock, count) = (&work.lock, &work.count);
    let outcome = work.nodes.run(lock, |conn| {
        transaction_with_lock(conn, lock, WAIT, LEASE, &[], |conn, pipe| {
            let _: Option<u64> = conn.get(count)?;
            let mut there = Resharding::new(&cluster, 1, 2).unwrap();
            there.run(&slot).unwrap();
            pipe.set(count, 1);
            Ok(())
        })
    });
    let error = outcome.unwrap_err();
    let given_back =
        (error.token()).map(|token| work.nodes.run(lock, |conn| release_lock(conn, lock, token)));
    let written: bool = work.nodes.get_for(lock).unwrap().exists(count).unwrap();
    let mut back = Resharding::new(&cluster, 2, 1).unwrap();
    back.run(&slot).unwrap();
    assert!(given_back.unwrap().unwrap() && !written, "{error:?}");
}

#[test]
fn a_lock_that_moves_during_a_closure_is_reported_with_its_token() {
    let cluster = shared();
    let tag = cluster.tag(2, "ran").unwrap();
    let slot = [cluster.slot_of(&tag).unwrap()];
    let work = Work::patient(&cluster, &tag);
    let (lock, count) = (&work.lock, &work.count);
    let mut runs = 0;
    let ran = work.nodes.run(lock, |conn| {
        with_lock(conn, lock, WAIT, LEASE, |conn, _| {
            runs += 1;
            conn.set::<_, _, ()>(count, 1).unwrap();
            let mut there = Resharding::new(&cluster, 2, 0).unwrap();
            there.run(&slot).unwrap();
            conn.incr::<_, _, u64>(count, 1)
        })
    });
    let ran = ran.unwrap().unwrap();
    let release = |token: &Token| work.nodes.run(lock, |conn| release_lock(conn, lock, token));
    let given_back = (ran.released.as_ref().err().and_then(Error::token)).map(release);
    let written: u64 = work.nodes.get_for(lock).unwrap().get(count).unwrap();
    let mut back = Resharding::new(&cluster, 0, 2).unwrap();
    back.run(&slot).unwrap();
    assert!(given_back.unwrap().unwrap(), "{:?}", ran.released);
    let refused = ran.value.unwrap_err();
    assert_eq!((refused.code(), runs, written), (Some("MOVED"), 1, 1));
}
