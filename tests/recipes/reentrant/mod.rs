//! The lock that its owner may enter again: who gets it, how often, for how long, and the effect of
//! a retry.

mod document;
mod levels;

use std::{collections::HashMap, time::Duration};

use crate::common::{State, start, wait::comes_true};
use leasehold::{
    Owner, Token,
    recipes::reentrant::{self, Grant, Release},
};
use redis::{Commands, Connection};

const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(10);
const MINUTE: Duration = Duration::from_mins(1);

fn owner(text: &str) -> Owner {
    Owner::new(text).unwrap()
}

fn try_acquire(conn: &mut Connection, owner: &Owner, token: &Token) -> Option<Grant> {
    reentrant::try_acquire(conn, "a", owner, token, LEASE).unwrap()
}

fn release(conn: &mut Connection, owner: &Owner, token: &Token) -> Release {
    reentrant::release(conn, "a", owner, token).unwrap()
}

fn holds(conn: &mut Connection, owner: &Owner) -> u64 {
    reentrant::holds(conn, "a", owner).unwrap()
}

/// The lock's remaining milliseconds, -1 without an end, -2 if free.
fn left(conn: &mut Connection) -> i64 {
    conn.pttl("lock:a").unwrap()
}

#[test]
fn only_its_owner_enters_again() {
    let (_server, mut conn) = start();
    let (ours, theirs) = (owner("ours"), owner("theirs"));
    let tokens = [Token::random(), Token::random(), Token::random()];
    let mut fences = Vec::new();
    for (token, count) in tokens.iter().zip(1..) {
        let grant = try_acquire(&mut conn, &ours, token).unwrap();
        assert_eq!(grant.count(), count);
        assert_eq!(holds(&mut conn, &ours), count);
        fences.push(grant.fencing_token());
        assert_eq!(try_acquire(&mut conn, &theirs, &Token::random()), None);
    }
    assert_eq!(fences, [fences[0]; 3], "one hold, one fencing token");
    let hash: HashMap<String, u64> = conn.hgetall("lock:a").unwrap();
    assert_eq!(hash, HashMap::from([("ours".to_owned(), 3)]));
    assert!((9_000..=10_000).contains(&left(&mut conn)));

    // In any order.
    let still = |count| Release::StillHeld { count };
    assert_eq!(release(&mut conn, &ours, &tokens[1]), still(2));
    assert_eq!(release(&mut conn, &ours, &tokens[0]), still(1));
    assert_eq!(try_acquire(&mut conn, &theirs, &Token::random()), None);
    assert_eq!(release(&mut conn, &ours, &tokens[2]), Release::Freed);
    assert_eq!(left(&mut conn), -2);
    assert_eq!(holds(&mut conn, &ours), 0);
    let next = try_acquire(&mut conn, &theirs, &Token::random()).unwrap();
    assert!(next.fencing_token() > fences[0]);
}

#[test]
fn a_late_renewal_does_not_touch_the_next_hold() {
    let (_server, mut conn) = start();
    let (ours, earlier) = (owner("ours"), Token::random());
    let short = Duration::from_millis(1);
    reentrant::try_acquire(&mut conn, "a", &ours, &earlier, short).unwrap();
    assert!(comes_true(|| !conn.exists::<_, bool>("lock:a").unwrap()));
    let token = Token::random();
    reentrant::try_acquire(&mut conn, "a", &ours, &token, LEASE).unwrap();
    let before = State::of(&mut conn).unwrap();
    assert!(!reentrant::renew(&mut conn, "a", &ours, &earlier, MINUTE).unwrap());
    assert_eq!(State::of(&mut conn).unwrap(), before);
    assert!(reentrant::renew(&mut conn, "a", &ours, &token, SECOND).unwrap());
    assert!(left(&mut conn) > 9_000);
}

#[test]
fn a_late_release_does_not_free_the_next_hold() {
    let (_server, mut conn) = start();
    let ours = owner("ours");
    let (outer, inner, next) = (Token::random(), Token::random(), Token::random());
    let first = try_acquire(&mut conn, &ours, &outer).unwrap();
    try_acquire(&mut conn, &ours, &inner).unwrap();
    conn.pexpire::<_, ()>("lock:a", 1).unwrap();
    assert!(comes_true(|| !conn.exists::<_, bool>("lock:a").unwrap()));
    assert_eq!(release(&mut conn, &ours, &inner), Release::NotHeld);

    let second = try_acquire(&mut conn, &ours, &next).unwrap();
    assert_eq!(second.count(), 1);
    assert!(second.fencing_token() > first.fencing_token());
    assert_eq!(release(&mut conn, &ours, &inner), Release::NotHeld);
    assert_eq!(release(&mut conn, &ours, &outer), Release::NotHeld);
    assert_eq!(holds(&mut conn, &ours), 1);
    assert_eq!(release(&mut conn, &ours, &next), Release::Freed);
}

#[test]
fn a_lock_of_another_holder_is_left_alone() {
    let (_server, mut conn) = start();
    let (ours, theirs, token) = (owner("ours"), owner("theirs"), Token::random());
    try_acquire(&mut conn, &theirs, &token).unwrap();
    let before = State::of(&mut conn).unwrap();
    assert_eq!(try_acquire(&mut conn, &ours, &token), None);
    assert_eq!(
        release(&mut conn, &ours, &token),
        Release::NotHeld,
        "right token, wrong owner"
    );
    assert_eq!(
        release(&mut conn, &theirs, &Token::random()),
        Release::NotHeld,
        "right owner, wrong token"
    );
    assert_eq!(holds(&mut conn, &ours), 0);
    assert_eq!(State::of(&mut conn).unwrap(), before);
}
