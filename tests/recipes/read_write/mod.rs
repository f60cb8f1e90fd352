//! Many readers or one writer, each with its own lease.

mod intent;
mod races;

use std::time::{Duration, Instant};

use crate::common::{SLACK, State, clock::millis, start, wait::calls};
use leasehold::{
    Error, Token,
    recipes::read_write::{
        acquire_read, acquire_write, release_read, release_write, renew_read, renew_write,
        try_acquire_read, try_acquire_write,
    },
};
use redis::{Commands, Connection};

const LEASE: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_millis(60);

type Acquire = fn(&mut Connection, &Token, Duration) -> bool;
type Renew = fn(&mut Connection, &str, &Token, Duration) -> leasehold::Result<bool>;
type Release = fn(&mut Connection, &str, &Token) -> leasehold::Result<bool>;

fn reads(conn: &mut Connection, token: &Token, lease: Duration) -> bool {
    try_acquire_read(conn, "a", token, lease).unwrap()
}

fn writes_alone(conn: &mut Connection, token: &Token, lease: Duration) -> bool {
    let grant = try_acquire_write(conn, "a", token, lease).unwrap();
    grant.is_some()
}

fn end_of(conn: &mut Connection, field: &str) -> Option<i64> {
    conn.hget("lock:a", field).unwrap()
}

fn is_free(conn: &mut Connection) -> bool {
    !conn.exists::<_, bool>("lock:a").unwrap()
}

#[test]
fn readers_share_and_a_writer_is_alone() {
    let (_server, mut conn) = start();
    let [one, two, writer, other] = [(); 4].map(|()| Token::random());

    assert!(reads(&mut conn, &one, LEASE));
    assert!(reads(&mut conn, &two, LEASE));
    assert!(!writes_alone(&mut conn, &writer, LEASE));
    assert!(release_read(&mut conn, "a", &one).unwrap());
    assert!(!writes_alone(&mut conn, &writer, LEASE));
    assert!(release_read(&mut conn, "a", &two).unwrap());
    assert!(is_free(&mut conn));

    assert!(writes_alone(&mut conn, &writer, LEASE));
    assert!(!writes_alone(&mut conn, &other, LEASE));
    assert!(!reads(&mut conn, &other, LEASE));
    assert!(release_write(&mut conn, "a", &writer).unwrap());
    assert!(is_free(&mut conn));
}

/// The rows of the article's table: 读锁可重入, 锁只能被当前线程删除, 超时自动释放, 写锁当前线程可重入.
#[test]
fn the_table_of_the_article() {
    let (_server, mut conn) = start();
    let [first, again, other] = [(); 3].map(|()| Token::random());

    assert!(reads(&mut conn, &first, LEASE) && reads(&mut conn, &again, LEASE));
    assert!(!release_read(&mut conn, "a", &other).unwrap());
    assert!(!release_write(&mut conn, "a", &first).unwrap());
    assert!(!writes_alone(&mut conn, &other, LEASE));
    assert!(release_read(&mut conn, "a", &first).unwrap());
    assert!(release_read(&mut conn, "a", &again).unwrap());

    assert!(writes_alone(&mut conn, &first, LEASE));
    assert!(!writes_alone(&mut conn, &again, LEASE), "entered twice");
    assert!(!release_write(&mut conn, "a", &other).unwrap());
    assert!(!release_read(&mut conn, "a", &first).unwrap());
    assert!(release_write(&mut conn, "a", &first).unwrap());

    assert!(writes_alone(&mut conn, &first, SHORT));
    let wait = Duration::from_secs(5);
    assert!(
        acquire_write(&mut conn, "a", &other, wait, LEASE)
            .unwrap()
            .is_some()
    );
    assert!(!release_write(&mut conn, "a", &first).unwrap());
    assert!(release_write(&mut conn, "a", &other).unwrap());
}

#[test]
fn a_crashed_reader_blocks_nobody_past_its_own_lease() {
    let (_server, mut conn) = start();
    let [crashed, living, writer] = [(); 3].map(|()| Token::random());
    assert!(reads(&mut conn, &crashed, SHORT));
    let crashed_at = Instant::now();
    assert!(reads(&mut conn, &living, LEASE));
    assert!(renew_read(&mut conn, "a", &living, LEASE).unwrap());
    assert!(release_read(&mut conn, "a", &living).unwrap());

    let left: i64 = conn.pttl("lock:a").unwrap();
    assert!(left <= 61, "the key outlives its last reader by {left} ms");
    let grant = acquire_write(&mut conn, "a", &writer, LEASE, LEASE).unwrap();
    assert!(grant.is_some() && crashed_at.elapsed() < SHORT + SLACK);
    assert_eq!(end_of(&mut conn, &format!("r:{crashed}")), None);
}

#[test]
fn the_key_expires_with_the_last_hold() {
    let (_server, mut conn) = start();
    let [long, short] = [(); 2].map(|()| Token::random());
    assert!(reads(&mut conn, &short, LEASE));
    assert!(reads(&mut conn, &long, LEASE * 6));
    for (token, longest) in [(&long, 60_000), (&short, 10_000)] {
        let before = millis(&mut conn);
        let left: i64 = conn.pttl("lock:a").unwrap();
        let after = millis(&mut conn);
        assert!((longest - 5_000..=longest + 1).contains(&left), "{left}");
        let ends = end_of(&mut conn, &format!("r:{token}")).unwrap();
        // The server may pause between reading its clock and setting the key's expiry.
        let (first, last) = (before + left - 250, after + left + 1);
        assert!((first..=last).contains(&ends), "{ends}: {first} to {last}");
        assert!(release_read(&mut conn, "a", token).unwrap());
    }
    assert!(is_free(&mut conn));
}

#[test]
fn an_attempt_sent_twice_is_granted_once_and_never_shortens() {
    let (_server, mut conn) = start();
    let [reader, writer] = [(); 2].map(|()| Token::random());

    assert!(reads(&mut conn, &reader, LEASE * 6));
    let ends = end_of(&mut conn, &format!("r:{reader}"));
    assert!(reads(&mut conn, &reader, LEASE));
    assert_eq!(end_of(&mut conn, &format!("r:{reader}")), ends);
    assert!(conn.pttl::<_, i64>("lock:a").unwrap() > 50_000);
    assert!(release_read(&mut conn, "a", &reader).unwrap());
    assert!(is_free(&mut conn));

    let granted = try_acquire_write(&mut conn, "a", &writer, LEASE).unwrap();
    let again = try_acquire_write(&mut conn, "a", &writer, SHORT).unwrap();
    assert!(granted.is_some());
    assert_eq!(granted, again, "a second fencing token");
    assert!(conn.pttl::<_, i64>("lock:a").unwrap() > 5_000);
    assert!(release_write(&mut conn, "a", &writer).unwrap());
    assert!(!release_write(&mut conn, "a", &writer).unwrap());
    assert!(is_free(&mut conn));
}

#[test]
fn a_hold_has_one_mode() {
    let (_server, mut conn) = start();
    let [reader, writer] = [(); 2].map(|()| Token::random());
    let is_refused = |error| {
        matches!(
            error,
            Error::Invalid {
                argument: "token",
                ..
            }
        )
    };

    assert!(reads(&mut conn, &reader, LEASE));
    let upgrade = acquire_write(&mut conn, "a", &reader, LEASE, LEASE);
    assert!(is_refused(upgrade.unwrap_err()));
    assert!(release_read(&mut conn, "a", &reader).unwrap());
    assert!(writes_alone(&mut conn, &writer, LEASE));
    let downgrade = acquire_read(&mut conn, "a", &writer, LEASE, LEASE);
    assert!(is_refused(downgrade.unwrap_err()));
    assert!(release_write(&mut conn, "a", &writer).unwrap());
    assert!(is_free(&mut conn));
}

#[test]
fn renewing_extends_and_never_shortens() {
    let (_server, mut conn) = start();
    let token = Token::random();
    let sides: [(&str, Acquire, Renew, Release); 2] = [
        ("r:", reads, renew_read, release_read),
        ("w:", writes_alone, renew_write, release_write),
    ];
    for (side, acquire, renew, release) in sides {
        let field = format!("{side}{token}");
        assert!(
            !renew(&mut conn, "a", &token, LEASE).unwrap(),
            "there is none"
        );
        assert!(acquire(&mut conn, &token, LEASE));
        let ends = end_of(&mut conn, &field).unwrap();

        assert!(renew(&mut conn, "a", &token, LEASE * 6).unwrap());
        let later = end_of(&mut conn, &field).unwrap();
        assert!(later >= ends + 50_000);
        assert!(renew(&mut conn, "a", &token, SHORT).unwrap());
        assert_eq!(end_of(&mut conn, &field), Some(later));
        assert!(conn.pttl::<_, i64>("lock:a").unwrap() > 50_000);

        assert!(release(&mut conn, "a", &token).unwrap());
        assert!(!renew(&mut conn, "a", &token, LEASE).unwrap());
        assert!(!release(&mut conn, "a", &token).unwrap());
        assert!(is_free(&mut conn));
    }
    assert!(!renew_write(&mut conn, "a", &token, LEASE).unwrap());
}

#[test]
fn the_companion_lives_longer_than_the_lock() {
    let (_server, mut conn) = start();
    let (writer, day) = (Token::random(), Duration::from_hours(24));
    let longest =
        |conn: &mut Connection| conn.pttl::<_, i64>("{lock:a}:lease").unwrap() > 9 * 86_400_000;
    assert!(writes_alone(&mut conn, &writer, LEASE) && !longest(&mut conn));
    assert!(renew_write(&mut conn, "a", &writer, day).unwrap() && longest(&mut conn));
    // Neither a shorter renewal nor a repeated attempt shortens it.
    assert!(renew_write(&mut conn, "a", &writer, LEASE).unwrap() && longest(&mut conn));
    assert!(writes_alone(&mut conn, &writer, LEASE) && longest(&mut conn));

    // Another hold's value stays.
    conn.hset::<_, _, _, ()>("{lock:a}:lease", "token", "somebody")
        .unwrap();
    conn.persist::<_, ()>("{lock:a}:lease").unwrap();
    assert!(renew_write(&mut conn, "a", &writer, day).unwrap());
    assert_eq!(conn.pttl("{lock:a}:lease"), Ok(-1));
}

#[test]
fn an_expired_hold_cannot_be_renewed() {
    let (_server, mut conn) = start();
    let [over, living] = [(); 2].map(|()| Token::random());
    assert!(reads(&mut conn, &living, LEASE));
    // The other reader keeps the key, so the field is still there.
    let (field, past) = (format!("r:{over}"), millis(&mut conn) - 1);
    let () = conn.hset("lock:a", &field, past).unwrap();
    let before = State::of(&mut conn).unwrap();
    assert!(!renew_read(&mut conn, "a", &over, LEASE).unwrap());
    assert!(!release_read(&mut conn, "a", &over).unwrap());
    assert_eq!(State::of(&mut conn).unwrap(), before);
    // The next write removes it.
    assert!(reads(&mut conn, &Token::random(), LEASE));
    assert_eq!(end_of(&mut conn, &field), None);
}

#[test]
fn a_renewal_reads_no_other_holder() {
    let (_server, mut conn) = start();
    let token = Token::random();
    assert!(reads(&mut conn, &token, LEASE));
    let before = calls(&mut conn, "hgetall").unwrap();
    assert!(renew_read(&mut conn, "a", &token, LEASE).unwrap());
    assert_eq!(calls(&mut conn, "hgetall").unwrap(), before);
}
