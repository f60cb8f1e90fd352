//! Attempts and releases whose answer is lost.

use std::time::Instant;

use leasehold::{Error, Lease, Leases, Options};
use redis::Commands;

use crate::{
    common::{
        LONG, MS, Proxy, SLACK, Server, clients,
        hold::{comes_true, every_kind},
        wait::{at_once, tracked_keys},
    },
    faults::{IO_TIMEOUT, quick},
};

/// Runs concurrently: each mostly waits.
#[test]
fn unanswered_requests_are_resolved_or_released() {
    let cases: [fn(); 2] = [
        a_release_whose_answer_is_lost_is_done_in_the_end,
        what_too_few_replicas_have_is_given_back_in_the_end_though_the_server_refuses_at_first,
    ];
    at_once(cases, |case| case());
}

fn a_release_whose_answer_is_lost_is_done_in_the_end() {
    let server = Server::start().unwrap();
    let proxy = Proxy::in_front_of(&server).unwrap();
    let mut conn = server.connection().unwrap();
    for (drops, is_set) in [(false, false), (true, false), (false, true)] {
        for fault in ["cut before", "cut after", "swallow"] {
            let options = crate::options().drop_timeout(200 * MS);
            let locks = quick(&proxy.url()).with(options);
            let lease = (!is_set).then(|| locks.lock("a").acquire(LONG).unwrap());
            let both = is_set.then(|| locks.all_of(["a", "b"]).acquire(LONG).unwrap());
            // The watchdog has read the lock on its own connection: the next other `EVALSHA` is the
            // release.
            assert!(comes_true(|| tracked_keys(&mut conn).unwrap() > 0));
            proxy.leave_alone(&clients::told_of_changes(&mut conn));
            let point = proxy.at("EVALSHA");
            match fault {
                "cut before" => point.cut_before(),
                "cut after" => point.cut_after(),
                _ => point.swallow(),
            }
            let asked = Instant::now();
            if drops {
                drop(lease);
            } else {
                // A command that was cut off before its execution is sent again on another
                // connection.
                let released = lease.map(Lease::release).or(both.map(Leases::release));
                let released = released.unwrap();
                let is_done = released.is_ok() && fault == "cut before";
                let is_unknown = matches!(released, Err(Error::Unknown { .. }));
                assert!(is_done || is_unknown, "{fault} {is_set} {released:?}");
            }
            assert!(
                asked.elapsed() < IO_TIMEOUT + 250 * MS + SLACK,
                "{fault}: {:?}",
                asked.elapsed()
            );
            let free = || conn.exists::<_, u32>(&["lock:a", "lock:b"]).unwrap() == 0;
            assert!(
                comes_true(free),
                "{fault} {drops} {is_set}: not released {:?}",
                asked.elapsed()
            );
        }
    }
}

fn what_too_few_replicas_have_is_given_back_in_the_end_though_the_server_refuses_at_first() {
    let server = Server::start().unwrap();
    let proxy = Proxy::in_front_of(&server).unwrap();
    let mut conn = server.connection().unwrap();
    for lock in every_kind(&crate::connect(&proxy.url())) {
        lock.acquire(LONG).unwrap().release().unwrap();
        let key = format!("lock:{}", lock.name());
        // The first one is the acquire, unless that is a plain `SET`, and the next the release.
        let releases = if lock.name() == "bare" { 1 } else { 2 };
        let give_back = proxy.at("EVALSHA").about(&key).nth(releases);
        give_back.refuse("LOADING not yet");
        let acquired = lock
            .clone()
            // Longer than the wait, so it does not expire.
            .with(Options::new().lease(10 * LONG).replicas(1, MS))
            .try_acquire();
        assert!(
            matches!(acquired, Err(Error::TooFewReplicas { .. })),
            "{acquired:?}"
        );
        assert!(proxy.happened());
        let free = || !conn.exists::<_, bool>(&key).unwrap();
        assert!(comes_true(free), "{key}: not released");
    }
}
