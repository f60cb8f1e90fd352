//! Keys with foreign values: an error, and nothing changes.

use redis::{Commands, Connection};

use super::{ALL, Asked, ONE, acquire, release};
use crate::common::{State, book_semaphore::Way, clock, start, tell};
use leasehold::{Error, Result, Token, refresh_fair_semaphore};

fn is_wrong<T>(answer: &Result<T>, key: &str) -> bool {
    matches!(answer, Err(Error::WrongKind { context, .. }) if context.lock == key)
}

fn assert_refused(conn: &mut Connection, way: Way, case: &str) {
    let before = State::of(conn).unwrap();
    let refused = acquire(conn, way, &ONE);
    assert!(is_wrong(&refused, "a"), "{way:?}, {case}: {refused:?}");
    if way != Way::Basic {
        let refused = refresh_fair_semaphore(conn, "a", &Token::random());
        assert!(
            is_wrong(&refused, "a") || case.contains("lock:"),
            "{case}: {refused:?}"
        );
    }
    assert_eq!(State::of(conn).unwrap(), before, "{way:?}, {case}");
    let () = redis::cmd("FLUSHALL").query(conn).unwrap();
}

#[test]
fn keys_of_another_type() {
    let (_server, mut conn) = start();
    let creations = ["SET KEY x", "RPUSH KEY x", "SADD KEY x", "HSET KEY f x"];
    for creation in creations {
        for (key, ways) in [
            ("a", &ALL[..]),
            ("a:owner", &ALL[1..]),
            ("a:counter", &ALL[1..]),
            ("lock:a", &ALL[2..]),
        ] {
            if creation.starts_with("SET") && key == "lock:a" {
                continue; // a lock
            }
            for way in ways {
                let creation = creation.replace("KEY", key);
                tell(&mut conn, &creation);
                assert_refused(&mut conn, *way, &creation);
            }
            if key == "a" || key == "a:owner" && ways.len() < 3 {
                tell(&mut conn, &creation.replace("KEY", key));
                // The other set is unchanged too.
                let token = Token::random();
                let other = if key == "a" { "a:owner" } else { "a" };
                let () = conn.zadd(other, token.to_string(), 1).unwrap();
                let before = State::of(&mut conn).unwrap();
                let refused = release(&mut conn, Way::Fair, "a", &token);
                assert!(is_wrong(&refused, "a"), "{key}: {refused:?}");
                assert_eq!(State::of(&mut conn).unwrap(), before);
                let () = redis::cmd("FLUSHALL").query(&mut conn).unwrap();
            }
        }
    }
}

#[test]
fn scores_that_are_not_times_in_seconds_are_not_swept() {
    let (_server, mut conn) = start();
    let millis = clock::millis(&mut conn);
    // A market's prices, the Java port's milliseconds, and values that are no time.
    for score in [
        "35",
        "0",
        "-inf",
        "+inf",
        "999999999.9",
        &millis.to_string(),
    ] {
        for way in ALL {
            tell(&mut conn, &format!("ZADD a {score} ItemA.4"));
            assert_refused(&mut conn, way, score);
            // Also next to valid times.
            let held = acquire(&mut conn, way, &ONE).unwrap();
            assert!(held.is_some());
            tell(&mut conn, &format!("ZADD a {score} ItemA.4"));
            assert_refused(&mut conn, way, score);
        }
    }
    // A slightly wrong clock is accepted.
    for ahead in [-10_000, 80_000] {
        let asked = Asked { limit: 2, ..ONE };
        for way in ALL {
            tell(
                &mut conn,
                &format!("ZADD a {} other", millis / 1000 + ahead),
            );
            assert!(acquire(&mut conn, way, &asked).unwrap().is_some());
            let () = redis::cmd("FLUSHALL").query(&mut conn).unwrap();
        }
    }
}

#[test]
fn owners_and_counters_that_are_not_integers() {
    let (_server, mut conn) = start();
    let now = clock::millis(&mut conn) / 1000;
    for way in [Way::Fair, Way::WithLock] {
        for number in ["-1", "1.5", "-inf", "inf"] {
            tell(&mut conn, &format!("ZADD a {now} x"));
            tell(&mut conn, &format!("ZADD a:owner 7 z {number} x"));
            assert_refused(&mut conn, way, number);
        }
        for counter in ["-1", "x", "1.5", " 1"] {
            let () = conn.set("a:counter", counter).unwrap();
            assert_refused(&mut conn, way, counter);
        }
    }
}
