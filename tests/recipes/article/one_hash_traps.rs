//! The traps of the article's cluster edition: what our functions do about each, and what the
//! article's own scripts can still do.

use std::time::Duration;

use crate::common::{
    article::one_hash as article,
    hash_world::{KEY, LEASES, World, tokens},
    wait::comes_true,
};
use leasehold::{
    Error, Token,
    book::article::one_hash::{Lifetimes, acquire_read, acquire_write},
};
use redis::{Commands, Value};

#[test]
fn trap_37_a_a_second_reader_neither_replaces_nor_frees_the_first() {
    let mut a = World::new();
    let [one, two, writer] = tokens();
    for [first, second] in [[&one, &two], [&two, &one]] {
        assert!(a.reads(&one) && a.reads(&two) && a.stops_reading(first));
        let now = a.now();
        assert!(!a.article_acquires("write", now) && !a.writes(&writer));
        assert!(a.stops_reading(second) && a.is_free());
    }

    // With the article's scripts the first release does nothing, and the second frees both.
    let now = a.now();
    assert!(a.article_acquires("read", now) && a.article_acquires("read", now + 1));
    a.article_releases("read", now);
    assert!(a.field("read").is_some());
    a.article_releases("read", now + 1);
    assert!(a.article_acquires("write", now + 1));
}

type Step = fn(&mut World, &Token) -> bool;

/// Cannot be fixed: the article's writers do not see a reader of ours whose `read` is gone. Ours
/// do, and our next call to acquire or release restores it.
#[test]
fn trap_37_a_the_articles_reader_frees_ours() {
    let mut a = World::new();
    let [reader, another, writer] = tokens();
    let now = a.now();
    assert!(a.reads(&reader) && a.reads(&another) && a.article_acquires("read", now));
    a.article_releases("read", now);
    assert!(a.field("read").is_none() && !a.writes(&writer));
    assert!(a.stops_reading(&another));
    assert!(!a.article_acquires("write", now));

    assert!(a.article_acquires("read", now));
    a.article_releases("read", now);
    assert!(a.article_acquires("write", now) && a.stops_reading(&reader));
}

#[test]
fn trap_37_b_each_reader_has_its_own_expiry() {
    let mut a = World::new();
    let [one, two] = tokens();
    assert!(a.reads(&one));
    let stamp = a.field("read").unwrap();
    let (whole, fraction) = stamp.split_once('.').unwrap();
    assert_eq!(fraction.len(), 3, "unlike any time of the article's");
    // A client of the article's with the same millisecond does not release ours.
    let same: i64 = whole.parse().unwrap();
    a.article_releases("read", same);
    assert_eq!(a.field("read"), Some(stamp.clone()));
    // Two of ours with the same stamp remain two.
    a.put(&format!("read:{two}"), &stamp);
    assert!(a.stops_reading(&one));
    assert_eq!(a.field("read"), Some(stamp));
    assert!(a.stops_reading(&two) && a.is_free());

    // With the article's scripts, each releases the other's lock.
    assert!(a.article_acquires("read", same) && a.article_acquires("read", same));
    a.article_releases("read", same);
    assert!(a.article_acquires("write", same));
}

#[test]
fn trap_37_c_ours_uses_the_servers_clock() {
    let mut a = World::new();
    let [reader, writer] = tokens();
    let now = a.now();
    // After a reader with a slow clock, ours moves the time forward.
    assert!(a.article_acquires("read", now - 15_000) && a.reads(&reader));
    let stamp = a.field("read").unwrap();
    let (whole, _) = stamp.split_once('.').unwrap();
    assert!(whole.parse::<i64>().unwrap() >= now, "{stamp}");
    // After one with a fast clock, ours does not move it back.
    let ahead = (now + 15_000).to_string();
    a.put("read", &ahead);
    assert!(a.reads(&reader));
    assert_eq!(a.field("read"), Some(ahead));
    assert!(!a.writes(&writer));
}

/// Cannot be fixed: a client of the article's uses and writes its own clock.
#[test]
fn trap_37_c_a_client_of_the_articles_with_a_wrong_clock() {
    let mut a = World::new();
    let [writer, reader] = tokens();
    assert!(a.writes(&writer));
    let now = a.now();
    assert!(!a.article_acquires("write", now + 25_000));
    assert!(
        a.article_acquires("write", now + 60_000),
        "it steals the lock"
    );
    assert!(!a.stops_writing(&writer), "and our release notices");
    // It keeps others out for a minute more than its lease, or until the key expires.
    assert!(!a.reads(&reader) && a.left() <= 90_000);
    a.conn.pexpire::<_, ()>(KEY, 1).unwrap();
    a.wait_until_the_key_ends();
    assert!(a.reads(&reader));
}

#[test]
fn trap_37_d_expired_holders_are_removed() {
    let mut a = World::new();
    let [late, next] = tokens();
    let over = (a.now() - 30_001).to_string();
    for side in ["write", "read"] {
        for acquire in [World::reads, World::writes] {
            a.put(side, &over);
            a.put(&format!("{side}:{late}"), &over);
            assert!(acquire(&mut a, &next));
            assert_eq!(a.fields(), 2, "an expired field remains");
            assert!(!a.stops_writing(&late) && !a.stops_reading(&late));
            a.put(&format!("{side}:{late}"), &over);
            assert!(a.stops_reading(&next) || a.stops_writing(&next));
            assert!(a.is_free());
        }
    }

    // With the article's scripts, the reader keeps the writer's field.
    a.put("write", &over);
    let now = a.now();
    assert!(a.article_acquires("read", now));
    assert_eq!(a.field("write"), Some(over));
}

#[test]
fn trap_37_e_the_key_lasts_as_long_as_its_holders() {
    let mut a = World::new();
    let [reader, another] = tokens();
    let short = Lifetimes {
        key: Duration::from_secs(29),
        ..LEASES
    };
    let refused = acquire_write(&mut a.conn, KEY, &reader, Duration::ZERO, &short);
    let is_the_key = |error| {
        matches!(
            error,
            Error::Invalid {
                argument: "key lease",
                ..
            }
        )
    };
    assert!(is_the_key(refused.unwrap_err()));

    // A later reader never shortens the key's life.
    assert!(a.reads(&reader));
    a.leases.key = a.leases.write;
    assert!(a.reads(&another) && a.left() > 60_000);

    // With the article's scripts the key expires, and a writer's lock with it.
    let mut a = World::new();
    let (now, lengths) = (a.now().to_string(), [1, 20_000, 30_000]);
    assert!(article::acquire_for(
        &mut a.conn,
        "write",
        KEY,
        &now,
        lengths
    ));
    a.wait_until_the_key_ends();
    assert!(article::acquire_for(
        &mut a.conn,
        "write",
        KEY,
        &now,
        lengths
    ));
}

#[test]
fn trap_37_f_no_change_of_mode_and_no_second_entry() {
    let mut a = World::new();
    let [token, another] = tokens();
    assert!(a.reads(&token) && !a.writes(&token), "upgrade");
    assert!(a.stops_reading(&token));
    assert!(a.writes(&token) && !a.reads(&token), "downgrade");
    assert!(!a.writes(&another), "second entry");
}

#[test]
fn trap_37_g_a_release_says_whether_the_lock_was_still_held() {
    let mut a = World::new();
    let token = Token::random();
    assert!(a.writes(&token) && a.stops_writing(&token) && !a.stops_writing(&token));
    assert!(a.reads(&token) && a.stops_reading(&token) && !a.stops_reading(&token));

    // The article's scripts return nothing in either case.
    let now = a.now();
    assert!(a.article_acquires("write", now));
    let answers = [(); 2].map(|()| a.article_releases("write", now));
    assert_eq!(answers, [Value::Nil, Value::Nil]);
}

#[test]
fn trap_37_h_the_stamp_is_stored_and_compared_in_one_unit() {
    let mut a = World::new();
    for _ in 0..200 {
        let token = Token::random();
        assert!(a.writes(&token) && a.stops_writing(&token));
    }
    // With the article's scripts, a time in nanoseconds is rounded when stored, and no release
    // finds it.
    let nanos = "1700000000123456789";
    assert!(article::acquire_for(
        &mut a.conn,
        "write",
        KEY,
        nanos,
        article::LENGTHS
    ));
    assert_ne!(a.field("write").as_deref(), Some(nanos));
    article::release(&mut a.conn, "write", KEY, nanos);
    assert!(a.field("write").is_some());
    // Ours reject it as a time.
    let answer = acquire_read(
        &mut a.conn,
        KEY,
        &Token::random(),
        Duration::ZERO,
        &a.leases,
    );
    assert!(matches!(answer, Err(Error::WrongKind { .. })), "{answer:?}");
}

#[test]
fn trap_37_i_an_overdue_holder_is_told() {
    let mut a = World::new();
    a.leases.read = Duration::from_millis(1);
    a.leases.write = a.leases.read;
    let token = Token::random();
    let modes: [(&str, Step, Step); 2] = [
        ("read", World::reads, World::stops_reading),
        ("write", World::writes, World::stops_writing),
    ];
    for (field, acquire, release) in modes {
        assert!(acquire(&mut a, &token));
        let come = a.now();
        assert!(comes_true(|| a.now() > come + 2));
        // No client has acquired since, and the fields are still there.
        assert!(a.field(field).is_some() && !release(&mut a, &token));
    }
}
