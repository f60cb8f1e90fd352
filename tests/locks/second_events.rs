//! A call without an answer, which is sent again if its connection was closed: what then becomes of
//! it, for every kind.

use std::time::Duration;

use leasehold::{Error, Lock, LockSet, Options, Result};
use redis::Commands;

use crate::common::{
    LONG, MS, Proxy, Server, clients,
    hold::{comes_true, every_kind},
    locks::quick,
    proxy::Point,
    wait::{TOO_SLOW, at_once, tracked_keys},
};

const ANSWER: Duration = Duration::from_millis(1_200);

/// What happens to the call and to its second copy, and whether the call may then know its
/// outcome.
type Faults = (&'static str, bool, fn(Point<'_>, Point<'_>));

/// Another master is no row: the key is not there, and other rules count for each call. They are
/// tested with sentinels. Nor is a commit a call: it is sent once.
const FAULTS: [Faults; 11] = [
    ("cut before", true, |first, _| first.cut_before()),
    ("unanswered at first", false, |first, _| first.swallow()),
    ("no connection", false, |first, _| {
        first.shut(ANSWER + 200 * MS);
    }),
    ("refused", false, |first, second| {
        first.cut_after();
        second.refuse("NOPERM no");
    }),
    ("refused for now", true, |first, second| {
        first.cut_after();
        second.refuse("LOADING not yet");
    }),
    ("refused by a replica", true, |first, second| {
        first.cut_after();
        second.refuse("READONLY a replica by now");
    }),
    ("of another kind", false, |first, second| {
        first.cut_after();
        second.refuse("WRONGTYPE no");
    }),
    ("closed before", true, |first, second| {
        first.cut_after();
        second.cut_before();
    }),
    ("closed after", true, |first, second| {
        first.cut_after();
        second.cut_after();
    }),
    ("unanswered", false, |first, second| {
        first.cut_after();
        second.swallow();
    }),
    ("late", true, |first, second| {
        first.cut_after();
        second.delay(300 * MS);
    }),
];

/// Prepares the call on a lock, or on a set of it and another one, and makes it after the faults
/// are in place.
type Call = fn(&Lock, &LockSet, &dyn Fn()) -> Result<()>;

const CALLS: [(&str, Call); 8] = [
    ("try_acquire", |lock, _, faults| {
        faults();
        lock.try_acquire().map(drop)
    }),
    ("acquire", |lock, _, faults| {
        faults();
        lock.acquire(LONG).map(drop)
    }),
    ("renew", |lock, _, faults| {
        let lease = lock.acquire(LONG)?;
        faults();
        lease.renew(LONG)
    }),
    ("release", |lock, _, faults| {
        let lease = lock.acquire(LONG)?;
        faults();
        lease.release()
    }),
    ("drop", |lock, _, faults| {
        let lease = lock.acquire(LONG)?;
        faults();
        drop(lease);
        Ok(())
    }),
    ("try_acquire of a set", |_, set, faults| {
        faults();
        set.try_acquire().map(drop)
    }),
    ("renew of a set", |_, set, faults| {
        let leases = set.acquire(LONG)?;
        faults();
        leases.renew(LONG)
    }),
    ("release of a set", |_, set, faults| {
        let leases = set.acquire(LONG)?;
        faults();
        leases.release()
    }),
];

/// Never `Contended` or a plain refusal: the first copy may have been executed. Whatever is told,
/// no lock is left.
#[test]
fn a_call_sent_again_is_done_or_unknown_and_leaves_no_lock() {
    // Not all at once: with so many servers a machine is late by more than ANSWER.
    for calls in CALLS.chunks(2) {
        let cases = calls
            .iter()
            .flat_map(|call| FAULTS.map(|faults| (*call, faults)));
        at_once(cases, |((name, call), (fault, may_know, happen))| {
            let server = Server::start().unwrap();
            let proxy = Proxy::in_front_of(&server).unwrap();
            let mut conn = server.connection().unwrap();
            let locks = quick(&proxy.url(), ANSWER).with(crate::options().lease(6 * LONG));
            let beside = locks.lock("beside");
            for lock in every_kind(&locks) {
                let what = format!("{name} of {}, {fault}", lock.name());
                let key = format!("lock:{}", lock.name());
                drop(lock.acquire(LONG).unwrap());
                assert!(comes_true(|| !conn.exists::<_, bool>(&key).unwrap()));
                let faults = || {
                    if name.starts_with("re") || name == "drop" {
                        // The watchdog has read it on its own connection.
                        let mut conn = server.connection().unwrap();
                        assert!(comes_true(|| tracked_keys(&mut conn).unwrap() > 0));
                        proxy.leave_alone(&clients::told_of_changes(&mut conn));
                    }
                    let at = |nth| proxy.at_command(nth).about(&key);
                    happen(at(1), at(2));
                };
                let set = LockSet::of([lock.clone(), beside.clone()]);
                let told = call(&lock, &set, &faults);
                let is_unknown = matches!(told, Err(Error::Unknown { .. }));
                let waits = name == "acquire" && fault != "refused" && fault != "of another kind";
                let is_done = told.is_ok() && (may_know || waits || name == "drop");
                // A key of another kind proves that a hold has ended, whatever became of its renewal.
                let is_lost = name.starts_with("renew")
                    && fault == "of another kind"
                    && matches!(told, Err(Error::Lost { .. }));
                assert!(is_unknown || is_done || is_lost, "{what}: {told:?}");
                assert!(proxy.happened(), "{TOO_SLOW}: {what}");
                let keys = [key.as_str(), "lock:beside"];
                let is_free = || conn.exists::<_, u32>(&keys).unwrap() == 0;
                assert!(comes_true(is_free), "{what}: not released");
            }
        });
    }
}

#[test]
fn what_too_few_replicas_have_is_given_back_though_the_server_refuses_at_first() {
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
