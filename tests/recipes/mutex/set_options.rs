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

#[track_caller]
fn assert_refused(conn: &mut Connection, options: &str, why: &str) {
    let error = set(conn, "x", options).unwrap_err().to_string();
    assert!(error.contains(why), "{options}: {error}");
    assert!(!conn.exists::<_, bool>("lock:a").unwrap());
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

#[test]
fn px_refuses_zero_and_fractions() {
    let (_server, mut conn) = start();
    assert_refused(&mut conn, "NX PX 0", "invalid expire");
    assert_refused(&mut conn, "NX PX -1", "invalid expire");
    assert_refused(&mut conn, "NX PX 0.5", "not an integer");
    let token = Token::random();
    let short = End::After(Duration::from_micros(100));
    assert!(matches!(
        mutex::try_acquire(&mut conn, "a", &token, short),
        Err(Error::Invalid { .. })
    ));
}

#[test]
fn ex_refuses_a_lease_below_a_second() {
    let (_server, mut conn) = start();
    assert_refused(&mut conn, "NX EX 0", "invalid expire");
    assert_refused(&mut conn, "NX EX 0.5", "not an integer");
    let short = End::After(Duration::from_millis(900));
    let granted = mutex::try_acquire(&mut conn, "a", &Token::random(), short).unwrap();
    assert!(granted.is_some() && left(&mut conn) <= 900);
}

#[test]
fn a_moment_in_the_past_answers_ok_and_leaves_no_lock() {
    let (_server, mut conn) = start();
    for past in ["PXAT 1700000000000", "EXAT 1700000000"] {
        assert_eq!(
            set(&mut conn, "x", &format!("NX {past}")).unwrap(),
            Value::Okay
        );
        assert_eq!(left(&mut conn), -2, "{past}");
    }
    assert_refused(&mut conn, "NX EXAT 0", "invalid expire");
    let past = End::At(SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000));
    let refused = mutex::try_acquire(&mut conn, "a", &Token::random(), past);
    assert!(
        matches!(
            refused,
            Err(Error::Invalid {
                argument: "end",
                ..
            })
        ),
        "{refused:?}"
    );
}

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
fn keepttl_leaves_a_free_key_without_expiry() {
    let (_server, mut conn) = start();
    assert_eq!(set(&mut conn, "x", "NX KEEPTTL").unwrap(), Value::Okay);
    assert_eq!(left(&mut conn), -1, "a lock that never ends");
    let (ours, theirs) = (Token::random(), Token::random());
    let lease = End::After(Duration::from_secs(10));
    conn.del::<_, ()>("lock:a").unwrap();
    mutex::try_acquire(&mut conn, "a", &ours, lease)
        .unwrap()
        .unwrap();
    set(&mut conn, &theirs.to_string(), "XX KEEPTTL").unwrap();
    assert!(left(&mut conn) > 9_000);
    assert!(
        !mutex::renew(&mut conn, "a", &ours, Duration::from_secs(10)).unwrap(),
        "taken over"
    );
}

#[test]
fn xx_takes_a_held_lock_and_never_a_free_one() {
    let (_server, mut conn) = start();
    assert_eq!(set(&mut conn, "x", "XX PX 10000").unwrap(), Value::Nil);
    assert_eq!(left(&mut conn), -2);
    let ours = Token::random();
    let lease = End::After(Duration::from_secs(10));
    mutex::try_acquire(&mut conn, "a", &ours, lease)
        .unwrap()
        .unwrap();
    assert_eq!(set(&mut conn, "x", "XX PX 10000").unwrap(), Value::Okay);
    assert!(
        !mutex::release(&mut conn, "a", &ours).unwrap(),
        "taken over"
    );
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
fn contradictory_options_are_refused() {
    let (_server, mut conn) = start();
    for options in [
        "NX XX",
        "NX EX 10 KEEPTTL",
        "NX EX 10 PX 10",
        "NX PX 10 PXAT 1700000000000",
    ] {
        assert_refused(&mut conn, options, "syntax");
    }
}

#[test]
fn without_nx_a_set_takes_the_lock_and_its_expiry() {
    let (_server, mut conn) = start();
    let ours = Token::random();
    let lease = End::After(Duration::from_secs(10));
    mutex::try_acquire(&mut conn, "a", &ours, lease)
        .unwrap()
        .unwrap();
    set(&mut conn, "x", "").unwrap();
    assert_eq!(left(&mut conn), -1);
    assert!(!mutex::release(&mut conn, "a", &ours).unwrap());
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
