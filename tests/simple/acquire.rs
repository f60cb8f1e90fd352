//! `acquire_lock` and `acquire_lock_with_timeout`: the data they write, and their results.

use std::{thread, time::Duration};

use crate::common::{monitor::Monitor, start, wait};
use leasehold::{Error, acquire_lock, acquire_lock_with_timeout};
use redis::Commands;

const NO_WAIT: Duration = Duration::ZERO;
const LEASE: Duration = Duration::from_secs(10);

#[test]
fn the_lock_and_its_expiry_are_one_command() {
    let (server, mut conn) = start();
    let mut monitor = Monitor::start(&server).unwrap();
    for (lease, sent) in [
        (Some(LEASE), " PX 10000"),
        (Some(Duration::from_millis(1)), " PX 1"),
        (Some(Duration::from_micros(1_500)), " PX 2"),
        (Some(Duration::from_millis(999)), " PX 999"),
        (None, ""),
    ] {
        let name = format!("of{sent}");
        let token = match lease {
            Some(lease) => acquire_lock_with_timeout(&mut conn, &name, NO_WAIT, lease),
            None => acquire_lock(&mut conn, &name, NO_WAIT),
        };
        let token = token.unwrap().unwrap().to_string();
        assert_eq!(token.len(), 36, "a UUID, as in the book");
        assert_eq!(
            monitor.commands().unwrap(),
            [format!("SET lock:{name} {token} NX{sent}")]
        );
    }
    let left: i64 = conn.pttl("lock:of PX 10000").unwrap();
    assert!((5_000..=10_000).contains(&left), "{left}");
}

#[test]
fn a_lock_acquired_after_a_wait_gets_its_expiry_in_one_command() {
    let (server, mut conn) = start();
    let mut other = server.connection().unwrap();
    let () = other.pset_ex("lock:a", "another holder", 10_000).unwrap();
    let mut monitor = Monitor::start(&server).unwrap();

    let waiter = thread::spawn(move || {
        acquire_lock_with_timeout(&mut conn, "a", Duration::MAX, LEASE).unwrap()
    });
    assert!(wait::comes_true(|| wait::calls(&mut other, "evalsha")
        .unwrap()
        >= 2));
    let () = other.del("lock:a").unwrap();
    let token = waiter.join().unwrap().unwrap();

    let commands = monitor.commands().unwrap();
    let writes: Vec<_> = commands
        .iter()
        .filter(|command| !command.starts_with("EVAL"))
        .filter(|command| command.starts_with("SET ") || command.contains("EXPIRE"))
        .collect();
    assert_eq!(
        writes,
        [
            &format!("SET lock:a {token} NX PX 10000"),
            &format!("SET lock:a {token} PX 10000"),
        ],
        "the first finds the lock held, the second takes it"
    );
}

#[test]
fn a_key_of_another_type_is_an_error_and_not_a_wait() {
    let (_server, mut conn) = start();
    for (name, create, args) in [
        ("list", "RPUSH", "x"),
        ("set", "SADD", "x"),
        ("hash", "HSET", "field x"),
        ("sorted", "ZADD", "1 x"),
        ("stream", "XADD", "* field x"),
    ] {
        let key = format!("lock:{name}");
        let args: Vec<_> = args.split(' ').collect();
        redis::cmd(create)
            .arg(&key)
            .arg(args)
            .exec(&mut conn)
            .unwrap();
        let before: Vec<u8> = redis::cmd("DUMP").arg(&key).query(&mut conn).unwrap();

        let wait = Duration::from_secs(3);
        for answer in [
            acquire_lock(&mut conn, name, wait),
            acquire_lock_with_timeout(&mut conn, name, wait, LEASE),
        ] {
            assert!(
                matches!(&answer, Err(Error::WrongKind { context, .. }) if context.lock == name),
                "{answer:?}"
            );
        }
        let after: Vec<u8> = redis::cmd("DUMP").arg(&key).query(&mut conn).unwrap();
        assert_eq!(before, after);
        assert_eq!(conn.pttl(&key), Ok(-1), "no expiry was set either");
    }
}
