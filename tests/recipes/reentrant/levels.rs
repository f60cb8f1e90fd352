//! Each acquisition by an owner is a level with its own lease.

use std::{
    thread,
    time::{Duration, Instant},
};

use leasehold::{
    Error, Token,
    recipes::{
        Hold,
        reentrant::{self, Release},
    },
};
use redis::{Commands, Connection, FromRedisValue, Value};

use super::{LEASE, MINUTE, SECOND, holds, left, owner, release, try_acquire};
use crate::common::{
    clock::{millis, told_otherwise_after, told_the_time},
    start,
    wait::{TOO_SLOW, comes_true, unless_halted},
};

/// As after an acquire that was executed too late for its caller, or whose process died.
#[test]
fn an_orphaned_level_expires_with_its_own_lease_whoever_enters_meanwhile() {
    let (_server, mut conn) = start();
    let (ours, theirs) = (owner("ours"), owner("theirs"));
    let lease = Duration::from_millis(300);
    let lost = Token::random();
    let started = Instant::now();
    reentrant::try_acquire(&mut conn, "a", &ours, &lost, lease).unwrap();
    let mut granted = None;
    while granted.is_none() && started.elapsed() < 10 * SECOND {
        let token = Token::random();
        let entered = reentrant::try_acquire(&mut conn, "a", &ours, &token, MINUTE).unwrap();
        assert!(entered.unwrap().count() <= 2);
        thread::sleep(Duration::from_millis(20));
        assert_ne!(release(&mut conn, &ours, &token), Release::NotHeld);
        granted = try_acquire(&mut conn, &theirs, &Token::random());
    }
    assert!(granted.is_some(), "it never expires");
    assert!(started.elapsed() >= lease);
    assert!(!reentrant::renew(&mut conn, "a", &ours, &lost, MINUTE).unwrap());
    assert_eq!(release(&mut conn, &ours, &lost), Release::NotHeld);
}

/// A server that pauses while it executes the script, as before Redis 8 and Valkey 8: its first
/// `TIME` is one Lua expression of the real time, in microseconds, the later ones another.
struct Late<'s> {
    script: &'s str,
    first: &'s str,
    then: &'s str,
}

impl Late<'_> {
    fn run<T: FromRedisValue>(&self, conn: &mut Connection, token: &Token, lease: Duration) -> T {
        let parts = [
            "recipes/companion.lua",
            "recipes/reentrant/levels.lua",
            self.script,
        ];
        let script = told_the_time(&parts, self.first);
        let lease = lease.as_millis().to_string();
        redis::cmd("EVAL")
            .arg(told_otherwise_after(&script, TOLD, self.then))
            .arg((2, "lock:a", "{lock:a}:lease"))
            .arg(("ours", token.to_string(), lease, 0, 0))
            .query(conn)
            .unwrap()
    }
}

/// The script's line after its first `TIME`.
const TOLD: &str = "counted = count\n";
const NOW: &str = "real";
const ACQUIRE: &str = "recipes/reentrant/acquire.lua";

fn end_of_level(conn: &mut Connection, token: &Token) -> i64 {
    conn.hget("{lock:a}:lease", format!("t:{token}")).unwrap()
}

/// The script reads the clock long after the last level has ended, but the key existed when it
/// began.
#[test]
fn a_level_that_expires_within_a_script_is_not_taken_for_the_documents() {
    type Acquire<'a> = &'a dyn Fn(&mut Connection, &Token);
    const LEASE: Duration = Duration::from_millis(600);
    let on_time = |conn: &mut Connection, lost: &Token| {
        reentrant::try_acquire(conn, "a", &owner("ours"), lost, LEASE).unwrap();
    };
    // The key's expiry counts from a later time than the level's: much later, so that the script
    // sets it again, or a little.
    let late = |conn: &mut Connection, lost: &Token, first: &str| {
        let script = ACQUIRE;
        let then = NOW;
        Late {
            script,
            first,
            then,
        }
        .run::<Value>(conn, lost, LEASE);
    };
    let very_late = |conn: &mut Connection, lost: &Token| late(conn, lost, "real - 150000");
    let late = |conn: &mut Connection, lost: &Token| late(conn, lost, "real - 40000");
    let acquires: [Acquire<'_>; 3] = [&on_time, &very_late, &late];
    for acquire in acquires {
        let (_server, mut conn) = start();
        let (ours, theirs) = (owner("ours"), owner("theirs"));
        let (lost, token) = (Token::random(), Token::random());
        if redis::cmd("PEXPIRETIME").arg("a").exec(&mut conn).is_err() {
            // On Redis 6.2 the script can read only the key's real expiry.
            return;
        }
        acquire(&mut conn, &lost);
        let until = end_of_level(&mut conn, &lost) + 120;
        let told = format!("math.max(real, {until}000)");
        let late = Late {
            script: ACQUIRE,
            first: &told,
            then: &told,
        };
        let (_, count): (u64, u64) = late.run(&mut conn, &token, MINUTE);
        assert_eq!(count, 1);
        assert_eq!(release(&mut conn, &ours, &token), Release::Freed);
        assert!(try_acquire(&mut conn, &theirs, &Token::random()).is_some());
    }
}

/// The script reads the clock late, and finds less time left than its lease.
#[test]
fn a_pause_within_a_script_does_not_end_a_longer_lease() {
    type Holds<'h> = &'h dyn Fn(&mut Connection, &Token) -> i64;
    let lasts = Duration::from_millis(1_300);
    let level = |conn: &mut Connection, token: &Token| {
        let (ours, long) = (owner("ours"), Token::random());
        reentrant::try_acquire(conn, "a", &ours, &long, lasts).unwrap();
        reentrant::try_acquire(conn, "a", &ours, token, lasts / 4).unwrap();
        end_of_level(conn, &long)
    };
    let of_the_notes = |conn: &mut Connection, _: &Token| {
        let () = conn.hset("lock:a", "ours", 1).unwrap();
        let before = millis(conn);
        let () = conn.pexpire("lock:a", 1_300).unwrap();
        before + 1_300
    };
    let cases: [(Holds<'_>, &str); 3] = [
        (&level, "recipes/reentrant/renew.lua"),
        (&of_the_notes, "recipes/reentrant/renew.lua"),
        (&of_the_notes, ACQUIRE),
    ];
    for (holds, script) in cases {
        let (_server, mut conn) = start();
        let token = Token::random();
        let end = holds(&mut conn, &token);
        thread::sleep(Duration::from_millis(400)); // the pause
        let late = Late {
            script,
            first: "real - 400000",
            then: NOW,
        };
        late.run::<Value>(&mut conn, &token, SECOND);
        let left: i64 = conn.pttl("lock:a").unwrap();
        let ends = millis(&mut conn) + left;
        assert!(ends >= end, "{script} {ends} {end}");
    }
}

#[test]
fn other_levels_of_an_owner_do_not_change_the_lease_of_an_acquisition() {
    let (_server, mut conn) = start();
    let (ours, short, long) = (owner("ours"), Token::random(), Token::random());
    try_acquire(&mut conn, &ours, &short).unwrap();
    reentrant::try_acquire(&mut conn, "a", &ours, &long, MINUTE).unwrap();
    assert!(left(&mut conn) > 59_000);
    assert!(reentrant::renew(&mut conn, "a", &ours, &long, 2 * MINUTE).unwrap());
    assert_eq!(
        release(&mut conn, &ours, &long),
        Release::StillHeld { count: 1 }
    );
    let left = left(&mut conn);
    // An expiry is a whole millisecond, and the key lasts until after it; all this may take less
    // than one.
    assert!((9_000..=10_001).contains(&left), "{left}");
    assert_eq!(release(&mut conn, &ours, &short), Release::Freed);
}

/// As the notes' scripts leave it; they have no levels.
#[test]
fn entering_again_gives_a_lock_without_expiry_that_of_its_longest_level() {
    let (_server, mut conn) = start();
    let (ours, long, short) = (owner("ours"), Token::random(), Token::random());
    reentrant::try_acquire(&mut conn, "a", &ours, &long, MINUTE).unwrap();
    let () = conn.persist("lock:a").unwrap();
    try_acquire(&mut conn, &ours, &short).unwrap();
    assert!((40_000..=60_000).contains(&left(&mut conn)));
}

/// An expiry is in whole milliseconds, and the last one belongs to the lease.
#[test]
fn a_release_leaves_an_acquisition_in_its_last_millisecond() {
    let (_server, mut conn) = start();
    let (ours, theirs) = (owner("ours"), owner("theirs"));
    let (short, long) = (Token::random(), Token::random());
    reentrant::try_acquire(&mut conn, "a", &ours, &short, SECOND).unwrap();
    try_acquire(&mut conn, &ours, &long).unwrap();
    let end = end_of_level(&mut conn, &short);
    let told = format!("{end}999");
    let late = Late {
        script: "recipes/reentrant/release.lua",
        first: &told,
        then: &told,
    };
    let held_until_now: u64 = late.run(&mut conn, &long, Duration::ZERO);
    assert_eq!(held_until_now, 2, "the release freed it before its end");
    let is_free = comes_true(|| try_acquire(&mut conn, &theirs, &Token::random()).is_some());
    assert!(is_free, "still held after its end");
}

#[test]
fn an_expired_acquisition_is_not_renewed_even_if_still_counted() {
    unless_halted(|| {
        let (_server, mut conn) = start();
        let (ours, over) = (owner("ours"), Token::random());
        try_acquire(&mut conn, &ours, &Token::random()).unwrap();
        let short = Duration::from_millis(20);
        reentrant::try_acquire(&mut conn, "a", &ours, &over, short).unwrap();
        thread::sleep(2 * short);
        let field = format!("t:{over}");
        let end: Option<String> = conn.hget("{lock:a}:lease", &field).unwrap();
        // 100 ms after its end the next script removes it.
        let kept_until = end.as_ref().unwrap().parse::<i64>().unwrap() + 90;
        assert!(!reentrant::renew(&mut conn, "a", &ours, &over, MINUTE).unwrap());
        let still: Option<String> = conn.hget("{lock:a}:lease", &field).unwrap();
        assert!(
            still.is_some() || millis(&mut conn) < kept_until,
            "{TOO_SLOW}"
        );
        assert_eq!(still, end);
        assert!(left(&mut conn) <= 10_000);
    });
}

#[test]
fn a_hold_releases_nothing_that_the_documents_scripts_took() {
    let (_server, mut conn) = start();
    let ours = owner("ours");
    for companion in [false, true] {
        if companion {
            let token = Token::random();
            try_acquire(&mut conn, &ours, &token).unwrap();
            release(&mut conn, &ours, &token);
        }
        conn.hset::<_, _, _, ()>("lock:a", "ours", 1).unwrap();
        conn.pexpire::<_, ()>("lock:a", 10_000).unwrap();
        let never_counted = Hold::reentrant("a", &ours, &Token::random()).unwrap();
        // There is no replica, so it is released.
        let confirmed = never_counted.confirm_by_replicas(&mut conn, 1, LEASE / 1_000);
        assert!(
            matches!(confirmed, Err(Error::TooFewReplicas { .. })),
            "{confirmed:?}"
        );
        assert_eq!(holds(&mut conn, &ours), 1);
        conn.del::<_, ()>("lock:a").unwrap();
    }
}
