//! The options of `SET` and the problem of each: the reasons for `NX` and `PX` alone.

use std::time::{Duration, SystemTime};

use crate::common::{monitor::Monitor, start};
use leasehold::{
    Error, Token,
    recipes::mutex::{self, End},
};
use redis::{Commands, Connection, RedisResult, Value};

/// `SET lock:a VALUE OPTIONS`
fn set(conn: &mut Connection, value: &str, options: &str) -> RedisResult<Value> {
    let mut command = redis::cmd("SET");
    command.arg("lock:a").arg(value);
    for option in options.split_whitespace() {
        command.arg(option);
    }
    command.query(conn)
}

/// -1: without an end, -2: no key.
fn left(conn: &mut Connection) -> i64 {
    conn.pttl("lock:a").unwrap()
}

#[test]
fn the_recipe_sends_nx_and_px_and_no_other() {
    let (server, mut conn) = start();
    let mut monitor = Monitor::start(&server).unwrap();
    let token: Token = "ours".parse().unwrap();
    let lease = Duration::from_micros(10_001);
    assert!(mutex::try_acquire_unfenced(&mut conn, "a", &token, lease).unwrap());
    mutex::release(&mut conn, "a", &token).unwrap();
    mutex::try_acquire(&mut conn, "a", &token, End::After(lease)).unwrap();
    let commands = monitor.commands().unwrap();
    let sets: Vec<_> = commands
        .iter()
        .filter(|command| command.starts_with("SET "))
        .collect();
    // In the script, the preceding read of the key replaces NX.
    assert_eq!(sets, ["SET lock:a ours NX PX 11", "SET lock:a ours PX 11"]);
}

/// The answer of the server, and the milliseconds that the key then has.
enum Answer {
    Refused(&'static str),
    Is(Value, i64),
}
use Answer::{Is, Refused};

const FOREVER: i64 = -1;
const NO_KEY: i64 = -2;

#[test]
fn what_each_option_does_to_a_free_lock() {
    let (_server, mut conn) = start();
    for (options, answer) in [
        ("NX PX 10000", Is(Value::Okay, 10_000)),
        ("NX PX 0", Refused("invalid expire")),
        ("NX PX -1", Refused("invalid expire")),
        ("NX PX 0.5", Refused("not an integer")),
        ("NX EX 0", Refused("invalid expire")),
        ("NX EX 0.5", Refused("not an integer")),
        ("NX EXAT 0", Refused("invalid expire")),
        // The answer of a lock that was acquired, and there is none.
        ("NX PXAT 1700000000000", Is(Value::Okay, NO_KEY)),
        ("NX EXAT 1700000000", Is(Value::Okay, NO_KEY)),
        ("NX KEEPTTL", Is(Value::Okay, FOREVER)),
        // It takes held locks, and no free one.
        ("XX PX 10000", Is(Value::Nil, NO_KEY)),
        ("NX XX", Refused("syntax")),
        ("NX EX 10 KEEPTTL", Refused("syntax")),
        ("NX EX 10 PX 10", Refused("syntax")),
        ("NX PX 10 PXAT 1700000000000", Refused("syntax")),
    ] {
        let (said, lasts) = (set(&mut conn, "x", options), left(&mut conn));
        match answer {
            Refused(why) => {
                let error = said.unwrap_err().to_string();
                assert!(error.contains(why), "{options}: {error}");
                assert_eq!(lasts, NO_KEY, "{options}");
            }
            Is(answer, longest) => {
                assert_eq!(said.unwrap(), answer, "{options}");
                assert!(
                    lasts <= longest && lasts * longest > 0,
                    "{options}: {lasts}"
                );
            }
        }
        conn.del::<_, ()>("lock:a").unwrap();
    }
}

#[test]
fn what_takes_a_held_lock_is_noticed() {
    let (_server, mut conn) = start();
    let lease = Duration::from_secs(10);
    for options in ["", "KEEPTTL", "XX PX 10000"] {
        let ours = Token::random();
        mutex::try_acquire(&mut conn, "a", &ours, End::After(lease))
            .unwrap()
            .unwrap();
        assert_eq!(set(&mut conn, "theirs", options).unwrap(), Value::Okay);
        assert_eq!(left(&mut conn) == FOREVER, options.is_empty(), "{options}");
        assert!(!mutex::renew(&mut conn, "a", &ours, lease).unwrap());
        assert!(!mutex::release(&mut conn, "a", &ours).unwrap());
        conn.del::<_, ()>("lock:a").unwrap();
    }
}

/// `EXAT` is in whole seconds; `End::At` keeps the milliseconds.
#[test]
fn exat_expires_up_to_a_second_early() {
    let (_server, mut conn) = start();
    let (seconds, _): (u64, u64) = redis::cmd("TIME").query(&mut conn).unwrap();
    let moment = seconds * 1_000 + 10_999;
    let end = SystemTime::UNIX_EPOCH + Duration::from_millis(moment);
    set(&mut conn, "x", &format!("NX EXAT {}", seconds + 10)).unwrap();
    assert!(end_of(&mut conn).abs_diff(moment) > 900);
    conn.del::<_, ()>("lock:a").unwrap();
    mutex::try_acquire(&mut conn, "a", &Token::random(), End::At(end))
        .unwrap()
        .unwrap();
    assert!(
        end_of(&mut conn).abs_diff(moment) < 100,
        "milliseconds are kept"
    );
}

/// Milliseconds since 1970 on the server's clock.
fn end_of(conn: &mut Connection) -> u64 {
    let mut both = redis::pipe();
    both.atomic().cmd("TIME").pttl("lock:a");
    let ((seconds, micros), left): ((u64, u64), u64) = both.query(conn).unwrap();
    seconds * 1_000 + micros / 1_000 + left
}

#[test]
fn get_inverts_the_answer() {
    let (_server, mut conn) = start();
    match set(&mut conn, "x", "NX GET PX 10000") {
        Ok(taken) => {
            assert_eq!(taken, Value::Nil, "nil: it was taken");
            let refused = set(&mut conn, "y", "NX GET PX 10000").unwrap();
            assert_eq!(
                refused,
                Value::BulkString(b"x".to_vec()),
                "the holder's token"
            );
        }
        Err(before_redis_7) => assert!(before_redis_7.to_string().contains("syntax")),
    }
}

#[test]
fn nx_reports_a_key_of_another_type_as_busy() {
    let (_server, mut conn) = start();
    conn.rpush::<_, _, ()>("lock:a", "no lock").unwrap();
    assert_eq!(set(&mut conn, "x", "NX PX 10000").unwrap(), Value::Nil);
    let lease = Duration::from_secs(10);
    let token = Token::random();
    assert!(!mutex::try_acquire_unfenced(&mut conn, "a", &token, lease).unwrap());
    let refused = mutex::acquire(&mut conn, "a", &token, 10 * lease, End::After(lease));
    assert!(
        matches!(refused, Err(Error::WrongKind { .. })),
        "and waits not: {refused:?}"
    );
}
