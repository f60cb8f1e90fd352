//! Many threads on a few locks record their holds, which are checked afterwards.

use std::{
    sync::{Barrier, Mutex},
    thread,
    time::Duration,
};

use crate::common::{
    Server,
    wait::{at_once, comes_true_within},
};
use leasehold::{
    Owner, Token, acquire_lock_with_timeout,
    recipes::{
        mutex::{self, End},
        read_write,
        reentrant::{self, Release},
    },
    release_lock,
};
use redis::{Commands, Connection};

const WAIT: Duration = Duration::from_secs(30);
const LEASE: Duration = Duration::from_mins(1);

/// An event at a lock. A thread records *in* after it has the lock, and *out* before it releases;
/// so overlapping holds show as two *in* without an *out* between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    In { thread: usize, fence: Option<u64> },
    Out { thread: usize },
}

type History = Mutex<Vec<Event>>;

/// Holds a lock once, from *in* to *out*.
type Turn = fn(&mut Connection, &Place<'_>);

struct Place<'h> {
    thread: usize,
    round: usize,
    name: String,
    history: &'h History,
}

impl Place<'_> {
    fn work(&self, fence: Option<u64>) {
        let thread = self.thread;
        self.history
            .lock()
            .unwrap()
            .push(Event::In { thread, fence });
        thread::sleep(Duration::from_micros(200));
        self.history.lock().unwrap().push(Event::Out { thread });
    }
}

/// Runs threads over the locks, each thread for `rounds`, with the turns in rotation.
fn run(threads: usize, names: usize, rounds: usize, turns: &[Turn]) {
    let server = Server::start().unwrap();
    let histories: Vec<History> = (0..names).map(|_| History::default()).collect();
    let start = Barrier::new(threads);
    thread::scope(|scope| {
        for thread in 0..threads {
            let mut conn = server.connection().unwrap();
            let (histories, start) = (&histories, &start);
            scope.spawn(move || {
                start.wait();
                for round in 0..rounds {
                    let at = (thread + round) % names;
                    let place = Place {
                        thread,
                        round,
                        name: at.to_string(),
                        history: &histories[at],
                    };
                    turns[(thread + round) % turns.len()](&mut conn, &place);
                }
            });
        }
    });
    let held: usize = histories.iter().map(check).sum();
    assert_eq!(held, threads * rounds);
    let mut conn = server.connection().unwrap();
    let left: Vec<String> = conn.keys("lock:*").unwrap();
    assert_eq!(left, Vec::<String>::new(), "every count is balanced");
}

/// One holder at a time, with growing fencing tokens. Returns the number of holds.
fn check(history: &History) -> usize {
    let events = history.lock().unwrap();
    let mut last = 0;
    for pair in events.chunks(2) {
        match *pair {
            [Event::In { thread, fence }, Event::Out { thread: left }] if thread == left => {
                assert!(
                    fence.is_none_or(|fence| fence > last),
                    "{fence:?} after {last}"
                );
                last = fence.unwrap_or(last);
            }
            _ => assert_eq!(pair, [], "two at once"),
        }
    }
    events.len() / 2
}

fn mutex_turn(conn: &mut Connection, place: &Place<'_>) {
    let (name, token) = (&place.name, Token::random());
    let granted = mutex::acquire(conn, name, &token, WAIT, End::After(LEASE))
        .unwrap()
        .unwrap();
    place.work(Some(granted.fencing_token().get()));
    assert!(mutex::release(conn, name, &token).unwrap());
}

fn unfenced_turn(conn: &mut Connection, place: &Place<'_>) {
    let (name, token) = (&place.name, Token::random());
    assert!(comes_true_within(WAIT, || {
        mutex::try_acquire_unfenced(conn, name, &token, LEASE).unwrap()
    }));
    place.work(None);
    assert!(mutex::release(conn, name, &token).unwrap());
}

fn book_turn(conn: &mut Connection, place: &Place<'_>) {
    let token = acquire_lock_with_timeout(conn, &place.name, WAIT, LEASE)
        .unwrap()
        .unwrap();
    place.work(None);
    assert!(release_lock(conn, &place.name, &token).unwrap());
}

/// One to four levels; every acquire and release is sent twice, as after a lost answer.
fn reentrant_turn(conn: &mut Connection, place: &Place<'_>) {
    let (name, owner) = (&place.name, Owner::current_thread());
    let tokens: Vec<Token> = (0..=(place.thread + place.round) % 4)
        .map(|_| Token::random())
        .collect();
    let mut fence = 0;
    for (token, count) in tokens.iter().zip(1..) {
        for _ in 0..2 {
            let granted = reentrant::acquire(conn, name, &owner, token, WAIT, LEASE)
                .unwrap()
                .unwrap();
            assert_eq!(granted.count(), count);
            fence = granted.fencing_token().get();
        }
    }
    place.work(Some(fence));
    let mut left = u64::try_from(tokens.len()).unwrap();
    for token in tokens.iter().rev() {
        left -= 1;
        let released = reentrant::release(conn, name, &owner, token).unwrap();
        let expected = match left {
            0 => Release::Freed,
            count => Release::StillHeld { count },
        };
        assert_eq!(released, expected);
        let again = reentrant::release(conn, name, &owner, token).unwrap();
        assert_eq!(again, Release::NotHeld);
    }
}

fn writers_turn(conn: &mut Connection, place: &Place<'_>) {
    let (name, token) = (&place.name, Token::random());
    let granted = read_write::acquire_write(conn, name, &token, WAIT, LEASE)
        .unwrap()
        .unwrap();
    place.work(Some(granted.fencing_token().get()));
    assert!(read_write::release_write(conn, name, &token).unwrap());
}

/// Crowds of 2 to 32 threads on 1 to 8 locks, about this many turns each.
fn run_crowds(turns_each: usize, turns: &[Turn]) {
    let crowds = [(2, 1), (2, 8), (8, 2), (32, 1), (32, 8)];
    at_once(crowds, |(threads, names)| {
        run(threads, names, turns_each / threads, turns);
    });
}

#[test]
fn mutex() {
    run_crowds(128, &[mutex_turn]);
}

#[test]
fn mutex_unfenced_and_the_books_lock() {
    run_crowds(96, &[mutex_turn, unfenced_turn, book_turn]);
}

#[test]
fn reentrant() {
    run_crowds(128, &[reentrant_turn]);
}

#[test]
fn writers() {
    run_crowds(128, &[writers_turn]);
}

#[test]
#[ignore = "takes minutes: cargo test --release --test recipes histories:: -- --ignored"]
fn each_for_long() {
    run_crowds(50_000, &[mutex_turn, unfenced_turn, book_turn]);
    run_crowds(50_000, &[reentrant_turn]);
    run_crowds(50_000, &[writers_turn]);
}
