//! A waiting writer keeps new readers out while it waits, and hardly longer.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::common::{
    Proxy, State,
    clock::millis,
    start,
    wait::{PATIENCE, TOO_SLOW, at_once, calls, comes_true},
};
use leasehold::{
    Error, Token,
    recipes::read_write::{
        acquire_read, acquire_write, release_read, release_write, renew_read, try_acquire_read,
        try_acquire_write,
    },
};
use redis::{Client, Commands, Connection};

const LEASE: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_millis(60);

/// The remaining milliseconds of the current intents.
fn intents(conn: &mut Connection) -> Vec<i64> {
    let now = millis(conn);
    let holders: Vec<(String, String)> = conn.hgetall("lock:a").unwrap();
    let intents = holders.iter().filter(|(field, _)| field.starts_with("i:"));
    let ends = intents.map(|(_, end)| end.parse::<i64>().unwrap());
    ends.map(|end| end - now)
        .filter(|left| *left >= 0)
        .collect()
}

/// Runs `meanwhile` with a reader that holds the lock and a writer that waits for it on a thread.
fn with_a_waiting_writer(wait: Duration, meanwhile: impl FnOnce(&mut Connection, &Token, &Token)) {
    let (server, mut conn) = start();
    let [reader, writer] = [(); 2].map(|()| Token::random());
    assert!(try_acquire_read(&mut conn, "a", &reader, LEASE).unwrap());
    let mut its_own = server.connection().unwrap();
    thread::scope(|scope| {
        let waiting =
            scope.spawn(|| acquire_write(&mut its_own, "a", &writer, wait, LEASE).map(drop));
        assert!(comes_true(|| intents(&mut conn).len() == 1));
        meanwhile(&mut conn, &reader, &writer);
        let _ = waiting.join().unwrap();
    });
}

#[test]
fn new_readers_are_refused_and_present_ones_stay() {
    with_a_waiting_writer(LEASE, |conn, reader, writer| {
        assert!(!try_acquire_read(conn, "a", &Token::random(), LEASE).unwrap());
        assert!(renew_read(conn, "a", reader, LEASE).unwrap());
        assert!(
            try_acquire_read(conn, "a", reader, LEASE).unwrap(),
            "resent"
        );
        assert!(release_read(conn, "a", reader).unwrap());
        assert!(comes_true(|| release_write(conn, "a", writer).unwrap()));
        assert!(!conn.exists::<_, bool>("lock:a").unwrap());
    });
}

#[test]
fn an_intent_survives_the_last_release_and_does_not_block_writers() {
    let (_server, mut conn) = start();
    let [reader, writer] = [(); 2].map(|()| Token::random());
    assert!(try_acquire_read(&mut conn, "a", &reader, LEASE).unwrap());
    let ends = millis(&mut conn) + 5_000;
    let () = conn.hset("lock:a", "i:somebody", ends).unwrap();
    assert!(release_read(&mut conn, "a", &reader).unwrap());
    let holders: Vec<(String, String)> = conn.hgetall("lock:a").unwrap();
    assert_eq!(holders.len(), 2, "kind and the intent");
    assert!((1..=5_001).contains(&conn.pttl::<_, i64>("lock:a").unwrap()));
    assert!(!try_acquire_read(&mut conn, "a", &reader, LEASE).unwrap());
    assert!(
        try_acquire_write(&mut conn, "a", &writer, LEASE)
            .unwrap()
            .is_some()
    );
}

/// Runs concurrently: each mostly waits.
#[test]
fn how_long_an_intent_lasts() {
    let cases: [fn(); 3] = [
        an_intent_is_written_anew_only_when_it_is_about_to_end,
        it_ends_within_a_second_after_its_writer_died,
        a_silent_server_costs_one_time_out,
    ];
    at_once(cases, |case| case());
}

fn an_intent_is_written_anew_only_when_it_is_about_to_end() {
    let (_server, mut conn) = start();
    let [reader, writer] = [(); 2].map(|()| Token::random());
    assert!(try_acquire_read(&mut conn, "a", &reader, LEASE).unwrap());
    let counted =
        |conn: &mut Connection| ["hgetall", "hset"].map(|command| calls(conn, command).unwrap());
    let [attempts, intents] = counted(&mut conn);
    let (asked, wait) = (Instant::now(), Duration::from_secs(3));
    assert!(
        acquire_write(&mut conn, "a", &writer, wait, LEASE)
            .unwrap()
            .is_none()
    );
    let [attempts, intents] = {
        let [attempts_now, intents_now] = counted(&mut conn);
        [attempts_now - attempts, intents_now - intents]
    };
    // Renewed after half of its second, not at the end.
    let due = 1 + asked.elapsed().as_millis() / 500;
    let needed = 1 + asked.elapsed().as_secs();
    assert!(attempts > 2 * intents, "{attempts}, {intents}");
    assert!(
        intents >= needed && u128::from(intents) <= due,
        "{intents} of {needed} to {due}"
    );
}

#[test]
fn it_is_removed_when_the_writer_stops_waiting() {
    let (_server, mut conn) = start();
    let [reader, writer] = [(); 2].map(|()| Token::random());
    assert!(try_acquire_read(&mut conn, "a", &reader, LEASE).unwrap());
    assert!(
        acquire_write(&mut conn, "a", &writer, SHORT, LEASE)
            .unwrap()
            .is_none()
    );
    assert!(intents(&mut conn).is_empty());
    assert!(try_acquire_read(&mut conn, "a", &Token::random(), LEASE).unwrap());
}

#[test]
fn a_writer_that_does_not_wait_leaves_no_intent() {
    let (_server, mut conn) = start();
    let [reader, writer] = [(); 2].map(|()| Token::random());
    assert!(try_acquire_read(&mut conn, "a", &reader, LEASE).unwrap());
    let before = State::of(&mut conn).unwrap();
    assert!(
        try_acquire_write(&mut conn, "a", &writer, LEASE)
            .unwrap()
            .is_none()
    );
    let grant = acquire_write(&mut conn, "a", &writer, Duration::ZERO, LEASE);
    assert!(grant.unwrap().is_none());
    assert_eq!(State::of(&mut conn).unwrap(), before);
}

#[test]
fn it_is_removed_when_a_refusal_ends_the_wait() {
    let (server, mut conn) = start();
    let proxy = Proxy::in_front_of(&server).unwrap();
    let mut broken = proxy.connection().unwrap();
    let [reader, writer] = [(); 2].map(|()| Token::random());
    assert!(try_acquire_read(&mut conn, "a", &reader, LEASE).unwrap());
    proxy.at("EVALSHA").nth(5).refuse("OOM command not allowed");
    let refused = acquire_write(&mut broken, "a", &writer, LEASE, LEASE).unwrap_err();
    assert!(
        proxy.happened() && matches!(refused, Error::Redis { .. }),
        "{refused}"
    );
    assert!(intents(&mut conn).is_empty());
}

fn it_ends_within_a_second_after_its_writer_died() {
    let (server, mut conn) = start();
    let proxy = Proxy::in_front_of(&server).unwrap();
    let mut dying = proxy.connection().unwrap();
    let [reader, writer, next] = [(); 3].map(|()| Token::random());
    assert!(try_acquire_read(&mut conn, "a", &reader, LEASE).unwrap());
    proxy.at("EVALSHA").nth(10).cut_before();
    let asked = Instant::now();
    let unknown = acquire_write(&mut dying, "a", &writer, LEASE, LEASE).unwrap_err();
    let died = Instant::now();
    assert_eq!(unknown.token(), Some(&writer));
    let left = intents(&mut conn);
    // It lasted for at least a second.
    assert!(
        !left.is_empty() || asked.elapsed() < Duration::from_secs(1),
        "{TOO_SLOW}"
    );
    assert!(left.len() == 1 && left[0] <= 1_000, "{left:?}");

    assert!(acquire_read(&mut conn, "a", &next, LEASE, LEASE).unwrap());
    assert!(died.elapsed() < PATIENCE);
}

/// A silent server costs a waiting writer one time-out, not two: it does not try to withdraw its
/// intent.
fn a_silent_server_costs_one_time_out() {
    let (server, mut conn) = start();
    let proxy = Proxy::in_front_of(&server).unwrap();
    let mut silent = Client::open(proxy.url()).unwrap().get_connection().unwrap();
    // Even on a busy machine the third attempt begins within the wait; its time-out ends after it.
    let (wait, time_out) = (Duration::from_secs(3), Duration::from_millis(3_500));
    silent.set_read_timeout(Some(time_out)).unwrap();
    let [reader, writer] = [(); 2].map(|()| Token::random());
    assert!(try_acquire_read(&mut conn, "a", &reader, LEASE).unwrap());
    proxy.at("EVALSHA").nth(3).swallow();
    let asked = Instant::now();
    let unknown = acquire_write(&mut silent, "a", &writer, wait, LEASE).unwrap_err();
    assert!(matches!(unknown, Error::Unknown { .. }), "{unknown}");
    assert!(asked.elapsed() < 2 * time_out);
}
