//! A program on the book's functions, in Python or Java, and one on ours, on the same locks.

mod semaphores;

use std::{
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use crate::common::{
    Proxy, SLACK, Server,
    book::{Book, BookClient, Edition, Program, Sale},
    market::{funds, offer, run, user},
    wait,
};
use leasehold::{
    Purchase, Token, acquire_lock, acquire_lock_with_timeout, commit_while_held,
    list_item_with_market_lock, market::MarketLock, purchase_item_with_market_lock, release_lock,
};
use redis::{Commands, Connection};

const NO_WAIT: Duration = Duration::ZERO;
/// The book's loop makes no attempt at all with a zero wait.
const SHORT: Duration = Duration::from_millis(20);
/// Long enough for at least one attempt on any machine.
const A_WHILE: Duration = Duration::from_millis(300);
const PATIENT: Duration = Duration::from_secs(10);
const LEASE: Duration = Duration::from_secs(10);

/// A test of both on a private server.
type Meeting = fn(&Server, &mut Connection, &mut dyn BookClient);

const MEETINGS: [Meeting; 7] = [
    exclude_each_other,
    wait_for_each_other,
    give_an_end,
    leave_an_end,
    cannot_release,
    hand_over,
    count_together,
];

#[test]
fn both_editions_of_the_book_and_ours_meet() {
    let cases = [Edition::Python, Edition::Java].map(|edition| MEETINGS.map(|it| (edition, it)));
    wait::at_once(cases.concat(), |(edition, meeting)| {
        let server = Server::start().unwrap();
        let mut book = Book::new(&server, edition).unwrap();
        meeting(&server, &mut server.connection().unwrap(), &mut book);
    });
}

fn millis_left(ours: &mut Connection) -> i64 {
    ours.pttl("lock:a").unwrap()
}

fn exclude_each_other(_: &Server, ours: &mut Connection, book: &mut dyn BookClient) {
    let (untimed, timed) = ("a", "b");
    let one = acquire_lock(ours, untimed, NO_WAIT).unwrap().unwrap();
    let two = acquire_lock_with_timeout(ours, timed, NO_WAIT, LEASE).unwrap();
    for name in [untimed, timed] {
        assert_eq!(book.acquire_lock(name, SHORT).unwrap(), None);
        let refused = book.acquire_lock_with_timeout(name, SHORT, LEASE);
        assert_eq!(refused.unwrap(), None);
    }
    assert!(release_lock(ours, untimed, &one).unwrap());
    assert!(release_lock(ours, timed, &two.unwrap()).unwrap());

    let one = book.acquire_lock(untimed, PATIENT).unwrap().unwrap();
    let two = book
        .acquire_lock_with_timeout(timed, PATIENT, LEASE)
        .unwrap();
    for name in [untimed, timed] {
        assert_eq!(acquire_lock(ours, name, SHORT).unwrap(), None);
        let refused = acquire_lock_with_timeout(ours, name, SHORT, LEASE);
        assert_eq!(refused.unwrap(), None);
    }
    assert_eq!(ours.get(format!("lock:{untimed}")), Ok(one.clone()));
    assert!(book.release_lock(untimed, &one).unwrap());
    assert!(book.release_lock(timed, &two.unwrap()).unwrap());
}

fn wait_for_each_other(server: &Server, ours: &mut Connection, book: &mut dyn BookClient) {
    let held = acquire_lock_with_timeout(ours, "a", NO_WAIT, LEASE).unwrap();
    let attempts = wait::calls(ours, "setnx").unwrap();
    let identifier = thread::scope(|scope| {
        let theirs = scope.spawn(|| {
            let identifier = book.acquire_lock_with_timeout("a", PATIENT, LEASE);
            (identifier.unwrap().unwrap(), Instant::now())
        });
        assert!(wait::comes_true(
            || wait::calls(ours, "setnx").unwrap() >= attempts + 2
        ));
        assert!(release_lock(ours, "a", &held.unwrap()).unwrap());
        let released = Instant::now();
        let (identifier, taken) = theirs.join().unwrap();
        assert!(taken.saturating_duration_since(released) <= SLACK);
        identifier
    });

    let mut watcher = server.connection().unwrap();
    let attempts = wait::calls(ours, "evalsha").unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let token = acquire_lock_with_timeout(ours, "a", PATIENT, LEASE);
            (token.unwrap().unwrap(), Instant::now())
        });
        assert!(wait::comes_true(|| wait::calls(&mut watcher, "evalsha")
            .unwrap()
            >= attempts + 2));
        assert!(book.release_lock("a", &identifier).unwrap());
        let released = Instant::now();
        let (_, taken) = waiter.join().unwrap();
        assert!(taken.saturating_duration_since(released) <= SLACK);
    });
}

fn give_an_end(_: &Server, ours: &mut Connection, book: &mut dyn BookClient) {
    let five_seconds = Duration::from_secs(5);
    let token = acquire_lock(ours, "a", NO_WAIT).unwrap().unwrap();
    assert_eq!(millis_left(ours), -1);
    let refused = book.acquire_lock_with_timeout("a", A_WHILE, five_seconds);
    assert_eq!(refused.unwrap(), None);
    assert!((1..=5_000).contains(&millis_left(ours)));
    let () = commit_while_held(ours, "a", &token, |_| {}).unwrap();
    assert!(
        release_lock(ours, "a", &token).unwrap(),
        "ours until it expires"
    );

    let identifier = book.acquire_lock("a", PATIENT).unwrap().unwrap();
    assert_eq!(millis_left(ours), -1);
    let refused = acquire_lock_with_timeout(ours, "a", NO_WAIT, five_seconds);
    assert_eq!(refused.unwrap(), None);
    assert!((1..=5_000).contains(&millis_left(ours)));
    assert!(book.release_lock("a", &identifier).unwrap());
}

fn leave_an_end(_: &Server, ours: &mut Connection, book: &mut dyn BookClient) {
    // In a lock's last half second its TTL is 0.
    let lease = Duration::from_millis(300);
    let lost = acquire_lock_with_timeout(ours, "a", NO_WAIT, lease).unwrap();
    let identifier = book.acquire_lock_with_timeout("a", Duration::from_secs(2), LEASE);
    let identifier = identifier.unwrap().unwrap();
    assert!(!release_lock(ours, "a", &lost.unwrap()).unwrap());

    for lease in [Duration::from_millis(1), Duration::from_secs(100)] {
        let refused = acquire_lock_with_timeout(ours, "a", NO_WAIT, lease);
        assert_eq!(refused.unwrap(), None);
        assert!((2_000..=10_000).contains(&millis_left(ours)));
    }
    assert!(book.release_lock("a", &identifier).unwrap());
}

fn cannot_release(_: &Server, ours: &mut Connection, book: &mut dyn BookClient) {
    let identifier = book.acquire_lock_with_timeout("a", PATIENT, LEASE);
    let identifier = identifier.unwrap().unwrap();
    assert!(!release_lock(ours, "a", &Token::random()).unwrap());
    assert_eq!(ours.get("lock:a"), Ok(identifier.clone()));
    assert!(book.release_lock("a", &identifier).unwrap());
    assert!(!book.release_lock("a", &identifier).unwrap());

    let token = acquire_lock(ours, "a", NO_WAIT).unwrap().unwrap();
    assert!(!book.release_lock("a", &identifier).unwrap());
    assert_eq!(ours.get("lock:a"), Ok(token.to_string()));
    assert!(release_lock(ours, "a", &token).unwrap());
}

fn hand_over(_: &Server, ours: &mut Connection, book: &mut dyn BookClient) {
    let identifier = book.acquire_lock("a", PATIENT).unwrap().unwrap();
    let token: Token = identifier.parse().unwrap();
    let () = commit_while_held(ours, "a", &token, |_| {}).unwrap();
    assert!(release_lock(ours, "a", &token).unwrap());

    let token = acquire_lock(ours, "a", NO_WAIT).unwrap().unwrap();
    assert!(book.release_lock("a", &token.to_string()).unwrap());
}

fn count_together(server: &Server, ours: &mut Connection, book: &mut dyn BookClient) {
    let times = 25;
    thread::scope(|scope| {
        for _ in 0..2 {
            let mut conn = server.connection().unwrap();
            scope.spawn(move || {
                for _ in 0..times {
                    let token = acquire_lock_with_timeout(&mut conn, "a", PATIENT, LEASE);
                    let number: Option<i64> = conn.get("number").unwrap();
                    let () = conn.set("number", number.unwrap_or(0) + 1).unwrap();
                    assert!(release_lock(&mut conn, "a", &token.unwrap().unwrap()).unwrap());
                }
            });
        }
        book.count_under_lock("a", "number", times).unwrap();
    });
    assert_eq!(ours.get("number"), Ok(3 * times));
}

/// The reason not to mix `acquire_lock` with the book's Java code.
#[test]
fn a_java_lease_below_a_second_deletes_a_lock_without_expiry_but_not_ours() {
    let server = Server::start().unwrap();
    let mut ours = server.connection().unwrap();
    let mut java = Book::new(&server, Edition::Java).unwrap();
    let half_a_second = Duration::from_millis(500);

    let timed = acquire_lock_with_timeout(&mut ours, "timed", NO_WAIT, LEASE).unwrap();
    let refused = java.acquire_lock_with_timeout("timed", SHORT, half_a_second);
    assert_eq!(refused.unwrap(), None);
    assert!(release_lock(&mut ours, "timed", &timed.unwrap()).unwrap());

    let untimed = acquire_lock(&mut ours, "a", NO_WAIT).unwrap().unwrap();
    let taken = java.acquire_lock_with_timeout("a", PATIENT, half_a_second);
    assert!(taken.unwrap().is_some(), "EXPIRE 0 deleted it");
    assert!(!release_lock(&mut ours, "a", &untimed).unwrap());
}

/// Enough to rule out chance.
const ITEMS: usize = 5;

#[test]
fn nothing_is_sold_twice_beside_a_program_with_the_market_lock() {
    let editions = [
        (Edition::Python, MarketLock::Book),
        (Edition::Java, MarketLock::Article),
    ];
    for (edition, lock) in editions {
        let server = Server::start().unwrap();
        let mut book = Book::new(&server, edition).unwrap();
        sell_nothing_twice(&server, &mut book, lock);
    }
}

fn sell_nothing_twice(server: &Server, book: &mut dyn BookClient, lock: MarketLock) {
    let mut ours = server.connection().unwrap();
    let items: Vec<_> = (0..ITEMS).map(|number| format!("item{number}")).collect();
    user(&mut ours, "1", "0", &[]).unwrap();
    user(&mut ours, "2", "100", &[]).unwrap();
    user(&mut ours, "3", "100", &[]).unwrap();
    for item in &items {
        run(&mut ours, &["SADD", "inventory:1", item]).unwrap();
        let listed = list_item_with_market_lock(&mut ours, lock, item, "1", 10).unwrap();
        assert!(listed.is_listed());
        they_buy_first(server, book, lock, &sale(item));
    }
    assert_eq!(ours.scard("inventory:2"), Ok(ITEMS));
    for item in &items {
        let item = format!("{item}b");
        offer(&mut ours, &item, "1", "10").unwrap();
        we_buy_first(server, book, lock, &sale(&item));
    }
    assert_eq!(ours.scard("inventory:3"), Ok(ITEMS));
    assert_eq!(ours.scard("inventory:2"), Ok(ITEMS));
    let all = ["1", "2", "3"].map(|id| funds(&mut ours, id).unwrap());
    assert_eq!(all, [Some(100), Some(50), Some(50)]);
    assert_eq!(ours.zcard("market:"), Ok(0));
}

/// User 3 buys the same item with our function.
fn sale(item: &str) -> Sale {
    Sale {
        buyer: "2",
        item: item.to_owned(),
        seller: "1",
    }
}

fn buy(conn: &mut Connection, lock: MarketLock, item: &str) -> Purchase {
    purchase_item_with_market_lock(conn, lock, "3", item, "1", Some(10)).unwrap()
}

/// Our purchase starts between the reads and the writes of their program.
fn they_buy_first(server: &Server, book: &mut dyn BookClient, lock: MarketLock, sale: &Sale) {
    let (mut conn, mut watcher) = (server.connection().unwrap(), server.connection().unwrap());
    assert!(book.look_at(sale).unwrap());
    let attempts = wait::calls(&mut watcher, "evalsha").unwrap();
    thread::scope(|scope| {
        let ours = scope.spawn(move || buy(&mut conn, lock, &sale.item));
        assert!(wait::comes_true(|| ours.is_finished()
            || wait::calls(&mut watcher, "evalsha").unwrap()
                >= attempts + 2));
        book.decide_on(sale).unwrap();
        assert_eq!(ours.join().unwrap(), Purchase::NotForSale { retries: 0 });
    });
}

/// Their program starts between the reads and the writes of our purchase.
fn we_buy_first(server: &Server, book: &mut dyn BookClient, lock: MarketLock, sale: &Sale) {
    let proxy = Proxy::in_front_of(server).unwrap();
    let mut watcher = server.connection().unwrap();
    let (have_read, is_our_turn) = mpsc::channel();
    let (have_seen_it, has_looked) = mpsc::channel();
    let attempts = wait::calls(&mut watcher, "setnx").unwrap();
    proxy.at("MULTI").run(move || {
        have_read.send(()).unwrap();
        assert!(wait::comes_true(|| has_looked.try_recv().is_ok()
            || wait::calls(&mut watcher, "setnx").unwrap() >= attempts + 2));
    });
    thread::scope(|scope| {
        let theirs = scope.spawn(move || {
            is_our_turn.recv().unwrap();
            let can_be_bought = book.look_at(sale).unwrap();
            let _ = have_seen_it.send(());
            book.decide_on(sale).unwrap();
            can_be_bought
        });
        let purchase = buy(&mut proxy.connection().unwrap(), lock, &sale.item);
        assert!(purchase.is_bought(), "{purchase:?}");
        assert!(!theirs.join().unwrap(), "they also found it in the market");
    });
    assert!(proxy.happened());
}

fn with_program(command: &str, args: &[&str], lock: MarketLock) {
    let server = Server::start().unwrap();
    let mut ours = server.connection().unwrap();
    let mut program = Program::start(command, args, &server).unwrap();
    // A Java program compiles itself first, which may take longer than a lease.
    let identifier = program.acquire_lock("started", PATIENT).unwrap().unwrap();
    assert!(program.release_lock("started", &identifier).unwrap());
    for meeting in MEETINGS {
        meeting(&server, &mut ours, &mut program);
        let () = redis::cmd("FLUSHALL").query(&mut ours).unwrap();
    }
    sell_nothing_twice(&server, &mut program, lock);
}

#[test]
#[ignore = "needs Python 3: cargo test --all-features --test programs python_program -- --ignored"]
fn everything_with_a_python_program() {
    with_program(
        "python3",
        &["tests/programs/interop/book_lock.py"],
        MarketLock::Book,
    );
}

#[test]
#[ignore = "needs a JDK of 11 or later: cargo test --all-features --test programs java_program -- --ignored"]
fn everything_with_a_java_program() {
    with_program(
        "java",
        &["tests/programs/interop/BookLock.java"],
        MarketLock::Article,
    );
}
