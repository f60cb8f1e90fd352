//! The semaphore's functions on one connection.

use std::{thread, time::Duration};

use leasehold::{Error, Token, recipes::semaphore};
use redis::{Commands, Connection};

use crate::common::{
    LONG, MS, Server,
    clock::{millis, told_the_time},
    wait::unless_halted,
};

const KEY: &str = "lock:api";
const COMPANION: &str = "{lock:api}:lease";

fn take(conn: &mut Connection, permits: u32, lease: Duration) -> Option<Token> {
    let token = Token::random();
    let granted = semaphore::try_acquire(conn, "api", permits, &token, lease).unwrap();
    granted.then_some(token)
}

fn end(conn: &mut Connection, token: &Token) -> Option<f64> {
    conn.zscore(KEY, token.to_string()).unwrap()
}

#[test]
fn an_acquire_sent_twice_has_one_permit_whose_expiry_only_grows() {
    let server = Server::start().unwrap();
    let mut conn = server.connection().unwrap();
    let token = take(&mut conn, 2, LONG).unwrap();
    let first = end(&mut conn, &token);
    for lease in [MS, 2 * LONG] {
        assert!(semaphore::try_acquire(&mut conn, "api", 2, &token, lease).unwrap());
        assert!(end(&mut conn, &token) >= first);
    }
    assert!(end(&mut conn, &token) > first);
    assert_eq!(conn.zcard::<_, u64>(KEY).unwrap(), 1);
    assert!(take(&mut conn, 2, LONG).is_some());
    // The holder is recognised although no permit is free.
    assert!(semaphore::try_acquire(&mut conn, "api", 2, &token, LONG).unwrap());
}

fn dump(conn: &mut Connection, key: &str) -> Vec<u8> {
    redis::cmd("DUMP").arg(key).query(conn).unwrap()
}

/// For example if the server has evicted the companion. Then the set has no mark of ours but the
/// tokens that their holders know.
#[test]
fn without_the_companion_holders_go_on_and_nobody_gets_a_new_permit() {
    let server = Server::start().unwrap();
    let mut conn = server.connection().unwrap();
    let [first, second] = [3, 3].map(|permits| take(&mut conn, permits, LONG).unwrap());
    let () = conn.del(COMPANION).unwrap();
    let before = dump(&mut conn, KEY);
    let is_wrong_kind = |error| matches!(error, Error::WrongKind { .. });
    let refused = semaphore::try_acquire(&mut conn, "api", 3, &Token::random(), LONG);
    assert!(is_wrong_kind(refused.unwrap_err()));
    let seen = semaphore::holders(&mut conn, "api");
    assert!(is_wrong_kind(seen.unwrap_err()));
    let released = semaphore::release(&mut conn, "api", &Token::random());
    assert!(is_wrong_kind(released.unwrap_err()));
    assert_eq!(dump(&mut conn, KEY), before);
    for token in [&first, &second] {
        assert!(semaphore::renew(&mut conn, "api", token, 2 * LONG).unwrap());
    }
    // A repeated acquire gets its mark back.
    assert!(semaphore::try_acquire(&mut conn, "api", 3, &first, LONG).unwrap());
    for token in [first, second] {
        assert!(semaphore::release(&mut conn, "api", &token).unwrap());
    }
    assert_eq!(conn.keys::<_, Vec<String>>("*").unwrap(), [""; 0]);
    assert!(take(&mut conn, 1, LONG).is_some());
}

/// Renewed to the longest lease and released, while another holder dies.
#[test]
fn both_keys_end_with_the_last_permit_that_is_left() {
    let server = Server::start().unwrap();
    let mut conn = server.connection().unwrap();
    for fence in [None, Some(7)] {
        if let Some(fence) = fence {
            let () = conn.hset(COMPANION, "fence", fence).unwrap();
        }
        let long = take(&mut conn, 3, 20 * 180 * LONG).unwrap();
        let short = take(&mut conn, 3, LONG).unwrap();
        assert!(semaphore::release(&mut conn, "api", &long).unwrap());
        assert!(left(&mut conn, KEY) <= LONG + MS);
        // The fencing token of another kind stays for as long as that kind wants.
        assert_eq!(left(&mut conn, COMPANION) <= LONG + MS, fence.is_none());
        assert!(semaphore::renew(&mut conn, "api", &short, MS).unwrap());
        let () = conn.del(&[KEY, COMPANION]).unwrap();
    }
    // A shorter permit leaves the end of a longer one, and an operator's `PERSIST` is respected.
    let long = take(&mut conn, 3, 4 * LONG).unwrap();
    let short = take(&mut conn, 3, LONG).unwrap();
    assert!(semaphore::release(&mut conn, "api", &short).unwrap());
    assert!(left(&mut conn, KEY) > 3 * LONG && left(&mut conn, COMPANION) > 3 * LONG);
    let short = take(&mut conn, 3, LONG).unwrap();
    let () = conn.persist(KEY).unwrap();
    assert!(semaphore::release(&mut conn, "api", &long).unwrap());
    assert_eq!(conn.pttl::<_, i64>(KEY).unwrap(), -1);
    assert!(semaphore::renew(&mut conn, "api", &short, MS).unwrap());
}

/// Another program's members among ours: nothing of theirs is removed.
#[test]
fn a_sweep_removes_no_member_without_a_mark() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let mut conn = server.connection().unwrap();
        let ours = take(&mut conn, 9, LONG).unwrap();
        take(&mut conn, 9, MS).unwrap();
        let now = millis(&mut conn);
        thread::sleep(20 * MS);
        let () = conn.zadd(KEY, "theirs", now + 10).unwrap();
        // The first member is ours, and has ended.
        let next = take(&mut conn, 9, LONG).unwrap();
        assert_eq!(conn.zcard::<_, u64>(KEY).unwrap(), 3);
        // Now the first is theirs.
        let another = |conn: &mut Connection| {
            let refused = semaphore::try_acquire(conn, "api", 9, &Token::random(), LONG);
            assert!(matches!(refused, Err(Error::WrongKind { .. })));
        };
        another(&mut conn);
        assert!(semaphore::renew(&mut conn, "api", &ours, 2 * LONG).unwrap());
        for token in [ours, next] {
            assert!(semaphore::release(&mut conn, "api", &token).unwrap());
        }
        assert_eq!(
            conn.zrange::<_, Vec<String>>(KEY, 0, -1).unwrap(),
            ["theirs"]
        );
        // A score that is no end, behind a permit.
        let () = conn.del(KEY).unwrap();
        take(&mut conn, 9, LONG).unwrap();
        let () = conn.zadd(KEY, "theirs", f64::INFINITY).unwrap();
        another(&mut conn);
    });
}

fn fields(conn: &mut Connection) -> usize {
    conn.hlen(COMPANION).unwrap()
}

#[test]
fn a_holders_details_come_from_its_first_attempt_and_go_with_its_permit() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let mut conn = server.connection().unwrap();
        // Of a lock of another kind, so the companion stays.
        let () = conn.hset(COMPANION, "fence", 7).unwrap();
        let token = take(&mut conn, 3, 4 * LONG).unwrap();
        let since = |conn: &mut Connection| semaphore::holders(conn, "api").unwrap()[0].since();
        let first = since(&mut conn);
        assert!(first.is_some());
        thread::sleep(20 * MS);
        assert!(semaphore::try_acquire(&mut conn, "api", 3, &token, LONG).unwrap());
        assert_eq!(since(&mut conn), first);
        let () = conn.del(COMPANION).unwrap();
        assert!(semaphore::try_acquire(&mut conn, "api", 3, &token, LONG).unwrap());
        assert!(since(&mut conn) > first);

        let () = conn.hset(COMPANION, "fence", 7).unwrap();
        take(&mut conn, 3, MS).unwrap();
        thread::sleep(20 * MS);
        let last = take(&mut conn, 3, LONG).unwrap();
        assert_eq!(fields(&mut conn), 3);
        assert!(semaphore::release(&mut conn, "api", &last).unwrap());
        assert_eq!(fields(&mut conn), 2);
        take(&mut conn, 3, MS).unwrap();
        thread::sleep(20 * MS);
        assert!(semaphore::release(&mut conn, "api", &token).unwrap());
        assert_eq!(conn.keys::<_, Vec<String>>("*").unwrap(), [COMPANION]);
        assert_eq!(fields(&mut conn), 1);
    });
}

fn left(conn: &mut Connection, key: &str) -> Duration {
    let left: i64 = conn.pttl(key).unwrap();
    Duration::from_millis(left.try_into().unwrap())
}

#[test]
fn both_keys_expire_from_the_first_permit_on_and_renewals_only_extend() {
    let server = Server::start().unwrap();
    let mut conn = server.connection().unwrap();
    let ends_between = |conn: &mut Connection, from: u32, to: u32| {
        for key in [KEY, COMPANION] {
            let left = left(conn, key);
            assert!(
                left > from * LONG && left <= to * LONG + MS,
                "{key} {left:?}"
            );
        }
    };
    let token = take(&mut conn, 2, 2 * LONG).unwrap();
    ends_between(&mut conn, 1, 2);
    let renew = |conn: &mut Connection, token, lease| {
        assert!(semaphore::renew(conn, "api", token, lease).unwrap());
    };
    renew(&mut conn, &token, 4 * LONG);
    ends_between(&mut conn, 3, 4);
    let before = end(&mut conn, &token);
    renew(&mut conn, &token, LONG);
    assert_eq!(end(&mut conn, &token), before);
    let other = take(&mut conn, 2, LONG).unwrap();
    renew(&mut conn, &other, 2 * LONG);
    ends_between(&mut conn, 3, 4);
    // An operator's `PERSIST` is respected.
    let () = conn.persist(KEY).unwrap();
    renew(&mut conn, &token, 6 * LONG);
    assert_eq!(conn.pttl::<_, i64>(KEY).unwrap(), -1);
}

/// The end is the last millisecond in which a permit counts.
#[test]
fn a_permit_counts_until_its_end_and_no_longer() {
    let server = Server::start().unwrap();
    let mut conn = server.connection().unwrap();
    for (later, is_free) in [(0, false), (1, true)] {
        let token = take(&mut conn, 1, LONG).unwrap();
        let told = format!(
            "{} * 1000",
            end(&mut conn, &token).unwrap() + f64::from(later)
        );
        let asked: Option<i64> =
            with_clock(&told, "acquire", &["9", "1", "x", "0"], &Token::random())
                .query(&mut conn)
                .unwrap();
        assert_eq!(asked.is_some(), is_free, "{later}");
        let () = conn.del(&[KEY, COMPANION]).unwrap();
    }
}

/// The script with the clock `told`.
fn with_clock(told: &str, script: &str, words: &[&str], token: &Token) -> redis::Cmd {
    let script = format!("recipes/semaphore/{script}.lua");
    let parts = [
        "recipes/companion.lua",
        "recipes/semaphore/permits.lua",
        &script,
    ];
    let mut command = redis::cmd("EVAL");
    command.arg(told_the_time(&parts, told));
    command.arg((2, KEY, COMPANION)).arg(token.to_string());
    command.arg(words);
    command
}

/// A server may report a later time than the start of the script, from which it counts the key's
/// lifetime.
#[test]
fn a_pause_within_a_script_does_not_end_a_longer_lease() {
    let server = Server::start().unwrap();
    let mut conn = server.connection().unwrap();
    let long = take(&mut conn, 3, LONG).unwrap();
    let short = take(&mut conn, 3, LONG / 2).unwrap();
    let other = Token::random();
    let [acquired, renewed] = [
        ("acquire", &other, &["100", "4", "somebody", "0"][..]),
        ("renew", &short, &["1000"]),
    ]
    .map(|(script, token, words)| {
        let granted = with_clock("real + 400000", script, words, token).query::<i64>(&mut conn);
        assert!(granted.unwrap() > 0);
        let left: i64 = conn.pttl(KEY).unwrap();
        let longest: i64 = conn.zscore(KEY, long.to_string()).unwrap();
        millis(&mut conn) + left - longest
    });
    assert!(acquired >= 0 && renewed >= 0, "{acquired} {renewed}");
}
