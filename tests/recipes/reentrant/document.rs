//! A program on the document's three scripts and one on our functions share a lock.
use std::{collections::HashMap, time::Duration};

use crate::common::{Document, Server, wait::comes_true};
use leasehold::{
    Owner, Token,
    recipes::{
        mutex::{self, End},
        reentrant::{self, Grant, Release},
    },
};
use redis::{Commands, Connection};

const LEASE: Duration = Duration::from_secs(10);

struct World {
    _server: Server,
    document: Document,
    conn: Connection,
    ours: Owner,
}

impl World {
    fn start() -> Self {
        let server = Server::start().unwrap();
        Self {
            document: Document::new(server.connection().unwrap(), "lock:a"),
            conn: server.connection().unwrap(),
            ours: Owner::new("ours").unwrap(),
            _server: server,
        }
    }

    fn acquire(&mut self, token: &Token) -> Option<Grant> {
        reentrant::try_acquire(&mut self.conn, "a", &self.ours, token, LEASE).unwrap()
    }

    fn renew(&mut self, token: &Token, lease: Duration) -> leasehold::Result<bool> {
        reentrant::renew(&mut self.conn, "a", &self.ours, token, lease)
    }

    fn release(&mut self, token: &Token) -> Release {
        reentrant::release(&mut self.conn, "a", &self.ours, token).unwrap()
    }

    fn holds(&mut self) -> u64 {
        reentrant::holds(&mut self.conn, "a", &self.ours).unwrap()
    }

    fn left(&mut self) -> i64 {
        self.conn.pttl("lock:a").unwrap()
    }
}

fn still(count: u64) -> Release {
    Release::StillHeld { count }
}

#[test]
fn they_exclude_each_other() {
    let mut world = World::start();
    let token = Token::random();
    world.acquire(&token).unwrap();
    assert_eq!(world.document.acquire("theirs", "10").unwrap(), 0);
    assert_eq!(world.document.release("theirs"), None);
    assert_eq!(world.document.renew("theirs", 60), 0);
    assert_eq!(world.release(&token), Release::Freed);

    assert_eq!(world.document.acquire("theirs", "10").unwrap(), 1);
    assert_eq!(world.acquire(&token), None);
    assert_eq!(world.release(&token), Release::NotHeld);
    assert!(!world.renew(&Token::random(), 6 * LEASE).unwrap());
    assert_eq!(world.document.release("theirs"), Some(1));
    assert!(world.acquire(&token).is_some());
}

#[test]
fn the_document_releases_and_renews_our_lock() {
    let mut world = World::start();
    let (outer, inner) = (Token::random(), Token::random());
    world.acquire(&outer).unwrap();
    world.acquire(&inner).unwrap();
    let hash: HashMap<String, i64> = world.conn.hgetall("lock:a").unwrap();
    assert_eq!(
        hash,
        HashMap::from([("ours".to_owned(), 2)]),
        "nothing else"
    );
    assert_eq!(world.document.renew("ours", 60), 1);
    assert!(world.left() > 59_000);
    assert_eq!(world.document.release("ours"), Some(0));
    assert_eq!(world.document.release("ours"), Some(1));
    assert_eq!(world.release(&inner), Release::NotHeld);
}

#[test]
fn we_release_and_renew_the_documents_lock() {
    let mut world = World::start();
    for _ in 0..3 {
        assert_eq!(world.document.acquire("ours", "10").unwrap(), 1);
    }
    assert_eq!(world.holds(), 3);
    assert!(world.renew(&Token::random(), 6 * LEASE).unwrap());
    assert!(world.left() > 59_000);
    let (first, second) = (Token::random(), Token::random());
    assert_eq!(world.release(&first), still(2));
    let companion: i64 = world.conn.pttl("{lock:a}:lease").unwrap();
    assert!(
        companion > world.left(),
        "it expires, but not before the lock"
    );
    assert_eq!(
        world.release(&first),
        Release::NotHeld,
        "sent twice, counted once"
    );
    assert_eq!(world.release(&second), still(1));
    assert_eq!(world.release(&Token::random()), Release::Freed);
    assert_eq!(world.left(), -2);
}

#[test]
fn one_owner_enters_by_either() {
    let mut world = World::start();
    let (outer, inner) = (Token::random(), Token::random());
    let first = world.acquire(&outer).unwrap();
    assert_eq!(world.document.acquire("ours", "10").unwrap(), 1);
    let second = world.acquire(&inner).unwrap();
    assert_eq!(second.count(), 3);
    assert_eq!(second.fencing_token(), first.fencing_token());

    assert_eq!(
        world.release(&Token::random()),
        Release::NotHeld,
        "ours come first"
    );
    assert_eq!(world.release(&outer), still(2));
    assert_eq!(world.release(&outer), Release::NotHeld);
    assert_eq!(world.release(&inner), still(1));
    assert_eq!(
        world.release(&inner),
        Release::NotHeld,
        "the rest is the document's"
    );
    assert_eq!(world.document.release("ours"), Some(1));
}

#[test]
fn entering_the_documents_lock_gets_its_own_fencing_token() {
    let mut world = World::start();
    let before = Token::random();
    let first = world.acquire(&before).unwrap();
    assert_eq!(world.release(&before), Release::Freed);
    assert_eq!(world.document.acquire("ours", "60").unwrap(), 1);
    let token = Token::random();
    let second = world.acquire(&token).unwrap();
    assert_eq!(second.count(), 2);
    assert!(second.fencing_token() > first.fencing_token());
    assert!(world.left() > 59_000, "never shortened");
    assert_eq!(
        world.acquire(&token),
        Some(second),
        "sent twice, counted once"
    );
    assert_eq!(
        world.release(&before),
        Release::NotHeld,
        "of the hold before"
    );
    assert_eq!(world.release(&token), still(1));
    assert_eq!(world.document.release("ours"), Some(1));
}

#[test]
fn a_release_sent_twice_does_not_free_a_newer_lock_of_the_document() {
    let mut world = World::start();
    let token = Token::random();
    world.acquire(&token).unwrap();
    assert_eq!(world.release(&token), Release::Freed);
    assert_eq!(world.document.acquire("ours", "10").unwrap(), 1);
    assert_eq!(world.release(&token), Release::NotHeld);
    assert_eq!(world.holds(), 1);
}

#[test]
fn leftovers_of_another_owner_are_not_taken_for_ours() {
    let mut world = World::start();
    let (theirs, old) = (Owner::new("theirs").unwrap(), Token::random());
    let lease = Duration::from_millis(1);
    let before = reentrant::try_acquire(&mut world.conn, "a", &theirs, &old, lease).unwrap();
    for enter in [true, false] {
        assert!(comes_true(|| !world
            .conn
            .exists::<_, bool>("lock:a")
            .unwrap()));
        assert_eq!(world.document.acquire("ours", "10").unwrap(), 1);
        let token = Token::random();
        if enter {
            let entered = world.acquire(&token).unwrap();
            assert!(entered.fencing_token() > before.unwrap().fencing_token());
            assert_eq!(world.release(&token), still(1));
        }
        assert_eq!(world.release(&Token::random()), Release::Freed);
        world.conn.del::<_, ()>("{lock:a}:lease").unwrap();
        reentrant::try_acquire(&mut world.conn, "a", &theirs, &old, lease).unwrap();
    }
}

#[test]
fn leftovers_of_an_earlier_hold_are_not_taken_for_this_one() {
    let mut world = World::start();
    let (outer, inner) = (Token::random(), Token::random());
    world.acquire(&outer).unwrap();
    world.acquire(&inner).unwrap();
    assert_eq!(world.document.release("ours"), Some(0), "one of ours");
    assert_eq!(world.release(&inner), Release::Freed);
    assert_eq!(world.document.acquire("ours", "10").unwrap(), 1);
    assert_eq!(world.release(&outer), Release::NotHeld);
    assert_eq!(world.release(&Token::random()), Release::Freed);
}

#[test]
fn an_earlier_mutex_of_the_same_name_causes_no_duplicate_fencing_token() {
    let mut world = World::start();
    let (ours, token) = (Owner::current_thread(), Token::random());
    let end = End::After(LEASE);
    let before = mutex::try_acquire(&mut world.conn, "a", &token, end)
        .unwrap()
        .unwrap();
    mutex::release(&mut world.conn, "a", &token).unwrap();
    assert_eq!(world.document.acquire(ours.as_str(), "10").unwrap(), 1);
    let inner = Token::random();
    let entered = reentrant::try_acquire(&mut world.conn, "a", &ours, &inner, LEASE).unwrap();
    assert!(entered.unwrap().fencing_token() > before.fencing_token());
}

#[test]
fn the_document_has_its_traps_and_ours_has_none() {
    let mut world = World::start();
    assert_eq!(world.document.acquire("ours", "0").unwrap(), 1);
    assert_eq!(world.left(), -2, "acquired, but not on the server");

    assert_eq!(world.document.acquire("ours", "60").unwrap(), 1);
    assert_eq!(world.document.acquire("ours", "1").unwrap(), 1);
    assert!(world.left() <= 1_000, "entering again shortens");
    world.conn.del::<_, ()>("lock:a").unwrap();

    assert!(world.document.acquire("ours", "0.5").is_err());
    assert_eq!(world.left(), -1, "an error, and a lock that never expires");
    let token = Token::random();
    assert_eq!(world.acquire(&token).unwrap().count(), 2);
    assert!(
        (9_000..=10_001).contains(&world.left()),
        "entering again sets an expiry"
    );
    world.conn.persist::<_, ()>("lock:a").unwrap();
    assert!(world.renew(&token, LEASE).unwrap());
    assert_eq!(world.left(), -1, "a longer lease does not shorten it");
}
