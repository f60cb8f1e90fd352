//! The plain functions by `Nodes::run` on a slot that stays open between two masters, opened at both ends or at one.

mod apart;
mod writes;

use std::{
    fmt::Debug,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use leasehold::{
    Error, Locks, Nodes, Options, Result, Token, acquire_lock_with_timeout,
    recipes::{mutex, read_write, reentrant},
    release_lock, transaction_with_lock, with_lock,
};
use redis::{Commands, Connection, RedisResult, Value};

use crate::common::{
    Cluster, LONG, MS, Resharding, cluster::shared, resharding::send_key, slack::slack,
};

const GET: Duration = Duration::from_millis(500);

/// A slot of the shared cluster that is on its way from its first master to the next one.
struct Open {
    cluster: Arc<Cluster>,
    nodes: Nodes,
    /// For calls that are refused when their time is over.
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
            let builder = Nodes::builder().get_timeout(get).io_timeout(LONG);
            builder.connect(&cluster.url()).unwrap()
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

    /// One end alone is told of it.
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

    fn migrate(&mut self, key: &str) -> RedisResult<Value> {
        send_key(&mut self.source, self.cluster.nodes[1].port(), key)
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

/// Whatever becomes of the test, others find the slot where it was.
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

/// Refused by one of these words, in time.
fn is_refused<T: Debug>(words: &[&str], call: impl FnOnce() -> Result<T>) {
    let asked = Instant::now();
    let error = call().unwrap_err();
    let took = asked.elapsed();
    assert!(took < GET + slack(), "{took:?}");
    assert!(
        matches!(&error, Error::Redis { source, .. } if source.code().is_some_and(|code| words.contains(&code))),
        "{error:?}"
    );
}

/// A hold of each kind, renewed and then released, once by each key's script.
fn renewed_and_released(open: &Open, holds: &Holds) {
    let nodes = &open.nodes;
    let (name, token) = (&*holds.mutex, &holds.token);
    let [reentrant_, read, write] = ["reentrant", "read", "write"].map(|name| open.named(name));
    let (reentrant_, read, write) = (&*reentrant_, &*read, &*write);
    assert!(
        nodes
            .run(name, |conn| mutex::renew(conn, name, token, LONG))
            .unwrap()
    );
    let owner = &holds.owner;
    assert_eq!(
        nodes
            .run(reentrant_, |conn| reentrant::holds(conn, reentrant_, owner))
            .unwrap(),
        1
    );
    assert!(
        nodes
            .run(read, |conn| read_write::renew_read(conn, read, token, LONG))
            .unwrap()
    );
    assert!(
        nodes
            .run(write, |conn| read_write::renew_write(
                conn, write, token, LONG
            ))
            .unwrap()
    );
    assert!(
        nodes
            .run(name, |conn| mutex::release(conn, name, token))
            .unwrap()
    );
    nodes
        .run(reentrant_, |conn| {
            reentrant::release(conn, reentrant_, owner, token)
        })
        .unwrap();
    assert!(
        nodes
            .run(read, |conn| read_write::release_read(conn, read, token))
            .unwrap()
    );
    assert!(
        nodes
            .run(write, |conn| read_write::release_write(conn, write, token))
            .unwrap()
    );
}

struct Holds {
    mutex: String,
    token: Token,
    owner: leasehold::Owner,
}

impl Holds {
    fn of_each_kind(open: &Open) -> Self {
        let (token, owner) = (Token::random(), leasehold::Owner::current_thread());
        let [mutex_, reentrant_, read, write] =
            ["mutex", "reentrant", "read", "write"].map(|name| open.named(name));
        let nodes = &open.nodes;
        let end = mutex::End::After(LONG);
        let granted = nodes.run(&mutex_, |conn| {
            mutex::try_acquire(conn, &mutex_, &token, end)
        });
        assert!(granted.unwrap().is_some());
        let granted = nodes.run(&reentrant_, |conn| {
            reentrant::try_acquire(conn, &reentrant_, &owner, &token, LONG)
        });
        assert!(granted.unwrap().is_some());
        assert!(
            nodes
                .run(&read, |conn| read_write::try_acquire_read(
                    conn, &read, &token, LONG
                ))
                .unwrap()
        );
        let granted = nodes.run(&write, |conn| {
            read_write::try_acquire_write(conn, &write, &token, LONG)
        });
        assert!(granted.unwrap().is_some());
        Self {
            mutex: mutex_,
            token,
            owner,
        }
    }
}

#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long:: --skip larger_world"]
fn what_is_held_in_an_open_slot_is_renewed_and_released_at_the_end_where_it_is() {
    for has_gone in [false, true] {
        let mut open = Open::closed_yet(&format!("end-{has_gone}"));
        let lock = open.named("book");
        let (token, other) = (open.acquire(&lock).unwrap().unwrap(), Token::random());
        let holds = Holds::of_each_kind(&open);
        open.open();
        if has_gone {
            // A script that is not known there uses the `ASKING` up.
            redis::cmd("SCRIPT")
                .arg("FLUSH")
                .exec(&mut open.target)
                .unwrap();
            assert!(open.resharding().move_keys(open.slot).unwrap() >= 5);
        }
        renewed_and_released(&open, &holds);
        assert!(!open.release(&lock, &other).unwrap());
        assert!(open.release(&lock, &token).unwrap());
        let left: Vec<String> = open.target.keys(format!("*{}*book*", open.tag)).unwrap();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long:: --skip larger_world"]
fn a_free_lock_in_an_open_slot_is_refused_in_time_and_nothing_is_left() {
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

#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long:: --skip larger_world"]
fn a_slot_that_is_open_at_one_end_only_keeps_what_is_held_and_hangs_nobody() {
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
        assert!(asked.elapsed() < 2 * GET + slack(), "{:?}", asked.elapsed());
        assert!(matches!(error, Error::Redis { .. }), "{error:?}");
    }
    assert!(open.release(lock, &token).unwrap());
    open.resharding().call_off(&[open.slot]).unwrap();
    // The node that has the slot knows of nothing, and serves it.
    open.open_at_the_target();
    let token = open.acquire(free).unwrap().unwrap();
    assert!(open.release(free, &token).unwrap());
    locks.lock(free).acquire(LONG).unwrap().release().unwrap();
    open.resharding().call_off(&[open.slot]).unwrap();
}

/// What has one key alone is at one end, which the node that has the slot says by `ASK`: a reader, and a mutex without a companion.
#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long:: --skip larger_world"]
fn a_free_lock_of_one_key_is_granted_once_where_the_slot_goes_and_stays_held_there() {
    let open = Open::closed_yet("one-key");
    let name = open.named("lock");
    let process = || {
        let nodes = Nodes::connect(&open.cluster.url()).unwrap();
        Locks::on_nodes(&nodes).with(Options::new().lease(1_500 * MS).fencing(false))
    };
    let locks: Vec<_> = (0..4).map(|_| process().lock(&name)).collect();
    open.open();
    let granted: Vec<_> = thread::scope(|scope| {
        let tries: Vec<_> = locks
            .iter()
            .map(|lock| scope.spawn(|| lock.try_acquire().unwrap()))
            .collect();
        tries
            .into_iter()
            .filter_map(|tried| tried.join().unwrap())
            .collect()
    });
    let [lease] = &granted[..] else {
        panic!("{granted:?}");
    };
    let refused = || {
        locks
            .iter()
            .all(|lock| lock.try_acquire().unwrap().is_none())
    };
    assert!(refused());
    thread::sleep(1_900 * MS);
    lease.verify().unwrap();
    assert!(refused());
    open.close();
    lease.verify().unwrap();
    assert!(refused());
    for lease in granted {
        lease.release().unwrap();
    }
    locks[0].acquire(LONG).unwrap().release().unwrap();
}
