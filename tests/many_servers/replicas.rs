//! Locks that count only once replicas have them.

mod kept;
mod plain;
mod unconfirmed;

use std::{
    thread,
    time::{Duration, Instant},
};

use leasehold::{
    Error, Lease, LockSet, Locks, LostReason, Once, Options, Owner, Pool, RenewalState,
};
use redis::{Commands, Connection};

use crate::common::{
    Gate, LONG, MS, Proxy, SLACK, Sentinels, Server,
    cluster::shared,
    hold::{comes_true, every_kind},
    sentinels::{Plan, in_step},
    wait::{calls, in_time},
};

/// A master with replicas that replicate through a gate.
struct Replicated {
    master: Server,
    replicas: Vec<Server>,
    gate: Gate,
}

impl Replicated {
    fn start(replicas: usize) -> Self {
        let master = Server::start_with(&["--repl-diskless-sync-delay", "0"]).unwrap();
        let gate = Gate::before(master.port()).unwrap();
        let replicas: Vec<_> = (0..replicas)
            .map(|_| {
                let replica = Server::start().unwrap();
                let mut of = redis::cmd("REPLICAOF");
                of.arg("127.0.0.1").arg(gate.port());
                of.exec(&mut replica.connection().unwrap()).unwrap();
                replica
            })
            .collect();
        let group = Self {
            master,
            replicas,
            gate,
        };
        group.wait_until_in_step();
        group
    }

    fn wait_until_in_step(&self) {
        let mut conn = self.conn();
        assert!(comes_true(
            || in_step(&mut conn).unwrap() == self.replicas.len()
        ));
    }

    fn conn(&self) -> Connection {
        self.master.connection().unwrap()
    }

    fn locks(&self, count: u32) -> Locks {
        Locks::connect(&self.master.url())
            .unwrap()
            .with(Options::new().replicas(count, 100 * MS))
    }
}

fn exists(conn: &mut Connection, name: &str) -> bool {
    conn.exists(format!("lock:{name}")).unwrap()
}

fn is_too_few<T>(answer: &leasehold::Result<T>) -> bool {
    matches!(
        answer,
        Err(Error::TooFewReplicas {
            wanted: 1,
            had: 0,
            ..
        })
    )
}

#[test]
fn a_granted_lock_is_on_enough_replicas() {
    let group = Replicated::start(2);
    let mut replicas: Vec<_> = group
        .replicas
        .iter()
        .map(|server| server.connection().unwrap())
        .collect();
    for lock in every_kind(&group.locks(2)) {
        for _ in 0..20 {
            let lease = lock.acquire(LONG).unwrap();
            for replica in &mut replicas {
                assert!(exists(replica, lock.name()), "{}", lock.name());
            }
            lease.release().unwrap();
        }
    }
    // One more than exist.
    let three = Options::new().replicas(3, 500 * MS);
    let lock = group.locks(3).lock("a").with(three);
    // Both may be late.
    assert!(comes_true(|| matches!(
        lock.try_acquire(),
        Err(Error::TooFewReplicas {
            wanted: 3,
            had: 2,
            ..
        })
    )));
}

#[test]
fn a_wait_for_replicas_keeps_its_token_until_its_deadline() {
    let group = Replicated::start(1);
    let mut conn = group.conn();
    let locks = group.locks(1);
    drop(locks.lock("warm").acquire(LONG).unwrap());
    group.gate.shut_for_replicas();
    let others = Locks::connect(&group.master.url()).unwrap();
    let asked = Instant::now();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| locks.lock("a").acquire(4_000 * MS).map(drop));
        assert!(comes_true(|| exists(&mut conn, "a")));
        let token: String = conn.get("lock:a").unwrap();
        // Retried, always with the same token.
        while asked.elapsed() < 700 * MS {
            assert_eq!(
                conn.get::<_, Option<String>>("lock:a").unwrap().as_ref(),
                Some(&token)
            );
            assert!(others.lock("a").try_acquire().unwrap().is_none());
            thread::sleep(20 * MS);
        }
        let answer = waiting.join().unwrap();
        assert!(is_too_few(&answer), "{answer:?}");
    });
    assert!(asked.elapsed() >= 4_000 * MS && asked.elapsed() < 5_500 * MS + SLACK);
}

/// The caller may exit when it gets the error.
#[test]
fn a_lock_on_too_few_replicas_is_released_before_the_call_returns() {
    let group = Replicated::start(1);
    let mut conn = group.conn();
    group.gate.shut_for_replicas();
    for lock in every_kind(&group.locks(1)) {
        for wait in [Duration::ZERO, 200 * MS] {
            let asked = Instant::now();
            let answer = lock.acquire(wait);
            assert!(asked.elapsed() < wait + 1_000 * MS + SLACK);
            let is_left = exists(&mut conn, lock.name());
            assert!(is_too_few(&answer), "{answer:?}");
            assert!(!is_left, "{} {wait:?}", lock.name());
        }
    }
}

#[test]
fn an_adoption_that_too_few_replicas_confirm_leaves_the_hold() {
    let group = Replicated::start(1);
    let owner = Options::new().owner(Owner::new("we").unwrap());
    let locks = group.locks(1).with(owner);
    let tokens = every_kind(&locks).map(|lock| lock.acquire(LONG).unwrap().detach().0);
    group.gate.shut_for_replicas();
    for (lock, token) in every_kind(&locks).iter().zip(&tokens) {
        let answer = lock.adopt(token);
        assert!(is_too_few(&answer), "{answer:?}");
    }
    group.gate.open();
    group.wait_until_in_step();
    for (lock, token) in every_kind(&locks).iter().zip(&tokens) {
        lock.adopt(token).unwrap().release().unwrap();
    }
}

#[test]
fn a_mark_that_no_replica_has_is_no_marked_run() {
    let group = Replicated::start(1);
    let lock = group
        .locks(1)
        .lock("a")
        .with(Options::new().lease(2_000 * MS));
    let once = lock.run_once(LONG, LONG, |_| {
        group.gate.shut_for_replicas();
        Ok::<_, Error>(())
    });
    assert!(matches!(once, Ok(Once::Ran(ran)) if ran.released.is_err()));
}

#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn an_unconfirmed_expiry_does_not_count() {
    let group = Replicated::start(1);
    let locks = group.locks(1).with(Options::new().lease(4_000 * MS));
    let lease = locks.lock("a").acquire(LONG).unwrap();
    let alone = locks
        .lock("alone")
        .with(Options::new().replicas(0, MS))
        .acquire(LONG)
        .unwrap();
    thread::sleep(1_500 * MS);
    assert!(lease.is_held() && lease.state() == RenewalState::Held);
    group.gate.shut_for_replicas();
    let shut = Instant::now();
    assert!(comes_true(|| lease.state() == RenewalState::Unknown));
    let why = lease.failure().unwrap();
    assert!(
        matches!(
            why,
            Error::TooFewReplicas {
                wanted: 1,
                had: 0,
                ..
            }
        ),
        "{why:?}"
    );
    assert!(is_too_few(&lease.renew(LONG)) && lease.remaining() < 4_000 * MS);
    // They return in time.
    group.gate.open();
    assert!(comes_true(|| lease.state() == RenewalState::Held));
    assert!(lease.is_held() && shut.elapsed() < 4_000 * MS + SLACK);
    // They do not.
    group.gate.shut_for_replicas();
    let shut = Instant::now();
    assert!(comes_true(|| !lease.is_held()));
    let lasted = shut.elapsed();
    assert!(lasted < 4_000 * MS + SLACK, "{lasted:?}");
    assert_eq!(lease.state(), RenewalState::Lost(LostReason::Ended));
    assert!(alone.is_held() && alone.state() == RenewalState::Held);
}

#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn waiting_for_replicas_adds_no_round_trip_and_one_command_a_batch() {
    let group = Replicated::start(1);
    let proxy = Proxy::in_front_of(&group.master).unwrap();
    let locks = Locks::connect(&proxy.url()).unwrap();
    let confirmed = locks.with(Options::new().replicas(1, 100 * MS).lease(LONG));
    // Long enough for all connections to open.
    let warm = confirmed.lock("warm").acquire(LONG).unwrap();
    thread::sleep(500 * MS);
    drop(warm);
    let (lease, mut traffic) = proxy.traffic_of(|| confirmed.lock("a").acquire(LONG).unwrap());
    // Unless the machine is so busy that one opens meanwhile.
    let all = traffic.commands.len();
    (traffic.commands).retain(|command| command == "EVALSHA" || command == "WAIT");
    assert_eq!(traffic.commands, ["EVALSHA", "WAIT"]);
    assert!(
        traffic.round_trips == 1 || all > 2,
        "{} round trips",
        traffic.round_trips
    );
    let has_waited = |run: &dyn Fn()| {
        let ((), traffic) = proxy.traffic_of(run);
        traffic.commands.iter().any(|command| command == "WAIT")
    };
    assert!(!has_waited(&|| lease.verify().unwrap()));
    assert!(has_waited(&|| lease.renew(LONG).unwrap()));
    // A release does not wait for replicas. Measured while no other lease has a renewal due.
    let ((), traffic) = proxy.traffic_of(|| lease.release().unwrap());
    let waits = |command: &String| command == "WAIT";
    assert!(
        !traffic.commands.iter().any(waits),
        "{:?}",
        traffic.commands
    );
    // Leases that end together are renewed together.
    let short = confirmed.with(Options::new().lease(1_500 * MS));
    let kept: Vec<_> = (0..50)
        .map(|n| short.lock(&n.to_string()).acquire(LONG).unwrap())
        .collect();
    let mut conn = group.conn();
    let before = (
        calls(&mut conn, "wait").unwrap(),
        calls(&mut conn, "evalsha").unwrap(),
    );
    thread::sleep(3_000 * MS);
    let waits = calls(&mut conn, "wait").unwrap() - before.0;
    let renewals = calls(&mut conn, "evalsha").unwrap() - before.1;
    assert!(
        waits > 0 && renewals >= 20 * waits,
        "{waits} WAITs for {renewals} renewals"
    );
    assert!(kept.iter().all(Lease::is_held));
}

#[test]
fn the_default_clock_skew_is_a_tenth_of_a_short_lease() {
    let cluster = shared();
    let locks = Locks::connect(&cluster.url()).unwrap();
    let short = Options::new().lease(300 * MS).renewal(false);
    let lock = locks.lock("short").with(short);
    // One quick answer is enough.
    assert!(comes_true(|| {
        let left = lock.acquire(LONG).unwrap().remaining();
        assert!(left <= 270 * MS, "{left:?}");
        left > 255 * MS
    }));
}

/// The loss that replicas prevent.
#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn only_required_replicas_keep_a_lock_through_a_crash() {
    let plan = Plan {
        gated: true,
        ..Plan::default()
    };
    let mut group = Sentinels::planned(plan).unwrap();
    let (first, second) = (
        Locks::connect(&group.url()).unwrap(),
        Locks::connect(&group.url()).unwrap(),
    );
    let confirmed = Options::new().replicas(1, 100 * MS);
    let kept = first
        .lock("kept")
        .with(confirmed.clone())
        .acquire(LONG)
        .unwrap();
    group.gates[0].shut_for_replicas();
    let lost = first.lock("lost").acquire(LONG).unwrap();
    assert!(is_too_few(
        &first.lock("refused").with(confirmed).try_acquire()
    ));
    group.servers[0].kill().unwrap();
    let next = second.lock("lost").acquire(LONG).unwrap();
    assert!(next.is_held());
    assert!(second.lock("kept").try_acquire().unwrap().is_none());
    assert!(kept.is_held());
    // Its holder is notified as soon as the new master answers.
    assert!(comes_true(|| !lost.is_held()));
    assert!(second.lock("refused").try_acquire().unwrap().is_some());
}

/// The locks are far away. If each asked alone, the last would get its lock after 600 ms.
#[test]
fn waiters_for_many_locks_ask_together_and_wait_for_their_replicas_once() {
    const LOCKS: usize = 12;
    let group = Replicated::start(1);
    let proxy = Proxy::in_front_of(&group.master).unwrap();
    let holder = group.locks(0);
    let far = Locks::connect(&proxy.url()).unwrap();
    let far = far.with(Options::new().replicas(1, 400 * MS));
    proxy.delay_each(50 * MS);
    let names: Vec<_> = (0..LOCKS).map(|number| number.to_string()).collect();
    in_time(400 * MS, || {
        let acquired = |name| holder.lock(name).acquire(LONG).unwrap();
        let held: Vec<_> = names.iter().map(|name| acquired(name)).collect();
        thread::scope(|scope| {
            let waiters = names.iter().map(|name| {
                let (lock, waiting) = (far.lock(name), far.lock(name));
                let waiter = scope.spawn(move || lock.acquire(LONG).unwrap());
                assert!(comes_true(|| waiting.inspect().unwrap().waiting_here() == 1));
                waiter
            });
            let waiters: Vec<_> = waiters.collect();
            let released = Instant::now();
            drop(held);
            let leases: Vec<_> = waiters.into_iter().map(|it| it.join().unwrap()).collect();
            let took = released.elapsed();
            drop(leases);
            took
        })
    });
}
