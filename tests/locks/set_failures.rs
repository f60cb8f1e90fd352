//! Sets with a lost lock, with invalid options, and on a silent server.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use leasehold::{Error, LockSet, Locks, Options, Pool};
use redis::Commands;

use crate::{
    bench,
    common::{
        LONG, MS, Proxy, SLACK, Server,
        hold::{comes_true, leave_the_watchdog_alone},
        wait::{at_once, unless_halted},
    },
    waiting::waiting,
};

const BOTH: [&str; 2] = ["b", "a"];

/// Locks that wait for an answer no longer than `answer`, on this many connections.
fn impatient(url: &str, answer: Duration, connections: u32) -> Locks {
    let pool = Pool::builder().io_timeout(answer).max_size(connections);
    let pool = pool.build(&redis::Client::open(url).unwrap()).unwrap();
    assert!(comes_true(|| pool.get().is_ok()));
    Locks::new(&pool).unwrap()
}

fn is_free(conn: &mut redis::Connection) -> bool {
    conn.keys::<_, Vec<String>>("lock:*").unwrap().is_empty()
}

#[test]
fn an_invalid_set_is_refused_before_anything_is_sent() {
    let locks = Locks::connect("redis://127.0.0.1:1/").unwrap();
    let two = |other| LockSet::of([locks.lock("a"), other]);
    let with = |options| two(locks.lock("b").with(options));
    let permits = |count| two(locks.semaphore("b", count));
    let sets = [
        (locks.all_of([""; 0]), "empty"),
        (locks.all_of(["a", "b", "a"]), "`a` appears twice"),
        (two(locks.read("a")), "twice"),
        // The keys count, not the names.
        (
            LockSet::of([
                locks.lock("ab"),
                locks.lock("b").with(Options::new().prefix("lock:a")),
            ]),
            "twice",
        ),
        (locks.all_of(["a", "b:lease"]), ":lease"),
        (with(Options::new().lease(Duration::ZERO)), "24 h"),
        (with(Options::new().replicas(1, 2 * LONG)), "replicas"),
        (permits(0), "permits"),
        (
            permits(1).with(Options::new().hand_over(5, LONG)),
            "cannot be handed over",
        ),
    ];
    for (set, reason) in sets {
        for refused in [set.try_acquire().map(drop), set.acquire(MS).map(drop)] {
            let error = refused.unwrap_err();
            assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
            assert!(error.to_string().contains(reason), "{error}");
        }
    }
}

/// The transaction reported it. A further question would get no answer.
#[test]
fn a_loss_found_by_a_transaction_names_its_lock_without_another_request() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let proxy = Proxy::in_front_of(&server).unwrap();
        let locks = impatient(&proxy.url(), 500 * MS, 4);
        let mut conn = server.connection().unwrap();
        leave_the_watchdog_alone(&proxy, &locks, &mut conn);
        let leases = locks.all_of(["a", "b", "c"]).acquire(LONG).unwrap();
        let mut other = server.connection().unwrap();
        proxy.at("WATCH").run(move || other.del("lock:b").unwrap());
        proxy.at("EVALSHA").about("lock:a").swallow();
        let error = leases.commit(|pipe| _ = pipe.set("a", 1)).unwrap_err();
        let is_named = |error: &Error, operation: &str| {
            let context = error.context().unwrap();
            matches!(error, Error::Lost { .. })
                && (context.operation, &*context.lock) == (operation, "b")
        };
        assert!(is_named(&error, "Leases::commit"), "{error:?}");
        assert!(is_named(&leases.check().unwrap_err(), "Leases::check"));
        assert!(leases.get("a").unwrap().is_held() && leases.get("c").unwrap().is_held());
    });
}

/// Only the first release waits for an answer, for half a second, and all drops share one time-out.
#[test]
fn releasing_or_dropping_all_beside_a_silent_server_takes_one_timeout() {
    at_once([false, true], |drops| {
        let (server, _, mut conn) = bench();
        let locks = impatient(&server.url(), 500 * MS, 4);
        let options = Options::new().drop_timeout(200 * MS);
        let names: Vec<String> = (0..10).map(|number| number.to_string()).collect();
        let set = locks.all_of(names.iter().map(|name| &**name)).with(options);
        let leases = set.acquire(LONG).unwrap();
        thread::sleep(100 * MS);
        server.freeze().unwrap();
        let asked = Instant::now();
        let released = (!drops).then(|| leases.release());
        let took = asked.elapsed();
        server.thaw().unwrap();
        assert!(
            matches!(released, None | Some(Err(Error::Unknown { .. }))),
            "{released:?}"
        );
        let longest = if drops { 200 } else { 1_500 } * MS;
        assert!(took < longest + SLACK, "{took:?}");
        assert!(comes_true(|| is_free(&mut conn)));
    });
}

#[test]
fn locks_of_one_name_with_two_prefixes_are_distinguished_by_their_keys() {
    unless_halted(|| {
        let (_server, locks, _conn) = bench();
        let [order, account] = ["order:", "account:"]
            .map(|prefix| locks.lock("7").with(Options::new().prefix(prefix)));
        let leases = LockSet::of([order, account, locks.lock("8")]);
        let leases = leases.acquire(LONG).unwrap();
        assert!(leases.get("7").is_none() && leases.fencing_token("7").is_none());
        let tokens = ["account:7", "order:7", "8", "lock:8"]
            .map(|name| leases.get(name).map(|lease| lease.token().clone()));
        assert!(tokens.iter().all(Option::is_some), "{tokens:?}");
        assert!(tokens[0] != tokens[1] && tokens[2] == tokens[3]);
        assert!(leases.fencing_token("order:7").is_some());
        leases.release().unwrap();
    });
}

#[test]
fn locks_of_two_connects_are_held_together_but_cannot_commit() {
    unless_halted(|| {
        let (server, ours, mut conn) = bench();
        let theirs = crate::connect(&server.url());
        let leases = LockSet::of([ours.lock("a"), theirs.lock("b")]);
        let leases = leases.acquire(LONG).unwrap();
        let error = leases.commit(|pipe| _ = pipe.set("value", 1)).unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
        assert!(error.to_string().contains("one `Locks`"), "{error}");
        assert!(!conn.exists::<_, bool>("value").unwrap());
        leases.release().unwrap();
        assert!(is_free(&mut conn));
    });
}

/// Its attempt is not sent with those of the others, which wait for no replica.
#[test]
fn a_lock_of_a_set_that_waits_for_replicas_is_not_granted_without_them() {
    let (_server, locks, mut conn) = bench();
    let confirmed = locks.lock("b").with(Options::new().replicas(1, 50 * MS));
    let set = LockSet::of([locks.lock("a"), confirmed, locks.lock("c")]);
    let error = set.try_acquire().map(drop).unwrap_err();
    let is_expected = matches!(
        error,
        Error::TooFewReplicas {
            wanted: 1,
            had: 0,
            ..
        }
    );
    assert!(is_expected, "{error:?}");
    assert!(comes_true(|| is_free(&mut conn)));
}

/// With the old prefixes, the two locks of one key are not adjacent.
#[test]
fn a_new_prefix_changes_the_order() {
    let locks = Locks::connect("redis://127.0.0.1:1/").unwrap();
    let named = |prefix, name| locks.lock(name).with(Options::new().prefix(prefix));
    let set = LockSet::of([named("a:", "x"), named("b:", "c"), named("c:", "x")]);
    let refused = set.with(Options::new().prefix("one:")).try_acquire();
    assert!(
        refused
            .unwrap_err()
            .to_string()
            .contains("`x` appears twice")
    );
}

/// The first is acquired before the deadline, and the second not at all.
#[test]
fn all_locks_share_one_deadline_and_the_first_expiry_counts() {
    unless_halted(|| {
        let (_server, locks, _conn) = bench();
        let held = BOTH.map(|name| locks.lock(name).acquire(LONG).unwrap());
        thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let asked = Instant::now();
                let refused = locks.all_of(BOTH).acquire(4_000 * MS).unwrap_err();
                (refused, asked.elapsed())
            });
            assert!(comes_true(|| waiting(&locks.lock("a")) == 1));
            thread::sleep(2_500 * MS);
            let [second, first] = held;
            first.release().unwrap();
            let (refused, took) = waiter.join().unwrap();
            assert!(refused.context().is_some_and(|context| context.lock == "b"));
            assert!(took < 4_000 * MS + SLACK, "{took:?}");
            drop(second);
        });
        let long = Options::new().lease(Duration::from_hours(1));
        let set = LockSet::of([locks.lock("a").with(long), locks.lock("b")]);
        let leases = set.acquire(LONG).unwrap();
        assert!(leases.remaining() < Duration::from_mins(1));
        leases.release().unwrap();
    });
}

/// Changes between the check of the locks and the writes.
#[test]
fn each_lock_is_watched_until_it_is_written() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let proxy = Proxy::in_front_of(&server).unwrap();
        let locks = impatient(&proxy.url(), LONG, 4);
        let mut conn = server.connection().unwrap();
        leave_the_watchdog_alone(&proxy, &locks, &mut conn);
        for name in ["a", "b", "c"] {
            let leases = locks.all_of(["a", "b", "c"]).acquire(LONG).unwrap();
            let mut other = server.connection().unwrap();
            let key = format!("lock:{name}");
            proxy.at("MULTI").run(move || other.del(key).unwrap());
            let error = leases.commit(|pipe| _ = pipe.set("value", 1)).unwrap_err();
            assert!(matches!(error, Error::Lost { .. }), "{error:?}");
            assert!(error.context().is_some_and(|context| context.lock == name));
            assert!(!conn.exists::<_, bool>("value").unwrap());
        }
    });
}

#[test]
fn a_release_drops_callbacks_uncalled_and_ends_waits() {
    unless_halted(|| {
        let (_server, locks, mut conn) = bench();
        let leases = locks.all_of(BOTH).acquire(LONG).unwrap();
        let (signal, owned) = (leases.lost(), Arc::new(()));
        let kept = Arc::clone(&owned);
        leases.lost().notify(move |_| drop(kept)).unwrap();
        let waiting = thread::spawn(move || (signal.wait_for(Duration::MAX), signal));
        leases.release().unwrap();
        assert_eq!(Arc::strong_count(&owned), 1);
        assert!(comes_true(|| waiting.is_finished()));
        let (was_lost, signal) = waiting.join().unwrap();
        assert!(!was_lost && !signal.wait_for(Duration::MAX) && !signal.is_lost());
        let never = Arc::clone(&owned);
        signal.notify(move |_| drop(never)).unwrap();
        assert_eq!(Arc::strong_count(&owned), 1);
        assert!(is_free(&mut conn));
    });
}
