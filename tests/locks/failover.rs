//! An address that moves to another server while the old one becomes a replica.

use std::{
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use leasehold::{
    Error, LockSet, Locks, Options, Pool, Watchdog, acquire_lock_with_timeout, recipes::Hold,
    release_lock,
};
use redis::Commands;

use crate::{
    common::{
        LONG, MS, SLACK, Server,
        hold::{CALLS, comes_true, every_kind},
        tell,
        wait::{tracked_keys, unless_halted},
    },
    connections::{MINUTE, tracked},
};

/// An address whose server can be exchanged. Existing connections stay with the old server.
struct Address {
    port: u16,
    target: Arc<AtomicU16>,
}

impl Address {
    fn of(server: &Server) -> Self {
        let target = Arc::new(AtomicU16::new(server.port()));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let to = Arc::clone(&target);
        thread::spawn(move || {
            for client in listener.incoming().take(500) {
                let Ok(client) = client else { return };
                let to = to.load(Ordering::SeqCst);
                let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, to)) else {
                    continue;
                };
                let (to_server, to_client) =
                    (server.try_clone().unwrap(), client.try_clone().unwrap());
                thread::spawn(move || pass_on(client, to_server));
                thread::spawn(move || pass_on(server, to_client));
            }
        });
        Self { port, target }
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// From now on new connections reach the other server, and the old one is its replica.
    fn fail_over(&self, from: &Server, to: &Server) {
        let mut conn = from.connection().unwrap();
        let mut replica_of = redis::cmd("REPLICAOF");
        let replica_of = replica_of.arg("127.0.0.1").arg(to.port());
        replica_of.exec(&mut conn).unwrap();
        self.target.store(to.port(), Ordering::SeqCst);
    }

    /// The same without replication: the new server has none of the data.
    fn lead_to(&self, from: &Server, to: &Server) {
        self.lead_to_without(&[], from, to);
    }

    /// The old server has lost these keys when it becomes a replica.
    fn lead_to_without(&self, lost: &[&str], from: &Server, to: &Server) {
        let mut both = redis::pipe();
        for key in lost {
            both.del(*key);
        }
        both.cmd("REPLICAOF").arg(&["127.0.0.1", "1"]);
        both.exec(&mut from.connection().unwrap()).unwrap();
        self.target.store(to.port(), Ordering::SeqCst);
    }
}

fn pass_on(mut from: TcpStream, mut to: TcpStream) {
    let _ = std::io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Both);
}

/// Gives the new server all keys of the old one.
fn copy(from: &Server, to: &Server) {
    let (mut from, mut to) = (from.connection().unwrap(), to.connection().unwrap());
    for key in from.keys::<_, Vec<String>>("*").unwrap() {
        let left: i64 = from.pttl(&key).unwrap();
        let value: Vec<u8> = redis::cmd("DUMP").arg(&key).query(&mut from).unwrap();
        let mut restore = redis::cmd("RESTORE");
        let restore = restore.arg(&key).arg(left.max(0)).arg(value);
        restore.exec(&mut to).unwrap();
    }
}

fn idle_connections(pool: &Pool) {
    drop((pool.get().unwrap(), pool.get().unwrap()));
}

/// All calls that write, for each kind: each is the first that meets the old master.
#[test]
fn the_first_write_after_a_failover_reaches_the_new_master_before_it_returns() {
    unless_halted(|| {
        let (old, new) = (Server::start().unwrap(), Server::start().unwrap());
        for (name, call) in CALLS.into_iter().filter(|(name, _)| *name != "verify") {
            // The new master may have granted the lock: then the old one has never had it.
            for (kind, is_behind) in (0..6).flat_map(|kind| [(kind, false), (kind, true)]) {
                let address = Address::of(&old);
                let pool = Pool::connect(&address.url()).unwrap();
                let locks = Locks::new(&pool)
                    .unwrap()
                    .with(Options::new().lease(MINUTE));
                idle_connections(&pool);
                let [lock, other] = [&locks, &Locks::connect(&new.url()).unwrap()]
                    .map(|locks| every_kind(locks)[kind].clone());
                let lease = if is_behind {
                    let of_the_old = [pool.get().unwrap(), pool.get().unwrap()];
                    address.lead_to(&old, &new);
                    let lease = lock.acquire(LONG).unwrap();
                    drop(of_the_old);
                    lease
                } else {
                    let lease = lock.acquire(LONG).unwrap();
                    copy(&old, &new);
                    address.lead_to(&old, &new);
                    lease
                };
                let (called, _) = call(lease);
                let name = format!("{name} {kind} {is_behind}");
                assert!(called.is_ok(), "{name} {called:?}");
                let mut conn = new.connection().unwrap();
                let writes = !name.starts_with("re");
                assert_eq!(conn.exists::<_, bool>("written").unwrap(), writes, "{name}");
                // Released by the call, or by the drop of the lease after it.
                assert!(other.try_acquire().unwrap().is_some(), "{name}");
                drop(locks);
                for server in [&old, &new] {
                    let mut conn = server.connection().unwrap();
                    tell(&mut conn, "REPLICAOF NO ONE");
                    redis::cmd("FLUSHALL").exec(&mut conn).unwrap();
                }
            }
        }
    });
}

/// It tells nobody of a change.
fn untold() -> Server {
    let server = Server::start().unwrap();
    tell(
        &mut server.connection().unwrap(),
        "ACL SETUSER default resetchannels",
    );
    server
}

/// The connections to the old master have not met it since, and it has never had the locks.
#[test]
fn a_set_commits_on_the_new_master_while_the_old_one_is_behind() {
    for kind in 0..6 {
        let (old, new) = (Server::start().unwrap(), Server::start().unwrap());
        let address = Address::of(&old);
        let pool = Pool::connect(&address.url()).unwrap();
        let locks = Locks::new(&pool)
            .unwrap()
            .with(Options::new().lease(MINUTE));
        let of_the_old = [pool.get().unwrap(), pool.get().unwrap()];
        address.lead_to(&old, &new);
        let set = LockSet::of([every_kind(&locks)[kind].clone(), locks.lock("z")]);
        let leases = set.acquire(LONG).unwrap();
        drop(of_the_old);
        let committed = leases.commit(|writes| _ = writes.set("done", 1));
        assert!(committed.is_ok(), "{kind} {committed:?}");
        assert!(new.connection().unwrap().exists::<_, bool>("done").unwrap());
        leases.release().unwrap();
    }
}

/// The old master has become a replica before the address leads to the new one. In the last case
/// it lacks the first lock, and so answers that call without a refusal.
#[test]
fn a_release_goes_on_until_the_address_leads_to_the_new_master() {
    for (names, lost) in [
        (&["a"][..], &[][..]),
        (&["a", "b"], &[]),
        (&["a", "b"], &["lock:a"]),
    ] {
        let (old, new) = (untold(), Server::start().unwrap());
        let address = Address::of(&old);
        let locks = Locks::connect(&address.url())
            .unwrap()
            .with(Options::new().lease(MINUTE));
        let leases = locks.all_of(names).acquire(LONG).unwrap();
        copy(&old, &new);
        address.lead_to_without(lost, &old, &old);
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(300 * MS);
                address.target.store(new.port(), Ordering::SeqCst);
            });
            leases.release().unwrap();
        });
        assert!(!has_lock(&new), "{names:?}");
    }
}

/// True once the time left of the lock has grown.
fn is_renewed_on(server: &Server) -> bool {
    let (mut conn, mut left) = (server.connection().unwrap(), i64::MAX);
    comes_true(|| {
        let now = conn.pttl("lock:a").unwrap();
        std::mem::replace(&mut left, now) < now
    })
}

/// A replica answers reads, so the connections of the pool do not meet its refusal.
#[test]
fn what_a_watchdog_learns_of_a_failover_holds_for_the_pool_too() {
    unless_halted(|| {
        let lease = 1_500 * MS;
        for is_plain in [false, true] {
            let (old, new) = (Server::start().unwrap(), Server::start().unwrap());
            let address = Address::of(&old);
            let pool = Pool::connect(&address.url()).unwrap();
            let (locks, watchdog) = (Locks::new(&pool).unwrap(), Watchdog::new(&pool).unwrap());
            idle_connections(&pool);
            let (held, kept) = if is_plain {
                let acquired =
                    acquire_lock_with_timeout(&mut pool.get().unwrap(), "a", MS, lease).unwrap();
                let hold = Hold::mutex("a", &acquired.unwrap()).unwrap();
                (None, Some(watchdog.keep(&hold, lease).unwrap()))
            } else {
                let lock = locks.lock("a").with(Options::new().lease(lease));
                (Some(lock.acquire(LONG).unwrap()), None)
            };
            // Now the watchdog has a connection to the old server.
            assert!(is_renewed_on(&old), "{held:?} {kept:?}");
            copy(&old, &new);
            address.lead_to(&old, &new);
            assert!(is_renewed_on(&new), "{held:?} {kept:?}");
            // A plain read on the first connection that is lent.
            let () = new.connection().unwrap().set("here", 1).unwrap();
            let is_there = pool.get().unwrap().exists::<_, bool>("here").unwrap();
            assert!(is_there, "{held:?} {kept:?}");
        }
    });
}

/// In a write with a renewal that is refused.
#[test]
fn a_replica_that_lacks_a_lock_does_not_end_its_lease() {
    let (old, new) = (untold(), Server::start().unwrap());
    let address = Address::of(&old);
    let locks = Locks::connect(&address.url())
        .unwrap()
        .with(Options::new().lease(3_000 * MS));
    let leases = locks.all_of(["a", "b"]).acquire(LONG).unwrap();
    assert!(is_renewed_on(&old));
    copy(&old, &new);
    address.lead_to_without(&["lock:a"], &old, &new);
    assert!(is_renewed_on(&new));
    leases.release().unwrap();
}

fn has_lock(server: &Server) -> bool {
    server.connection().unwrap().exists("lock:a").unwrap()
}

/// The old master may go on answering what its data say, here that the locks are held.
#[test]
fn an_acquire_that_meets_the_old_master_asks_the_new_one() {
    unless_halted(|| {
        for (serves, is_held) in [("yes", false), ("yes", true), ("no", true)] {
            let (old, new) = (Server::start().unwrap(), Server::start().unwrap());
            let mut stale = redis::cmd("CONFIG");
            stale.arg(&["SET", "replica-serve-stale-data", serves]);
            stale.exec(&mut old.connection().unwrap()).unwrap();
            let address = Address::of(&old);
            let pools = [(); 5].map(|()| Pool::connect(&address.url()).unwrap());
            pools.iter().for_each(idle_connections);
            let of_another = Locks::connect(&old.url()).unwrap();
            let held = every_kind(&of_another).map(|lock| lock.acquire(LONG).unwrap());
            let held = is_held.then_some(held);
            address.lead_to(&old, &new);
            for (kind, pool) in pools.iter().enumerate() {
                let lock = &every_kind(&Locks::new(pool).unwrap())[kind];
                let what = format!("{} {serves} {is_held}", lock.name());
                let lease = lock.try_acquire().unwrap();
                assert!(lease.is_some_and(|it| it.release().is_ok()), "{what}");
                let lease = lock.acquire(LONG);
                assert!(lease.is_ok_and(|it| it.verify().is_ok()), "{what}");
            }
            drop(held);
        }
    });
}

#[test]
fn after_a_failover_a_loss_is_reported_before_the_next_renewal() {
    unless_halted(|| {
        let (old, new) = (Server::start().unwrap(), Server::start().unwrap());
        let address = Address::of(&old);
        let locks = crate::connect(&address.url());
        let long = Options::new().lease(MINUTE);
        let lease = locks.lock("a").with(long).acquire(LONG).unwrap();
        // The watchdog has read it.
        let mut conn = old.connection().unwrap();
        assert!(comes_true(|| tracked_keys(&mut conn).unwrap() > 0));
        // The new master does not have the lock.
        address.lead_to(&old, &new);
        drop(locks.lock("b").try_acquire().unwrap());
        assert!(lease.lost().wait_for(Duration::from_secs(5)));
    });
}

/// The listener's client id on the old server belongs to a stranger on the new one.
#[test]
fn after_a_failover_a_waiter_is_notified_by_the_new_master() {
    unless_halted(|| {
        let (old, new) = (Server::start().unwrap(), Server::start().unwrap());
        let _strangers: Vec<_> = (0..40).map(|_| new.connection().unwrap()).collect();
        let address = Address::of(&old);
        let locks = crate::connect(&address.url());
        let long = Options::new().lease(MINUTE);
        let hold = |server: &Server| {
            let lock = crate::connect(&server.url()).lock("a").with(long.clone());
            lock.acquire(LONG).unwrap()
        };
        let (_on_the_old, on_the_new) = (hold(&old), hold(&new));
        thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let acquired = locks.lock("a").acquire(LONG / 2);
                (acquired.map(drop), Instant::now())
            });
            assert!(comes_true(|| locks
                .lock("a")
                .inspect()
                .unwrap()
                .waiting_here()
                == 1));
            address.lead_to(&old, &new);
            drop(locks.lock("b").try_acquire().unwrap());
            thread::sleep(500 * MS);
            let released = Instant::now();
            on_the_new.release().unwrap();
            let (acquired, at) = waiter.join().unwrap();
            acquired.unwrap();
            let took = at.duration_since(released);
            assert!(took < 1_750 * MS + SLACK, "{took:?}");
        });
    });
}

/// The pool cannot see the errors of a plain function on a connection that it lent.
#[test]
fn after_a_failover_a_plain_function_reaches_the_new_master_on_the_next_connection() {
    unless_halted(|| {
        let (old, new) = (Server::start().unwrap(), Server::start().unwrap());
        let address = Address::of(&old);
        let pool = Pool::connect(&address.url()).unwrap();
        let both = (pool.get().unwrap(), pool.get().unwrap());
        drop(both);
        address.fail_over(&old, &new);
        let acquire = || {
            let mut conn = pool.get().unwrap();
            acquire_lock_with_timeout(&mut conn, "a", MS, LONG)
        };
        assert!(matches!(acquire(), Err(Error::Redis { .. })));
        let token = acquire().unwrap().unwrap();
        let mut conn = pool.get().unwrap();
        assert!(release_lock(&mut conn, "a", &token).unwrap());
    });
}

#[test]
fn a_waiter_gets_the_lock_from_the_new_master_after_a_failover() {
    unless_halted(|| {
        let (old, new) = (Server::start().unwrap(), Server::start().unwrap());
        let address = Address::of(&old);
        let locks = Locks::connect(&address.url()).unwrap();
        let () = old
            .connection()
            .unwrap()
            .set_ex("lock:a", "somebody", 60)
            .unwrap();
        thread::scope(|scope| {
            let (got, has) = mpsc::channel();
            let locks = &locks;
            scope.spawn(move || got.send(locks.lock("a").acquire(LONG)));
            let mut conn = old.connection().unwrap();
            assert!(comes_true(|| tracked(&mut conn) > 0));
            thread::sleep(100 * MS);
            address.fail_over(&old, &new);
            // A replica keeps answering but sends no notifications. The first refused call finds
            // out for all.
            drop(locks.lock("b").try_acquire().unwrap());
            let lease = has.recv_timeout(Duration::from_secs(5)).unwrap().unwrap();
            assert!(has_lock(&new));
            lease.release().unwrap();
        });
    });
}
