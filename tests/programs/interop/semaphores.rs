//! The book's semaphores and ours, on the same keys.

use std::{
    thread,
    time::{Duration, Instant},
};

use redis::{Commands, Connection};

use crate::common::{
    Server,
    book::Program,
    book_semaphore::{Asked, BookSemaphores, SemaphoreClient, Way, acquire, release},
    wait::at_once,
};
use leasehold::{Token, refresh_fair_semaphore, release_fair_semaphore, release_semaphore};

const WAYS: [Way; 3] = [Way::Basic, Way::Fair, Way::WithLock];

/// A test of both on a private server.
type Meeting = fn(&Server, &mut Connection, &mut dyn SemaphoreClient);

const MEETINGS: [Meeting; 4] = [respect_each_other, sweep_each_other, hand_over, storm];

#[test]
fn the_books_semaphores_and_ours_meet() {
    at_once(MEETINGS, |meeting| {
        let server = Server::start().unwrap();
        let mut book = BookSemaphores::new(&server).unwrap();
        meeting(&server, &mut server.connection().unwrap(), &mut book);
    });
}

fn asked(way: Way, limit: u32) -> Asked<'static> {
    Asked {
        name: way.word(),
        limit,
        timeout: Duration::from_mins(1),
    }
}

fn we_release(conn: &mut Connection, way: Way, name: &str, token: &Token) -> bool {
    release(conn, way, name, token).unwrap()
}

fn they_acquire(book: &mut dyn SemaphoreClient, way: Way, asked: &Asked<'_>) -> Option<String> {
    match way {
        Way::Basic => book.acquire(asked).unwrap(),
        Way::Fair => book.acquire_fair(asked).unwrap(),
        Way::WithLock => book.acquire_with_lock(asked).unwrap(),
    }
}

fn they_release(book: &mut dyn SemaphoreClient, way: Way, name: &str, text: &str) -> bool {
    match way {
        Way::Basic => book.release(name, text).unwrap(),
        Way::Fair | Way::WithLock => book.release_fair(name, text).unwrap(),
    }
}

fn respect_each_other(_: &Server, ours: &mut Connection, book: &mut dyn SemaphoreClient) {
    for way in WAYS {
        let (two, name) = (asked(way, 2), way.word());
        let token = acquire(ours, way, &two).unwrap().unwrap();
        let identifier = they_acquire(book, way, &two).unwrap();
        assert_eq!(acquire(ours, way, &two).unwrap(), None);
        assert_eq!(they_acquire(book, way, &two), None);

        assert!(we_release(ours, way, name, &token));
        let second = they_acquire(book, way, &two).unwrap();
        assert_eq!(they_acquire(book, way, &two), None);
        assert_eq!(acquire(ours, way, &two).unwrap(), None);

        assert!(they_release(book, way, name, &identifier));
        let token = acquire(ours, way, &two).unwrap().unwrap();
        assert_eq!(they_acquire(book, way, &two), None);
        assert!(they_release(book, way, name, &second));
        assert!(we_release(ours, way, name, &token));
        assert!(!we_release(ours, way, name, &token));
    }
}

fn sweep_each_other(_: &Server, ours: &mut Connection, book: &mut dyn SemaphoreClient) {
    for way in WAYS {
        let (one, name) = (asked(way, 1), way.word());
        let lost = acquire(ours, way, &one).unwrap().unwrap();
        let () = ours.zincr(name, lost.to_string(), -61).unwrap();
        let identifier = they_acquire(book, way, &one).unwrap();
        assert!(!we_release(ours, way, name, &lost));

        let () = ours.zincr(name, &identifier, -61).unwrap();
        let token = acquire(ours, way, &one).unwrap().unwrap();
        assert!(!they_release(book, way, name, &identifier));
        assert!(we_release(ours, way, name, &token));
    }
}

fn hand_over(_: &Server, ours: &mut Connection, book: &mut dyn SemaphoreClient) {
    let (fair, name) = (asked(Way::Fair, 1), "fair");
    let identifier = book.acquire_fair(&fair).unwrap().unwrap();
    let () = ours.zincr(name, &identifier, -59).unwrap();
    let token: Token = identifier.parse().unwrap();
    assert!(refresh_fair_semaphore(ours, name, &token).unwrap());
    let () = ours.zincr(name, &identifier, -59).unwrap();
    assert_eq!(acquire(ours, Way::Fair, &fair).unwrap(), None);
    assert!(release_fair_semaphore(ours, name, &token).unwrap());
    assert!(!book.refresh_fair(name, &identifier).unwrap());

    let token = acquire(ours, Way::Fair, &fair).unwrap().unwrap();
    let text = token.to_string();
    let () = ours.zincr(name, &text, -59).unwrap();
    assert!(book.refresh_fair(name, &text).unwrap());
    let () = ours.zincr(name, &text, -59).unwrap();
    assert_eq!(book.acquire_fair(&fair).unwrap(), None);
    assert!(book.release_fair(name, &text).unwrap());
    assert!(!refresh_fair_semaphore(ours, name, &token).unwrap());

    let basic = asked(Way::Basic, 1);
    let identifier = book.acquire(&basic).unwrap().unwrap();
    let token = identifier.parse().unwrap();
    assert!(release_semaphore(ours, "basic", &token).unwrap());
    let token = acquire(ours, Way::Basic, &basic).unwrap().unwrap();
    assert!(book.release("basic", &token.to_string()).unwrap());
}

const OURS: usize = 4;

/// One client of the book among ours; two of them would exceed the limit among themselves.
fn storm(server: &Server, ours: &mut Connection, book: &mut dyn SemaphoreClient) {
    for way in WAYS {
        for limit in [1, 3] {
            let most = storm_of(server, way, limit, &mut [book]);
            // In the basic semaphore their clock and their latency decide; that is a flaw of the
            // format.
            let allowed = i64::from(limit) + i64::from(way == Way::Basic);
            assert!(most <= allowed, "{way:?}: {most} of {limit}");
            assert_eq!(ours.zcard(way.word()), Ok(0));
            assert_eq!(ours.exists(format!("{}:owner", way.word())), Ok(false));
        }
    }
}

/// Their lock separates several of them, and none of ours acquires while one holds it.
#[test]
fn the_lock_also_separates_several_programs_of_the_book() {
    let server = Server::start().unwrap();
    let book = || BookSemaphores::new(&server).unwrap();
    let (mut one, mut two, mut three) = (book(), book(), book());
    let programs: &mut [&mut dyn SemaphoreClient] = &mut [&mut one, &mut two, &mut three];
    for limit in [1, 3] {
        let most = storm_of(&server, Way::WithLock, limit, programs);
        assert!(most <= i64::from(limit), "{most} of {limit}");
    }
}

/// All acquire and release this many times. Returns the most holders that any of them has seen.
fn storm_of(server: &Server, way: Way, limit: u32, books: &mut [&mut dyn SemaphoreClient]) -> i64 {
    let (asked, times) = (asked(way, limit), 40);
    thread::scope(|scope| {
        let mut storming: Vec<_> = (0..OURS)
            .map(|_| scope.spawn(move || we_storm(server, way, &asked, times)))
            .collect();
        for book in books {
            let theirs = move || book.storm(way, &asked, "inside", times).unwrap();
            storming.push(scope.spawn(theirs));
        }
        let seen = storming.into_iter().map(|thread| thread.join().unwrap());
        seen.max().unwrap()
    })
}

fn we_storm(server: &Server, way: Way, asked: &Asked<'_>, times: u32) -> i64 {
    let mut conn = server.connection().unwrap();
    let (mut most, mut held, end) = (0, 0, Instant::now() + Duration::from_mins(1));
    while held < times {
        assert!(
            Instant::now() < end,
            "{held} of {times} permits in a minute"
        );
        let token = match acquire(&mut conn, way, asked) {
            Ok(Some(token)) => token,
            Ok(None) => {
                thread::sleep(Duration::from_millis(1));
                continue;
            }
            Err(error) => {
                assert!(error.is_contended(), "{error}");
                continue;
            }
        };
        held += 1;
        most = most.max(conn.incr("inside", 1).unwrap());
        thread::sleep(Duration::from_millis(1));
        let () = conn.decr("inside", 1).unwrap();
        assert!(we_release(&mut conn, way, asked.name, &token));
    }
    most
}

#[test]
#[ignore = "needs Python 3: cargo test --all-features --test programs python_program -- --ignored"]
fn the_semaphores_with_a_python_program() {
    let server = Server::start().unwrap();
    let mut ours = server.connection().unwrap();
    let file = "tests/programs/interop/book_semaphore.py";
    // `-B`: the import leaves no cache folder in the project.
    let mut program = Program::start("python3", &["-B", file], &server).unwrap();
    for meeting in MEETINGS {
        meeting(&server, &mut ours, &mut program);
        let () = redis::cmd("FLUSHALL").query(&mut ours).unwrap();
    }
}
