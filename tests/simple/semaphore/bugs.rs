//! The bugs of the book's listings, shown with the book's own steps, and their absence from our
//! functions.

use std::{thread, time::Duration};

use redis::{Commands, Connection};

use super::{ALL, Asked, ONE, TIMEOUT, acquire, age, is_in, release, size};
use crate::common::{
    Server, State,
    book::{Book, BookClient, Edition},
    book_semaphore::{BookSemaphores, SemaphoreClient, Way},
    server::free_cluster_port,
    start, wait,
};
use leasehold::{Error, acquire_fair_semaphore, acquire_semaphore, refresh_fair_semaphore};

fn book(server: &Server) -> BookSemaphores {
    BookSemaphores::new(server).unwrap()
}

/// Bug 1: two callers, each between its two transactions.
#[test]
fn two_callers_of_the_book_both_get_the_last_permit() {
    let server = Server::start().unwrap();
    let (mut a, mut b) = (book(&server), book(&server));
    let (first, second) = (a.arrive(&ONE).unwrap(), b.arrive(&ONE).unwrap());
    assert_eq!(b.join("a", &second).unwrap(), 0, "granted");
    assert_eq!(a.join("a", &first).unwrap(), 0, "granted as well");
    assert!(b.refresh_fair("a", &second.identifier).unwrap());
    assert!(b.release_fair("a", &second.identifier).unwrap());
}

/// Bug 1 with one caller of ours: the first one granted keeps the other out.
#[test]
fn a_caller_of_the_book_with_a_counter_value_is_refused_beside_ours() {
    for way in [Way::Fair, Way::WithLock] {
        let (server, mut conn) = start();
        let mut book = book(&server);
        let arrival = book.arrive(&ONE).unwrap();
        let token = acquire(&mut conn, way, &ONE).unwrap().unwrap();
        assert_eq!(book.join("a", &arrival).unwrap(), 1, "refused");
        book.leave("a", &arrival.identifier).unwrap();
        assert!(release(&mut conn, way, "a", &token).unwrap());

        let arrival = book.arrive(&ONE).unwrap();
        assert_eq!(book.join("a", &arrival).unwrap(), 0, "granted");
        assert_eq!(acquire(&mut conn, way, &ONE).unwrap(), None);
    }
}

/// Bug 1 among our callers: of all who ask at once, exactly as many as the limit get a permit.
#[test]
fn simultaneous_callers_get_exactly_as_many_permits_as_the_limit() {
    let (server, mut conn) = start();
    for (way, limit) in ALL.into_iter().flat_map(|way| [(way, 1), (way, 3)]) {
        for _ in 0..20 {
            let asked = Asked { limit, ..ONE };
            let granted = thread::scope(|scope| {
                let asking: Vec<_> = (0..8)
                    .map(|_| {
                        let mut conn = server.connection().unwrap();
                        scope.spawn(move || acquire(&mut conn, way, &asked).unwrap())
                    })
                    .collect();
                let answers = asking.into_iter().map(|thread| thread.join().unwrap());
                answers.flatten().count()
            });
            assert_eq!(granted, limit as usize, "{way:?}");
            let () = redis::cmd("FLUSHALL").query(&mut conn).unwrap();
        }
    }
}

/// Bug 2: the refused caller dies before its third transaction.
#[test]
fn a_refused_caller_of_the_book_leaves_an_entry_and_ours_leaves_none() {
    let (server, mut conn) = start();
    let mut book = book(&server);
    let held = book.acquire_fair(&ONE).unwrap().unwrap();
    let refused = book.arrive(&ONE).unwrap();
    assert_eq!(book.join("a", &refused).unwrap(), 1);
    assert!(book.release_fair("a", &held).unwrap());
    let free = book.acquire_fair(&ONE).unwrap();
    assert_eq!(free, None, "no permit is held, and none can be acquired");

    for way in ALL {
        let name = way.word();
        let asked = Asked { name, ..ONE };
        let held = acquire(&mut conn, way, &asked).unwrap().unwrap();
        assert_eq!(acquire(&mut conn, way, &asked).unwrap(), None);
        assert_eq!(conn.zcard(name), Ok(1));
        assert!(release(&mut conn, way, name, &held).unwrap());
        assert!(acquire(&mut conn, way, &asked).unwrap().is_some());
    }
}

/// Bug 3, in the format itself: a permit has no expiry of its own.
#[test]
fn a_caller_with_a_shorter_timeout_ends_the_permits_of_others() {
    let (_server, mut conn) = start();
    for way in ALL {
        let name = way.word();
        let held = acquire(&mut conn, way, &Asked { name, ..ONE });
        let held = held.unwrap().unwrap();
        age(&mut conn, name, &held.to_string(), 2);
        let second = Duration::from_secs(1);
        let asked = Asked {
            name,
            timeout: second,
            ..ONE
        };
        assert!(acquire(&mut conn, way, &asked).unwrap().is_some());
        assert!(
            !release(&mut conn, way, name, &held).unwrap(),
            "its release notices"
        );
    }
}

/// Bug 4: a client with a slow clock.
#[test]
fn a_slow_client_clock_breaks_the_books_semaphore_and_not_ours() {
    let (server, mut conn) = start();
    let (mut right, mut slow) = (book(&server), book(&server));
    slow.clock_ahead = -1.0;
    assert!(right.acquire(&ONE).unwrap().is_some());
    assert!(slow.acquire(&ONE).unwrap().is_some(), "beside it");

    // Ours count holders with fast clocks, among which theirs would rank first.
    right.clock_ahead = 5.0;
    for way in ALL {
        let name = way.word();
        let asked = Asked { name, ..ONE };
        let ahead = match way {
            Way::Basic => right.acquire(&asked),
            Way::Fair | Way::WithLock => right.acquire_fair(&asked),
        };
        assert!(ahead.unwrap().is_some());
        assert_eq!(acquire(&mut conn, way, &asked).unwrap(), None);
    }
}

/// Bug 6. ends.rs tests that our keys expire.
#[test]
fn the_books_keys_have_no_expiry() {
    let (server, mut conn) = start();
    assert!(book(&server).acquire_fair(&ONE).unwrap().is_some());
    for key in ["a", "a:owner", "a:counter"] {
        assert_eq!(conn.pttl(key), Ok(-1));
    }
}

/// Bug 7: a program dies in between, and its lock stays.
#[test]
fn a_lock_without_expiry_blocks_the_book_for_ever_and_ours_until_it_gets_one() {
    let (server, mut conn) = start();
    let mut book = book(&server);
    let () = conn.set("lock:a", "one that died").unwrap();
    assert_eq!(book.acquire_with_lock(&ONE).unwrap(), None);
    assert_eq!(conn.pttl("lock:a"), Ok(-1));

    let busy = acquire(&mut conn, Way::WithLock, &ONE).unwrap_err();
    assert!(busy.is_contended(), "not: no permit");
    assert!(busy.to_string().contains("not acquired within"), "{busy}");
    let left: i64 = conn.pttl("lock:a").unwrap();
    assert!((1..=10_000).contains(&left), "{left}");
    let busy = acquire(&mut conn, Way::WithLock, &ONE);
    assert!(busy.is_err_and(|error| error.is_contended()));
    let then: i64 = conn.pttl("lock:a").unwrap();
    assert!(then <= left, "an existing expiry stays");
    assert_eq!(conn.exists("a"), Ok(false), "no other key was written");
    let () = conn.pexpire("lock:a", 1).unwrap();
    assert!(wait::comes_true(
        || acquire(&mut conn, Way::WithLock, &ONE).is_ok_and(|permit| permit.is_some())
    ));
}

/// Bug 7: our function waits a moment for the book's lock, and leaves none of its own.
#[test]
fn a_held_lock_delays_ours_for_a_moment() {
    let (server, mut conn) = start();
    let mut locks = Book::new(&server, Edition::Python).unwrap();
    let lock = locks.acquire_lock("a", TIMEOUT).unwrap().unwrap();
    let mut other = server.connection().unwrap();
    // On a busy machine the ten milliseconds may end after one attempt.
    assert!(wait::comes_true(|| {
        let attempts = wait::calls(&mut other, "evalsha").unwrap();
        let busy = acquire(&mut conn, Way::WithLock, &ONE);
        assert!(matches!(busy, Err(Error::Contended { .. })), "{busy:?}");
        wait::calls(&mut other, "evalsha").unwrap() >= attempts + 2
    }));
    assert!(locks.release_lock("a", &lock).unwrap());
    let permit = acquire(&mut conn, Way::WithLock, &ONE).unwrap().unwrap();
    assert_eq!(
        acquire(&mut conn, Way::WithLock, &ONE).unwrap(),
        None,
        "no permit"
    );
    assert_eq!(conn.exists("lock:a"), Ok(false));
    assert!(release(&mut conn, Way::WithLock, "a", &permit).unwrap());
}

/// Bug 8: the listing adds the permit before it checks.
#[test]
fn a_refresh_of_a_lost_permit_writes_nothing() {
    let (server, mut conn) = start();
    let lost = acquire(&mut conn, Way::Fair, &ONE).unwrap().unwrap();
    age(&mut conn, "a", &lost.to_string(), 11);
    let held = acquire(&mut conn, Way::Fair, &ONE).unwrap().unwrap();
    let before = State::of(&mut conn).unwrap();
    assert!(!refresh_fair_semaphore(&mut conn, "a", &lost).unwrap());
    assert_eq!(State::of(&mut conn).unwrap(), before);
    assert!(refresh_fair_semaphore(&mut conn, "a", &held).unwrap());

    // The book's first step alone, by a program that died after it: a token in one set is no
    // permit.
    let at: f64 = conn.zscore("a", held.to_string()).unwrap();
    let () = conn.zadd("a", lost.to_string(), at).unwrap();
    assert!(!refresh_fair_semaphore(&mut conn, "a", &lost).unwrap());
    assert!(!release(&mut conn, Way::Fair, "a", &lost).unwrap());
    assert!(!is_in(&mut conn, "a", &lost.to_string()), "and it is gone");
    drop(server);
}

/// Bug 9: the three keys of a name without a tag are in several slots.
#[test]
fn on_a_cluster_a_name_without_a_tag_is_refused_with_the_reason() {
    let (mut conn, _server) = single_node_of_a_cluster();
    for ways in [Way::Fair, Way::WithLock] {
        let refused = acquire(&mut conn, ways, &ONE);
        let Err(Error::Invalid {
            argument, reason, ..
        }) = refused
        else {
            panic!("{refused:?}");
        };
        assert_eq!(argument, "semname");
        assert!(reason.contains("{tag}"), "{reason}");
    }
    let token = leasehold::Token::random();
    let released = release(&mut conn, Way::Fair, "a", &token);
    assert!(
        matches!(released, Err(Error::Invalid { .. })),
        "{released:?}"
    );
    let refreshed = refresh_fair_semaphore(&mut conn, "a", &token);
    assert!(
        matches!(refreshed, Err(Error::Invalid { .. })),
        "{refreshed:?}"
    );
    assert_eq!(size(&mut conn), 0);

    let basic = acquire_semaphore(&mut conn, "a", 1, TIMEOUT).unwrap();
    assert!(basic.is_some(), "one key is in one slot");
    for way in [Way::Fair, Way::WithLock] {
        let name = "{partner}:api";
        let asked = Asked { name, ..ONE };
        let token = acquire(&mut conn, way, &asked).unwrap().unwrap();
        assert!(refresh_fair_semaphore(&mut conn, name, &token).unwrap());
        assert_eq!(
            acquire_fair_semaphore(&mut conn, name, 1, TIMEOUT).unwrap(),
            None
        );
        assert!(release(&mut conn, way, name, &token).unwrap());
    }
}

/// A single node that serves all slots.
fn single_node_of_a_cluster() -> (Connection, Server) {
    let server = Server::start_on(free_cluster_port, &["--cluster-enabled", "yes"]).unwrap();
    let mut conn = server.connection().unwrap();
    let mut add = redis::cmd("CLUSTER");
    let slots: Vec<u16> = (0..16_384).collect();
    let () = add.arg("ADDSLOTS").arg(slots).query(&mut conn).unwrap();
    // A node accepts no writes in the first two seconds after its start.
    assert!(wait::comes_true(|| {
        let info: String = redis::cmd("CLUSTER").arg("INFO").query(&mut conn).unwrap();
        info.contains("cluster_state:ok")
    }));
    (conn, server)
}
