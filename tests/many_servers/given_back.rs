//! Releases and renewals that a master has answered, and of which the next one does not know.

use std::{sync::Arc, thread, time::Duration};

use leasehold::{
    Error, Keep, Lease, Locks, Once, Options, Pool, Renewal, Token, Watchdog,
    acquire_lock_with_timeout, recipes::simple::Hold,
};
use redis::{Commands, Connection};

use super::{
    connect,
    lying::{Said, url},
};
use crate::common::{
    Cluster, LONG, MS, Proxy, Sentinels, Server,
    hold::{comes_true, every_kind},
    sentinels::{Plan, in_step},
    server::signal,
    wait::at_once,
};

/// What was not given back again is there for longer than any test.
const LEASE: Duration = Duration::from_secs(600);
const NODE_TIMEOUT: Duration = Duration::from_millis(500);

/// A group of which only clients reach the master once its gate is shut.
fn group() -> Sentinels {
    let plan = Plan {
        gated: true,
        ..Plan::default()
    };
    Sentinels::planned(plan).unwrap()
}

fn held(locks: &Locks) -> Vec<Lease> {
    let locks = locks.with(Options::new().lease(LEASE));
    let all = every_kind(&locks);
    all.iter().map(|lock| lock.acquire(LONG).unwrap()).collect()
}

fn wait_until_replicated(group: &Sentinels) {
    let mut conn = group.servers[0].connection().unwrap();
    assert!(comes_true(|| in_step(&mut conn).unwrap() == 1));
}

fn is_there(conn: &mut Connection, name: &str) -> bool {
    conn.exists(format!("lock:{name}")).unwrap()
}

fn names(leases: &[Lease]) -> Vec<String> {
    leases.iter().map(|lease| lease.name().to_owned()).collect()
}

/// The locks are still held on the next master when it takes over, and are free soon after.
fn assert_freed_after_a_crash(group: &mut Sentinels, names: &[String]) {
    group.servers[0].kill().unwrap();
    assert_eq!(group.promoted_after(0).unwrap(), 1);
    let mut next = group.servers[1].connection().unwrap();
    assert!(names.iter().all(|name| is_there(&mut next, name)));
    for name in names {
        assert!(comes_true(|| !is_there(&mut next, name)), "{name}");
    }
}

#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long:: --skip larger_world"]
fn what_a_crash_has_taken_the_release_of_is_free_on_the_new_master_though_nobody_asks() {
    let mut group = group();
    let locks = connect(&group.url());
    let leases = held(&locks);
    let names = names(&leases);
    wait_until_replicated(&group);
    group.gates[0].shut_for_replicas();
    for lease in leases {
        lease.release().unwrap();
    }
    assert_freed_after_a_crash(&mut group, &names);
}

/// The watchdog renews by itself after a third of this, which is longer than any test.
const SHORT: Duration = Duration::from_secs(60);

/// How long each of these lasts there. A lock that is there has an end.
fn left(conn: &mut Connection, names: &[String]) -> Vec<Duration> {
    let left = |name| conn.pttl::<_, i64>(format!("lock:{name}")).unwrap();
    let left = names.iter().map(left);
    left.map(|ms| u64::try_from(ms).map_or(Duration::ZERO, Duration::from_millis))
        .collect()
}

/// Nearly as long as it has renewed itself for.
fn is_long(left: &Duration) -> bool {
    *left > LEASE * 9 / 10 && *left <= LEASE
}

#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long:: --skip larger_world"]
fn what_a_crash_has_taken_the_renewal_of_is_renewed_on_the_new_master_though_nobody_asks() {
    let mut group = group();
    let locks = connect(&group.url()).with(Options::new().lease(SHORT));
    let leases = every_kind(&locks).map(|lock| lock.acquire(LONG).unwrap());
    let names = names(&leases);
    wait_until_replicated(&group);
    group.gates[0].shut_for_replicas();
    for lease in &leases {
        lease.renew(LEASE).unwrap();
    }
    group.servers[0].kill().unwrap();
    assert_eq!(group.promoted_after(0).unwrap(), 1);
    let mut next = group.servers[1].connection().unwrap();
    let at_first = left(&mut next, &names);
    assert!(at_first.iter().all(|left| *left <= SHORT), "{at_first:?}");
    let are_long = comes_true(|| left(&mut next, &names).iter().all(is_long));
    assert!(are_long, "{:?}", left(&mut next, &names));
    for lease in leases {
        assert!(lease.is_held() && lease.remaining() <= LEASE);
        lease.release().unwrap();
    }
}

/// By one that renews several locks: with the next renewal of any of them.
#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long:: --skip larger_world"]
fn a_watchdog_that_meets_a_new_master_renews_there_what_the_one_before_was_asked_to_renew() {
    let mut group = group();
    let pool = Pool::connect(&group.url()).unwrap();
    let watchdog = Watchdog::start(&pool).unwrap();
    let mut conn = pool.get().unwrap();
    let mut take = |name, lease| {
        let token: Token = acquire_lock_with_timeout(&mut conn, name, MS, lease)
            .unwrap()
            .unwrap();
        Hold::new(name, &token).unwrap()
    };
    // Renewed each four seconds; until a replica is promoted it lasts.
    let often = take("often", SHORT / 5);
    let seldom = take("seldom", SHORT);
    let often: Renewal = watchdog.keep_with(&often, Keep::lease(SHORT / 5)).unwrap();
    wait_until_replicated(&group);
    group.gates[0].shut_for_replicas();
    let seldom = watchdog.keep_with(&seldom, Keep::lease(LEASE)).unwrap();
    group.servers[0].kill().unwrap();
    assert_eq!(group.promoted_after(0).unwrap(), 1);
    let mut next = group.servers[1].connection().unwrap();
    let names = [String::from("seldom")];
    let at_first = left(&mut next, &names);
    assert!(at_first[0] <= SHORT, "{at_first:?}");
    assert!(comes_true(|| left(&mut next, &names).iter().all(is_long)));
    assert!(often.is_held() && seldom.is_held());
}

#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long:: --skip larger_world"]
fn what_a_deposed_master_was_given_back_is_free_on_the_new_one() {
    let group = Sentinels::start().unwrap();
    let locks = connect(&group.url());
    let leases = held(&locks);
    let names = names(&leases);
    wait_until_replicated(&group);
    assert_eq!(group.fail_over().unwrap(), 1);
    let mut next = group.servers[1].connection().unwrap();
    assert!(names.iter().all(|name| is_there(&mut next, name)));
    for lease in leases {
        lease.release().unwrap();
    }
    for name in &names {
        assert!(comes_true(|| !is_there(&mut next, name)), "{name}");
    }
}

/// The master is silent for less time than the sentinels take for its death.
#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long:: --skip larger_world"]
fn what_was_released_without_an_answer_and_again_is_free_on_the_next_master() {
    let plan = Plan {
        gated: true,
        down_after: Duration::from_secs(4),
        ..Plan::default()
    };
    let mut group = Sentinels::planned(plan).unwrap();
    let pool = Pool::builder().io_timeout(500 * MS).connect(&group.url());
    let pool = pool.unwrap();
    let locks = Locks::new(&pool).unwrap();
    let leases = held(&locks);
    let committed = locks.lock("committed").with(Options::new().lease(LEASE));
    let committed = committed.acquire(LONG).unwrap();
    let names = [names(&leases), vec![committed.name().to_owned()]].concat();
    // A connection for each, so that each release is sent.
    let open: Vec<_> = names.iter().map(|_| pool.get().unwrap()).collect();
    drop(open);
    wait_until_replicated(&group);
    let mut master = group.servers[0].connection().unwrap();
    group.servers[0].freeze().unwrap();
    thread::scope(|scope| {
        // The commit gets no answer to its first question, and gives the lock back.
        scope.spawn(|| {
            let done = committed.commit_and_release(|pipe| {
                pipe.set("data", 1);
            });
            assert!(done.is_err());
        });
        for lease in leases {
            scope.spawn(|| {
                let released = lease.release();
                let is_unknown = matches!(released, Err(Error::Unknown { .. }));
                assert!(is_unknown, "{released:?}");
            });
        }
    });
    group.gates[0].shut_for_replicas();
    group.servers[0].thaw().unwrap();
    wait_until_the_watchdog_has_sent_all(&locks);
    assert!(names.iter().all(|name| !is_there(&mut master, name)));
    assert_freed_after_a_crash(&mut group, &names);
}

/// What it gives back goes before a renewal, or with it.
fn wait_until_the_watchdog_has_sent_all(locks: &Locks) {
    let lock = locks.lock("renewed").with(Options::new().lease(3_000 * MS));
    let lease = lock.acquire(LONG).unwrap();
    let mut before = lease.remaining();
    assert!(comes_true(|| {
        let now = lease.remaining();
        let has_grown = now > before;
        before = now;
        has_grown
    }));
}

/// While this lock is held on the one, every key of that one is on the other.
fn copy_while_held(name: &str, from: &Server, to: &Server) {
    let (mut from, mut to) = (from.connection().unwrap(), to.connection().unwrap());
    if !is_there(&mut from, name) {
        return;
    }
    for key in from.keys::<_, Vec<String>>("*").unwrap() {
        let value: Vec<u8> = redis::cmd("DUMP").arg(&key).query(&mut from).unwrap();
        let left: i64 = from.pttl(&key).unwrap();
        let mut restore = redis::cmd("RESTORE");
        restore.arg(&key).arg(left.max(0)).arg(value).arg("REPLACE");
        restore.exec(&mut to).unwrap();
    }
}

/// The next master is like a replica that has got nothing of the release.
#[test]
fn what_too_few_replicas_had_is_free_on_the_next_master_that_has_it_after_all() {
    at_once(0..4, |kind| {
        let before = Arc::new(Server::start().unwrap());
        let next = Arc::new(Server::start().unwrap());
        let proxy = Proxy::in_front_of(&before).unwrap();
        let said = Said::default();
        said.now(proxy.port(), 1);
        let sentinel = said.by_a_sentinel();
        let options = Options::new().lease(LEASE).replicas(1, 50 * MS);
        let locks = connect(&url(&[&sentinel])).with(options);
        let lock = &every_kind(&locks)[kind];
        for script in ["EVAL", "EVALSHA"] {
            let (from, to) = (Arc::clone(&before), Arc::clone(&next));
            let name = lock.name().to_owned();
            let copy = move || copy_while_held(&name, &from, &to);
            proxy.at(script).run_each_time(copy);
        }
        let answer = lock.try_acquire();
        let are_too_few = matches!(answer, Err(Error::TooFewReplicas { .. }));
        assert!(are_too_few, "{answer:?}");
        let (mut there, mut here) = (before.connection().unwrap(), next.connection().unwrap());
        assert!(comes_true(|| !is_there(&mut there, lock.name())));
        assert!(is_there(&mut here, lock.name()), "{}", lock.name());
        said.now(next.port(), 2);
        assert!(comes_true(|| !is_there(&mut here, lock.name())));
    });
}

#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long:: --skip larger_world"]
fn nothing_is_given_back_that_somebody_else_has_by_then() {
    let mut group = group();
    let locks = connect(&group.url());
    let leases = held(&locks);
    let reentrant = locks.reentrant("twice").with(Options::new().lease(LEASE));
    let (outer, inner) = (
        reentrant.acquire(LONG).unwrap(),
        reentrant.acquire(LONG).unwrap(),
    );
    wait_until_replicated(&group);
    group.gates[0].shut_for_replicas();
    for lease in leases {
        lease.release().unwrap();
    }
    inner.release().unwrap();
    group.servers[0].kill().unwrap();
    assert_eq!(group.promoted_after(0).unwrap(), 1);
    // Before a sentinel names it, so before anybody but this test asks it.
    let mut next = group.servers[1].connection().unwrap();
    let () = next.del(&["lock:mutex", "lock:write"]).unwrap();
    let others = Locks::connect(&group.servers[1].url()).unwrap();
    let others = others.with(Options::new().lease(LEASE));
    let others = [
        others.lock("mutex").acquire(LONG).unwrap(),
        others.read("read").acquire(LONG).unwrap(),
        others.write("write").acquire(LONG).unwrap(),
    ];
    assert!(comes_true(|| !is_there(&mut next, "reentrant")));
    // One reader, and of which kind the lock is.
    let fields = |conn: &mut Connection| conn.hlen::<_, usize>("lock:read").unwrap();
    assert!(comes_true(|| fields(&mut next) == 2));
    for lease in &others {
        lease.verify().unwrap();
    }
    // What was entered twice was left once.
    assert!(outer.is_held() && comes_true(|| outer.verify().is_ok()));
    outer.release().unwrap();
    assert!(comes_true(|| !is_there(&mut next, "twice")));
}

#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long:: --skip larger_world"]
fn a_run_whose_mark_was_lost_with_its_master_is_marked_again() {
    let mut group = group();
    let locks = connect(&group.url());
    let lock = locks.lock("job").with(Options::new().lease(LEASE));
    let ran = lock.run_once(LEASE, LONG, |_| {
        wait_until_replicated(&group);
        group.gates[0].shut_for_replicas();
        Ok::<_, Error>(())
    });
    assert!(matches!(ran, Ok(Once::Ran(ran)) if ran.released.is_ok()));
    group.servers[0].kill().unwrap();
    assert_eq!(group.promoted_after(0).unwrap(), 1);
    let other = connect(&group.url()).lock("job");
    let again = other.run_once(LEASE, LONG, |_| Ok::<_, Error>(()));
    assert!(matches!(again, Ok(Once::HasBeenRun(_))), "{again:?}");
}

#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long:: --skip larger_world"]
fn what_a_shard_has_lost_the_renewal_of_is_renewed_on_its_new_master() {
    let mut cluster = Cluster::planned(NODE_TIMEOUT, true).unwrap();
    let tag = cluster.tag(0, "renewed").unwrap();
    let locks = connect(&cluster.url()).with(Options::new().lease(SHORT));
    let names = [format!("first{{{tag}}}"), format!("second{{{tag}}}")];
    let leases = [locks.lock(&names[0]), locks.write(&names[1])];
    let leases = leases.map(|lock| lock.acquire(LONG).unwrap());
    let mut conn = cluster.nodes[0].connection().unwrap();
    assert!(comes_true(|| in_step(&mut conn).unwrap() == 1));
    cluster.gates[0].shut_for_replicas();
    for lease in &leases {
        lease.renew(LEASE).unwrap();
    }
    cluster.nodes[0].kill().unwrap();
    cluster.wait_until_master(3).unwrap();
    let mut next = cluster.nodes[3].connection().unwrap();
    let at_first = left(&mut next, &names);
    assert!(at_first.iter().all(|left| *left <= SHORT), "{at_first:?}");
    assert!(comes_true(|| left(&mut next, &names).iter().all(is_long)));
    assert!(leases.iter().all(Lease::is_held));
}

#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long:: --skip larger_world"]
fn what_a_shard_has_lost_the_release_of_is_free_on_its_new_master() {
    let mut cluster = Cluster::planned(NODE_TIMEOUT, true).unwrap();
    let tag = cluster.tag(0, "given-back").unwrap();
    let locks = connect(&cluster.url()).with(Options::new().lease(LEASE));
    let (first, second) = (format!("first{{{tag}}}"), format!("second{{{tag}}}"));
    let lease = locks.lock(&first).acquire(LONG).unwrap();
    let commit = locks.lock(&second).acquire(LONG).unwrap();
    let mut conn = cluster.nodes[0].connection().unwrap();
    assert!(comes_true(|| in_step(&mut conn).unwrap() == 1));
    cluster.gates[0].shut_for_replicas();
    lease.release().unwrap();
    let committed = commit.commit_and_release(|pipe| {
        pipe.set(format!("data{{{tag}}}"), 1);
    });
    committed.unwrap();
    cluster.nodes[0].kill().unwrap();
    cluster.wait_until_master(3).unwrap();
    let others = connect(&cluster.url());
    for name in [first, second] {
        drop(others.lock(&name).acquire(LONG + 1_000 * MS).unwrap());
    }
}

#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long:: --skip larger_world"]
fn tries_in_vain_push_no_release_out_of_memory() {
    let cluster = Cluster::planned(NODE_TIMEOUT, true).unwrap();
    let tag = cluster.tag(0, "pushed").unwrap();
    let locks = connect(&cluster.url()).with(Options::new().lease(LEASE));
    let name = format!("held{{{tag}}}");
    let lease = locks.lock(&name).acquire(LONG).unwrap();
    let mut conn = cluster.nodes[0].connection().unwrap();
    assert!(comes_true(|| in_step(&mut conn).unwrap() == 1));
    cluster.gates[0].shut_for_replicas();
    lease.release().unwrap();
    let few = locks.with(Options::new().replicas(1, MS));
    thread::scope(|scope| {
        for thread in 0..8 {
            let (few, tag) = (&few, &tag);
            scope.spawn(move || {
                for n in 0..540 {
                    let lock = few.lock(&format!("{thread}-{n}{{{tag}}}"));
                    assert!(lock.try_acquire().is_err());
                }
            });
        }
    });
    signal(cluster.nodes[0].process(), "KILL").unwrap();
    cluster.wait_until_master(3).unwrap();
    let mut next = cluster.nodes[3].connection().unwrap();
    assert!(comes_true(|| !is_there(&mut next, &name)));
}
