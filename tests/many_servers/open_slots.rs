//! The plain functions with `Nodes::run` on a slot that stays open between two masters, at both
//! ends or at one.

use std::{
    fmt::Debug,
    sync::Arc,
    time::{Duration, Instant},
};

use leasehold::{
    Error, Locks, Nodes, Options, Pool, Result, Token, acquire_lock_with_timeout, recipes::mutex,
    release_lock, transaction_with_lock, with_lock,
};
use redis::{Commands, Connection};

use crate::common::{Cluster, LONG, MS, Resharding, SLACK, cluster::shared};

const GET: Duration = Duration::from_millis(500);

/// A slot of the shared cluster that is migrating from its first master to the next one.
struct Open {
    cluster: Arc<Cluster>,
    nodes: Nodes,
    /// For calls that are refused at their time limit.
    hasty: Nodes,
    tag: String,
    slot: u16,
    source: Connection,
    target: Connection,
}

impl Open {
    /// Before it is opened.
    fn closed_yet(begins: &str) -> Self {
        let cluster = shared();
        let tag = cluster.tag(0, begins).unwrap();
        let connect = |get| {
            let builder = Pool::builder().get_timeout(get).io_timeout(LONG);
            builder.connect_nodes(&cluster.url()).unwrap()
        };
        Self {
            nodes: connect(LONG),
            hasty: connect(GET),
            slot: cluster.slot_of(&tag).unwrap(),
            source: cluster.nodes[0].connection().unwrap(),
            target: cluster.nodes[1].connection().unwrap(),
            tag,
            cluster,
        }
    }

    fn named(&self, name: &str) -> String {
        format!("{{{}}}:{name}", self.tag)
    }

    fn resharding(&self) -> Resharding<'_> {
        Resharding::new(&self.cluster, 0, 1).unwrap()
    }

    fn open(&self) {
        self.resharding().open(&[self.slot]).unwrap();
    }

    fn close(&self) {
        let mut resharding = self.resharding();
        resharding.move_keys(self.slot).unwrap();
        resharding.close(&[self.slot]).unwrap();
    }

    /// Opens the slot only at the source.
    fn open_at_the_source(&mut self) {
        let target = self.cluster.id(1);
        let told = redis::cmd("CLUSTER")
            .arg(("SETSLOT", self.slot, "MIGRATING", target))
            .clone();
        told.exec(&mut self.source).unwrap();
    }

    fn open_at_the_target(&mut self) {
        let source = self.cluster.id(0);
        let told = redis::cmd("CLUSTER")
            .arg(("SETSLOT", self.slot, "IMPORTING", source))
            .clone();
        told.exec(&mut self.target).unwrap();
    }

    fn acquire(&self, name: &str) -> Result<Option<Token>> {
        self.nodes
            .run(name, |conn| acquire_lock_with_timeout(conn, name, MS, LONG))
    }

    fn acquire_hastily(&self, name: &str) -> Result<Option<Token>> {
        self.hasty
            .run(name, |conn| acquire_lock_with_timeout(conn, name, MS, LONG))
    }

    fn release(&self, name: &str, token: &Token) -> Result<bool> {
        self.nodes.run(name, |conn| release_lock(conn, name, token))
    }
}

/// Restores the slot for other tests, also after a panic.
impl Drop for Open {
    fn drop(&mut self) {
        let slot = [self.slot];
        if self.cluster.master_of(&self.tag).unwrap_or(0) == 0 {
            let _ = self.resharding().run(&slot);
        }
        let back = Resharding::new(&self.cluster, 1, 0);
        let _ = back.and_then(|mut back| back.run(&slot));
    }
}

/// Refused in time, with one of these words.
fn is_refused<T: Debug>(words: &[&str], call: impl FnOnce() -> Result<T>) {
    let asked = Instant::now();
    let error = call().unwrap_err();
    let took = asked.elapsed();
    assert!(took < GET + SLACK, "{took:?}");
    assert!(
        matches!(&error, Error::Redis { source, .. } if source.code().is_some_and(|code| words.contains(&code))),
        "{error:?}"
    );
}

#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn a_free_lock_in_an_open_slot_is_refused_in_time_and_leaves_nothing() {
    let open = Open::closed_yet("free");
    let (lock, count) = (&*open.named("lock"), &*open.named("count"));
    open.open();
    is_refused(&["ASK"], || open.acquire_hastily(lock));
    is_refused(&["ASK"], || {
        open.hasty.run(lock, |conn| {
            with_lock(conn, lock, MS, LONG, |_, _| ()).map(|ran| ran.is_some())
        })
    });
    is_refused(&["ASK"], || {
        open.hasty.run(lock, |conn| {
            transaction_with_lock(conn, lock, MS, LONG, &[], |_, pipe| {
                pipe.set(count, 1);
                Ok(())
            })
        })
    });
    is_refused(&["ASK"], || {
        let (token, end) = (Token::random(), mutex::End::After(LONG));
        open.hasty
            .run(lock, |conn| mutex::try_acquire(conn, lock, &token, end))
    });
    open.close();
    assert!(open.acquire(lock).unwrap().is_some());
    assert!(
        !open
            .nodes
            .get_for_key(count)
            .unwrap()
            .exists::<_, bool>(count)
            .unwrap()
    );
}

/// The proof of any other hold than a mutex is a new key, which the source of the slot refuses.
#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn in_an_open_slot_a_commit_under_a_mutex_is_done_and_any_other_is_refused() {
    let mut open = Open::closed_yet("commit");
    let pool = Pool::builder().get_timeout(GET).io_timeout(GET);
    let nodes = pool.connect_nodes(&open.cluster.url()).unwrap();
    let locks = Locks::on_nodes(&nodes).with(Options::new().lease(12 * LONG));
    let [count, mutex, reentrant, read, write, permit] =
        ["count", "m", "e", "r", "w", "p"].map(|name| open.named(name));
    let () = open.source.set(&count, 0).unwrap();
    let held = [
        locks.lock(&mutex),
        locks.reentrant(&reentrant),
        locks.read(&read),
        locks.write(&write),
        locks.semaphore(&permit, 2),
    ]
    .map(|lock| lock.acquire(LONG).unwrap());
    open.open();
    for (number, lease) in held.into_iter().enumerate() {
        let commit = || lease.commit(|pipe| _ = pipe.incr(&count, 1));
        if number == 0 {
            commit().unwrap();
        } else {
            is_refused(&["TRYAGAIN"], commit);
        }
        lease.verify().unwrap();
        lease.release().unwrap();
    }
    assert_eq!(open.source.get::<_, u64>(&count).unwrap(), 1);
}

#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn a_half_open_slot_keeps_held_locks_and_blocks_nobody() {
    let mut open = Open::closed_yet("half");
    let (lock, free) = (&*open.named("lock"), &*open.named("free"));
    let token = open.acquire(lock).unwrap().unwrap();
    open.open_at_the_source();
    assert_eq!(open.acquire(lock).unwrap(), None);
    is_refused(&["ASK"], || open.acquire_hastily(free));
    let locks = Locks::on_nodes(&open.nodes);
    for lock in [locks.lock(free), locks.read(free)] {
        let asked = Instant::now();
        let error = lock.acquire(GET).unwrap_err();
        assert!(asked.elapsed() < 2 * GET + SLACK, "{:?}", asked.elapsed());
        assert!(matches!(error, Error::Redis { .. }), "{error:?}");
    }
    assert!(open.release(lock, &token).unwrap());
    open.resharding().call_off(&[open.slot]).unwrap();
    // The owner of the slot does not know, and serves it.
    open.open_at_the_target();
    let token = open.acquire(free).unwrap().unwrap();
    assert!(open.release(free, &token).unwrap());
    locks.lock(free).acquire(LONG).unwrap().release().unwrap();
    open.resharding().call_off(&[open.slot]).unwrap();
}
