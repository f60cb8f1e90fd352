//! The fencing token grows, whatever happens to the lock and its companion.

use std::time::Duration;

use crate::common::{
    Server,
    clock::told_the_time,
    kinds::{COMPANION, Kind, LEASE, LEVEL, MUTEX, WRITER},
    start,
    wait::comes_true,
};
use leasehold::{
    Locks, Token,
    recipes::mutex::{self, End},
};
use redis::{Commands, Connection};

const DAY_MILLIS: i64 = 24 * 60 * 60 * 1_000;

/// Those with fencing tokens.
const FENCED: [Kind; 3] = [MUTEX, LEVEL, WRITER];

fn acquire(kind: Kind, conn: &mut Connection, token: &Token, lease: Duration) -> u64 {
    assert!((kind.grant)(conn, "a", token, lease).unwrap());
    conn.hget(COMPANION, "fence").unwrap()
}

/// Acquires, frees the lock, and returns the fencing token.
fn once(kind: Kind, conn: &mut Connection) -> u64 {
    let fence = acquire(kind, conn, &Token::random(), LEASE);
    conn.del::<_, ()>("lock:a").unwrap();
    fence
}

fn time_micros(conn: &mut Connection) -> u64 {
    let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(conn).unwrap();
    seconds * 1_000_000 + micros
}

#[test]
fn it_comes_from_the_servers_clock_in_microseconds() {
    for kind in FENCED {
        let (_server, mut conn) = start();
        let before = time_micros(&mut conn);
        let fence = once(kind, &mut conn);
        assert!(
            (before..=time_micros(&mut conn)).contains(&fence),
            "{}",
            kind.name
        );
    }
}

#[test]
fn it_grows_across_releases_of_either_kind() {
    let (_server, mut conn) = start();
    let mut last = 0;
    for kind in FENCED.repeat(20) {
        let fence = once(kind, &mut conn);
        assert!(fence > last, "{}: {fence} after {last}", kind.name);
        last = fence;
    }
}

#[test]
fn it_grows_across_an_expiry_and_a_flush() {
    for kind in FENCED {
        let (_server, mut conn) = start();
        let first = acquire(kind, &mut conn, &Token::random(), Duration::from_millis(1));
        assert!(comes_true(|| !conn.exists::<_, bool>("lock:a").unwrap()));
        let second = acquire(kind, &mut conn, &Token::random(), LEASE);
        assert!(second > first);
        redis::cmd("FLUSHALL").exec(&mut conn).unwrap();
        assert!(once(kind, &mut conn) > second, "{}", kind.name);
    }
}

/// The server's microseconds have no leading zeros.
#[test]
fn it_is_right_at_the_beginning_of_a_second() {
    for kind in FENCED {
        let (_server, mut conn) = start();
        assert!(comes_true(|| time_micros(&mut conn) % 1_000_000 < 50_000));
        let before = time_micros(&mut conn);
        let fence = once(kind, &mut conn);
        let later = before..=time_micros(&mut conn);
        assert!(
            later.contains(&fence),
            "{}: {fence} of {later:?}",
            kind.name
        );
    }
}

#[test]
fn it_is_greater_than_a_previous_one_near_the_clock() {
    let (_server, mut conn) = start();
    for clock in [1_700_000_000_000_000_u64, 1_699_999_999_999_999] {
        for last in clock - 3..clock + 3 {
            let () = conn.hset(COMPANION, "fence", last).unwrap();
            let fence: u64 = redis::cmd("EVAL")
                .arg(told_the_time(
                    &["recipes/mutex/acquire.lua"],
                    &clock.to_string(),
                ))
                .arg((2, "lock:a", COMPANION))
                .arg((
                    Token::random().to_string(),
                    LEASE.as_millis().to_string(),
                    "me",
                ))
                .query(&mut conn)
                .unwrap();
            assert_eq!(fence, clock.max(last + 1), "clock {clock}, last {last}");
            let () = conn.del("lock:a").unwrap();
        }
    }
}

#[test]
fn a_hold_taken_without_one_gets_its_own() {
    let (_server, mut conn) = start();
    let earlier = once(MUTEX, &mut conn);
    let token = Token::random();
    assert!(mutex::try_acquire_unfenced(&mut conn, "a", &token, LEASE).unwrap());
    assert!(acquire(MUTEX, &mut conn, &token, LEASE) > earlier);
}

#[test]
fn it_is_one_more_than_a_previous_one_ahead_of_the_clock() {
    for kind in FENCED {
        let (_server, mut conn) = start();
        let ahead = time_micros(&mut conn) + 3_600_000_000;
        for last in [ahead, 9_007_199_254_740_990] {
            conn.hset::<_, _, _, ()>(COMPANION, "fence", last).unwrap();
            assert_eq!(once(kind, &mut conn), last + 1, "{}", kind.name);
        }
    }
}

#[test]
fn a_previous_one_behind_the_clock_is_skipped() {
    for kind in FENCED {
        let (_server, mut conn) = start();
        for last in [0_u64, 1, 1_000_000_000_000_000] {
            let now = time_micros(&mut conn);
            conn.hset::<_, _, _, ()>(COMPANION, "fence", last).unwrap();
            assert!(once(kind, &mut conn) >= now, "{}", kind.name);
        }
    }
}

#[test]
fn its_key_expires() {
    for kind in FENCED {
        let (_server, mut conn) = start();
        once(kind, &mut conn);
        let left: i64 = conn.pttl(COMPANION).unwrap();
        assert!((DAY_MILLIS - 5_000..=DAY_MILLIS).contains(&left), "a day");

        // So long ago that the next acquire sets the expiry again.
        let fence: u64 = conn.hget(COMPANION, "fence").unwrap();
        let earlier = fence - 1_000_000_000;
        conn.hset::<_, _, _, ()>(COMPANION, "fence", earlier)
            .unwrap();
        conn.pexpire::<_, ()>(COMPANION, 60_000).unwrap();
        once(kind, &mut conn);
        let left: i64 = conn.pttl(COMPANION).unwrap();
        assert!((DAY_MILLIS - 5_000..=DAY_MILLIS).contains(&left), "again");

        acquire(kind, &mut conn, &Token::random(), Duration::from_hours(24));
        let left: i64 = conn.pttl(COMPANION).unwrap();
        let ten = 10 * DAY_MILLIS;
        assert!((ten - 5_000..=ten).contains(&left), "ten leases");
    }
}

#[test]
fn the_companion_key_names_the_holder() {
    let (server, mut conn) = start();
    let token = Token::random();
    let now = time_micros(&mut conn) / 1_000;
    let granted = mutex::try_acquire(&mut conn, "a", &token, End::After(LEASE)).unwrap();
    let fence = granted.unwrap().fencing_token().get();
    let fields = ["fence", "token", "owner", "since"];
    let (kept, by, owner, since): (u64, String, String, u64) =
        conn.hmget(COMPANION, &fields).unwrap();
    assert_eq!((kept, by), (fence, token.to_string()));
    assert_eq!(owner, who_a_guard_says_it_is(&server));
    assert!(since >= now && since <= now + 10_000);
}

/// Host, process and thread.
fn who_a_guard_says_it_is(server: &Server) -> String {
    let lock = Locks::connect(&server.url()).unwrap().lock("another");
    let _lease = lock.acquire(LEASE).unwrap();
    let found = lock.inspect().unwrap();
    found.holders()[0].owner().unwrap().as_str().to_owned()
}
