//! Servers and replicas that cannot confirm, and combinations that are refused.

use super::*;
use crate::common::tell;

#[test]
fn wait_is_sent_again_after_a_forgotten_script() {
    let group = Replicated::start(1);
    let (holder, waiter) = (group.locks(1), group.locks(1));
    drop(waiter.lock("a").acquire(LONG).unwrap());
    let flush = || {
        tell(&mut group.conn(), "SCRIPT FLUSH");
    };
    flush();
    let lease = holder.lock("a").acquire(LONG).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| waiter.lock("a").acquire(LONG).map(drop));
        thread::sleep(100 * MS);
        flush();
        lease.release().unwrap();
        waiting.join().unwrap().unwrap();
    });
    flush();
    group.gate.shut_for_replicas();
    assert!(is_too_few(&holder.lock("b").try_acquire()));
}

#[test]
fn a_server_that_forbids_wait_says_so_and_the_lock_is_released() {
    let group = Replicated::start(1);
    let mut conn = group.conn();
    tell(&mut conn, "ACL SETUSER me on >pass ~* &* +@all -wait");
    let url = group.master.url().replace("://", "://me:pass@");
    let locks = Locks::connect(&url)
        .unwrap()
        .with(Options::new().replicas(1, 100 * MS));
    let refused = locks.lock("a").acquire(LONG).unwrap_err();
    assert!(matches!(refused, Error::Redis { .. }), "{refused:?}");
    assert!(format!("{:#}", anyhow::Error::from(refused)).contains("permission"));
    assert!(!exists(&mut conn, "a"));
}

/// The id of a client that waits for replicas.
fn who_waits(conn: &mut Connection) -> Option<String> {
    let clients: String = redis::cmd("CLIENT").arg("LIST").query(conn).unwrap();
    let mut lines = clients.lines().filter(|line| line.contains("flags=b"));
    lines.find_map(|line| Some(line.split(' ').next()?.strip_prefix("id=")?.to_owned()))
}

/// The wait ends with an error, as it does when the server becomes a replica.
#[test]
fn a_server_that_stops_waiting_for_replicas_is_asked_again() {
    let group = Replicated::start(1);
    let mut conn = group.conn();
    let locks = Locks::connect(&group.master.url()).unwrap();
    let locks = locks.with(Options::new().replicas(1, 900 * MS));
    // From now on the server knows the script.
    drop(locks.lock("a").acquire(LONG).unwrap());
    group.gate.shut_for_replicas();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| locks.lock("a").acquire(LONG).map(drop));
        // Its time limit may end first, and it waits again.
        assert!(comes_true(|| {
            let Some(client) = who_waits(&mut conn) else {
                return false;
            };
            let mut unblock = redis::cmd("CLIENT");
            unblock.arg("UNBLOCK").arg(client).arg("ERROR");
            unblock.query(&mut conn).unwrap()
        }));
        group.gate.open();
        waiting.join().unwrap().unwrap();
    });
}

#[test]
fn a_silent_replica_is_waited_for_within_the_limit() {
    let group = Replicated::start(2);
    group.replicas[0].freeze().unwrap();
    let one = group.locks(1).lock("a").acquire(LONG).unwrap();
    let two = Options::new().replicas(2, 1_800 * MS);
    let both = group.locks(2).lock("b").with(two);
    // The one that is not silent may be late.
    assert!(comes_true(|| {
        let asked = Instant::now();
        let answer = both.try_acquire();
        let took = asked.elapsed();
        assert!(
            took >= 1_800 * MS && took < 3_500 * MS,
            "{took:?} {answer:?}"
        );
        matches!(
            answer,
            Err(Error::TooFewReplicas {
                wanted: 2,
                had: 1,
                ..
            })
        )
    }));
    group.replicas[0].thaw().unwrap();
    one.release().unwrap();
}

#[test]
fn an_invalid_number_of_replicas_is_refused_before_anything_is_sent() {
    let server = Server::start().unwrap();
    let pool = Pool::connect(&server.url()).unwrap();
    let locks = Locks::new(&pool).unwrap();
    let refused = |options: Options, argument: &str| {
        let answer = locks.lock("a").with(options).try_acquire().map(drop);
        assert!(
            matches!(&answer, Err(Error::Invalid { argument: named, .. }) if *named == argument),
            "{answer:?}"
        );
    };
    refused(Options::new().replicas(1, Duration::ZERO), "replicas");
    refused(Options::new().replicas(1, 2_000 * MS), "replicas");
    refused(
        Options::new().replicas(1, 600 * MS).lease(1_000 * MS),
        "replicas",
    );
    refused(Options::new().replicas(101, 100 * MS), "replicas");
    refused(
        Options::new().clock_skew(501 * MS).lease(1_000 * MS),
        "clock_skew",
    );
    assert_eq!(
        calls(&mut server.connection().unwrap(), "evalsha").unwrap(),
        0
    );
    // Zero replicas means none, whatever the wait.
    drop(
        locks
            .lock("a")
            .with(Options::new().replicas(0, LONG))
            .acquire(LONG)
            .unwrap(),
    );
}
