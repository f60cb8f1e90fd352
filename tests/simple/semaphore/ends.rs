//! Bug 6 of the book: its keys never expire. Ours do, and no call shortens their expiry.

use std::time::Duration;

use redis::{Commands, Connection};

use super::{ALL, Asked, DAY, ONE, acquire};
use crate::common::{
    book_semaphore::{BookSemaphores, SemaphoreClient, Way},
    start, wait,
};
use leasehold::refresh_fair_semaphore;

/// The delay of a slow machine.
const LATE: i64 = 60_000;

fn keys(way: Way) -> Vec<String> {
    let name = way.word();
    match way {
        Way::Basic => vec![name.to_owned()],
        Way::Fair | Way::WithLock => vec![name.to_owned(), format!("{name}:owner")],
    }
}

fn assert_ends_in(conn: &mut Connection, way: Way, millis: i64) {
    let ends = keys(way).into_iter().map(|key| conn.pttl(key).unwrap());
    let ends: Vec<i64> = ends.collect();
    for left in &ends {
        assert!((millis - LATE..=millis).contains(left), "{way:?}: {left}");
        assert!((left - ends[0]).abs() <= 250, "a single expiry: {ends:?}");
    }
}

#[test]
fn the_keys_expire_a_day_or_ten_timeouts_after_the_last_call() {
    let (_server, mut conn) = start();
    for way in ALL {
        let name = way.word();
        let hours = |hours: u64| Asked {
            name,
            limit: 2,
            timeout: Duration::from_secs(hours * 3_600),
        };
        assert!(acquire(&mut conn, way, &hours(1)).unwrap().is_some());
        assert_ends_in(&mut conn, way, DAY);
        let longer = acquire(&mut conn, way, &hours(24)).unwrap().unwrap();
        assert_ends_in(&mut conn, way, 10 * DAY);

        assert_eq!(acquire(&mut conn, way, &hours(1)).unwrap(), None);
        assert_ends_in(&mut conn, way, 10 * DAY);
        if way != Way::Basic {
            assert!(refresh_fair_semaphore(&mut conn, name, &longer).unwrap());
            assert_ends_in(&mut conn, way, 10 * DAY);
        }
    }
}

#[test]
fn each_call_extends_an_expiry_that_is_near() {
    let (_server, mut conn) = start();
    for way in ALL {
        let asked = Asked {
            name: way.word(),
            ..ONE
        };
        let token = acquire(&mut conn, way, &asked).unwrap().unwrap();
        let near = |conn: &mut Connection| {
            for key in keys(way) {
                let () = conn.pexpire(key, 100_000).unwrap();
            }
        };
        near(&mut conn);
        assert_eq!(acquire(&mut conn, way, &asked).unwrap(), None);
        assert_ends_in(&mut conn, way, DAY);
        if way != Way::Basic {
            near(&mut conn);
            assert!(refresh_fair_semaphore(&mut conn, asked.name, &token).unwrap());
            assert_ends_in(&mut conn, way, DAY);
        }
    }
}

#[test]
fn the_books_keys_get_an_expiry_and_its_programs_survive_it() {
    let (server, mut conn) = start();
    let mut book = BookSemaphores::new(&server).unwrap();
    for way in ALL {
        let asked = Asked {
            name: way.word(),
            limit: 2,
            ..ONE
        };
        let mut theirs = || match way {
            Way::Basic => book.acquire(&asked),
            Way::Fair | Way::WithLock => book.acquire_fair(&asked),
        };
        assert!(theirs().unwrap().is_some());
        assert!(acquire(&mut conn, way, &asked).unwrap().is_some());
        assert_ends_in(&mut conn, way, DAY);
        assert_eq!(theirs().unwrap(), None);

        for key in keys(way) {
            let () = conn.pexpire(key, 1).unwrap();
        }
        let name = asked.name;
        assert!(wait::comes_true(|| conn.exists(name) == Ok(false)));
        assert!(theirs().unwrap().is_some());
        assert!(acquire(&mut conn, way, &asked).unwrap().is_some());
        assert_eq!(theirs().unwrap(), None);
    }
    // The numbers of its programs never restart.
    let counted: Option<i64> = conn.get("fair:counter").unwrap();
    assert_eq!(counted, Some(4));
    assert_eq!(conn.pttl("fair:counter"), Ok(-1));
}
