//! One reply has one verdict: whoever asks the server about a hold of any kind, however it ended.

use std::{
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use leasehold::{
    Error, Events, Lease, Leases, LockSet, Locks, LostReason, Once, Options, RenewalState,
    event::{HoldEnd, Released},
};
use redis::{Commands, Connection};

use crate::common::{
    MS, Proxy, Server,
    hold::{CALLS, Call, every_kind},
    wait::{at_once, comes_true, tracked_keys, unless_halted},
};

const LONG: Duration = Duration::from_secs(20);
/// A lease that ends during the test.
const SHORT: Duration = Duration::from_millis(120);
type Result<T = ()> = std::result::Result<T, Error>;
type Harm = fn(&mut Connection, &str);
type Write = fn(&Leases) -> Result;

/// Everybody who asks the server about a hold.
fn askers() -> impl Iterator<Item = (&'static str, Call)> {
    let watchdog: Call = |lease| {
        assert!(lease.lost().wait_for(LONG));
        (lease.check(), Some(lease))
    };
    CALLS.into_iter().chain([("the watchdog", watchdog)])
}

#[derive(Default)]
struct Ends(Mutex<Vec<HoldEnd>>);

impl Events for Ends {
    fn released(&self, released: &Released<'_>) {
        self.0.lock().unwrap().push(released.end());
    }
}

/// A server that notifies of no changes, so that nobody but the asker and the renewals ask it.
fn silent_server() -> (Server, Locks, Connection) {
    let server = Server::start().unwrap();
    let mut conn = server.connection().unwrap();
    let rule = ["SETUSER", "default", "-client", "+client|id"];
    redis::cmd("ACL").arg(&rule).exec(&mut conn).unwrap();
    let locks = Locks::connect(&server.url()).unwrap();
    (server, locks, conn)
}

fn lost(result: &Result) -> Option<LostReason> {
    match result {
        Err(Error::Lost { reason, .. }) => *reason,
        _ => None,
    }
}

/// The loss of this hold says the same everywhere.
fn says(reason: LostReason, asked: &Result, lease: Option<&Lease>, what: &str) {
    assert_eq!(lost(asked), Some(reason), "{what}: {asked:?}");
    let Some(lease) = lease else {
        return;
    };
    assert_eq!(lease.state(), RenewalState::Lost(reason), "{what}");
    assert!(!lease.is_held() && lease.remaining().is_zero(), "{what}");
    assert_eq!(lost(&lease.check()), Some(reason), "{what}");
    assert_eq!(lease.lost().reason(), Some(reason), "{what}");
}

fn become_a_list(conn: &mut Connection, key: &str) {
    let () = redis::pipe().del(key).rpush(key, 1).query(conn).unwrap();
}

#[test]
fn every_asker_of_every_kind_says_the_same() {
    let become_a_hash: Harm = |conn, key| {
        let fields = [("one", "1"), ("two", "2")];
        let pipe = &mut redis::pipe();
        let () = pipe
            .del(key)
            .hset_multiple(key, &fields)
            .query(conn)
            .unwrap();
    };
    let (taken, ended) = (LostReason::TakenAway, LostReason::Ended);
    let ends: [(&str, Harm, LostReason); 6] = [
        ("another kind", become_a_list, taken),
        ("a foreign hash", become_a_hash, taken),
        ("deleted", |conn, key| conn.del(key).unwrap(), taken),
        ("ended", |_, _| (), ended),
        ("ended, then another kind", become_a_list, ended),
        ("ended, then a foreign hash", become_a_hash, ended),
    ];
    at_once(ends, |(end, harm, reason)| {
        let (_server, locks, mut conn) = silent_server();
        let ends = Arc::new(Ends::default());
        let locks = locks.with(Options::new().events(Arc::clone(&ends) as Arc<dyn Events>));
        for (name, ask) in askers() {
            let options = match (reason, name) {
                (LostReason::Ended, _) => Options::new().lease(SHORT).renewal(false),
                (_, "the watchdog") => Options::new().lease(1_500 * MS),
                _ => Options::new().lease(LONG),
            };
            let locks = locks.with(options);
            let held = every_kind(&locks).map(|lock| lock.acquire(LONG).unwrap());
            let held = Vec::from(held);
            if reason == LostReason::Ended {
                thread::sleep(SHORT);
            }
            for lease in &held {
                harm(&mut conn, &format!("lock:{}", lease.name()));
            }
            for lease in held {
                let what = format!("{end}, {}, {name}", lease.name());
                let (asked, lease) = ask(lease);
                says(reason, &asked, lease.as_ref(), &what);
                drop(lease);
                let told = ends.0.lock().unwrap().last().copied();
                assert_eq!(told, Some(HoldEnd::Lost(reason)), "{what}");
            }
            redis::cmd("FLUSHALL").exec(&mut conn).unwrap();
        }
        assert!(!conn.exists::<_, bool>("written").unwrap(), "{end}");
    });
}

/// The error says what the key holds instead.
#[test]
fn the_loss_to_another_kind_says_so() {
    let (_server, locks, mut conn) = silent_server();
    for lock in every_kind(&locks) {
        for (name, ask) in CALLS {
            let lease = lock.acquire(LONG).unwrap();
            become_a_list(&mut conn, &format!("lock:{}", lock.name()));
            let error = ask(lease).0.unwrap_err();
            let why = std::error::Error::source(&error).unwrap().to_string();
            assert!(why.contains("found a"), "{lock:?} {name}: {why}");
            redis::cmd("FLUSHALL").exec(&mut conn).unwrap();
        }
    }
}

/// The lock was held when the call was sent, and had ended by itself when it reached the server.
#[test]
fn a_call_that_is_late_meets_an_end() {
    let server = Server::start().unwrap();
    let late = CALLS.into_iter();
    let late = late.filter(|(name, _)| ["verify", "release"].contains(name));
    at_once(late, |(name, ask)| {
        let proxy = Proxy::in_front_of(&server).unwrap();
        let locks = Locks::connect(&proxy.url()).unwrap();
        let locks = locks.with(Options::new().lease(500 * MS).renewal(false).prefix(name));
        for lock in every_kind(&locks) {
            let lease = lock.acquire(LONG).unwrap();
            let mut conn = server.connection().unwrap();
            // The watchdog's first look is over.
            assert!(comes_true(|| tracked_keys(&mut conn).unwrap() > 0));
            let key = format!("{name}{}", lock.name());
            proxy
                .at("EVALSHA")
                .about(&key)
                .run_each_time(|| thread::sleep(600 * MS));
            let (asked, lease) = ask(lease);
            let what = format!("{name}, {}", lock.name());
            says(LostReason::Ended, &asked, lease.as_ref(), &what);
        }
    });
}

/// The server refuses renewals, releases and marks until the lease has ended by itself.
#[test]
fn a_hold_that_was_refused_until_its_end_was_not_taken_away() {
    unless_halted(|| {
        let (_server, locks, mut conn) = silent_server();
        let lease = 600 * MS;
        let locks = locks.with(Options::new().lease(lease));
        let held: Vec<Lease> = (every_kind(&locks).into_iter().chain([locks.lock("late")]))
            .map(|lock| lock.acquire(LONG).unwrap())
            .collect();
        let marked = locks.lock("marked");
        let refuse = ["SET", "min-replicas-to-write", "1"];
        let once = |conn: &mut Connection| {
            marked.run_once(LONG, LONG, |_| {
                redis::cmd("CONFIG").arg(&refuse).exec(conn).unwrap();
                Ok::<_, Error>(())
            })
        };
        let released = match once(&mut conn).unwrap() {
            Once::Ran(ran) => ran.released.unwrap_err(),
            other => panic!("{other:?}"),
        };
        is_not_taken_away(&released, "run_once");
        for lease in held {
            assert!(lease.lost().wait_for(LONG));
            assert_eq!(lease.state(), RenewalState::Lost(LostReason::Ended));
            let name = lease.name().to_owned();
            for error in [lease.check().unwrap_err(), lease.release().unwrap_err()] {
                is_not_taken_away(&error, &name);
                assert!(matches!(error, Error::Lost { .. }), "{error:?}");
            }
        }
    });
}

fn is_not_taken_away(error: &Error, what: &str) {
    let why = match error {
        Error::Lost { reason, source, .. } => {
            assert_eq!(*reason, Some(LostReason::Ended), "{what}: {error:?}");
            source.as_deref().unwrap()
        }
        error => error,
    };
    let source = std::error::Error::source(why).unwrap().to_string();
    assert!(source.contains("NOREPLICAS"), "{what}: {source}");
}

/// The companion serves the next holder. A hold ends with its lease, or with the reply to a release
/// that is repeated once the companion is mended.
#[test]
fn a_companion_of_another_type_ends_no_hold() {
    let (_server, locks, mut conn) = silent_server();
    let locks = locks.with(Options::new().lease(LONG));
    for lock in every_kind(&locks) {
        let (key, companion) = (format!("lock:{0}", lock.name()), lock.name());
        let companion = format!("{{lock:{companion}}}:lease");
        let lease = lock.acquire(LONG).unwrap();
        let has_one: bool = conn.exists(&companion).unwrap();
        if has_one {
            let () = conn.rename(&companion, "saved").unwrap();
        }
        let () = conn.set(&companion, "x").unwrap();
        for asked in [lease.verify(), lease.renew(2 * LONG)] {
            let is_refused = matches!(asked, Err(Error::WrongKind { .. }));
            assert!(is_refused || asked.is_ok(), "{lock:?}: {asked:?}");
        }
        let committed = lease.commit(|pipe| _ = pipe.incr("written", 1));
        let is_refused = matches!(committed, Err(Error::WrongKind { .. }));
        assert!(is_refused || committed.is_ok(), "{lock:?}: {committed:?}");
        assert!(lease.is_held(), "{lock:?}");
        let released = lease.release();
        let is_refused = matches!(released, Err(Error::WrongKind { .. }));
        assert!(is_refused || released.is_ok(), "{lock:?}: {released:?}");
        // In one step: a release that met no companion would find no level of ours.
        if has_one {
            let () = conn.rename("saved", &companion).unwrap();
        } else {
            let () = conn.del(&companion).unwrap();
        }
        let is_free = || !conn.exists::<_, bool>(&key).unwrap();
        assert!(comes_true(is_free), "{lock:?}");
    }
}

/// The locks of a set with one name under two prefixes: only the one that is gone is lost.
#[test]
fn a_set_loses_the_lock_that_is_gone_and_no_other_of_its_name() {
    let writes: [(&str, Write); 2] = [
        ("commit", |held| {
            held.commit(|pipe| _ = pipe.incr("written", 1))
        }),
        ("transaction", |held| {
            held.transaction(&[], |conn, pipe| {
                let _: Option<u64> = conn.get("written")?;
                pipe.incr("written", 1);
                Ok(())
            })
        }),
    ];
    let harms: [(&str, Harm); 2] = [
        ("deleted", |conn, key| conn.del(key).unwrap()),
        ("another kind", become_a_list),
    ];
    let (_server, locks, mut conn) = silent_server();
    for ((write_name, write), (harm_name, harm)) in
        (writes.iter()).flat_map(|write| harms.iter().map(move |harm| (*write, *harm)))
    {
        let one = locks.lock("a").with(Options::new().prefix("one:"));
        let two = locks.lock("a").with(Options::new().prefix("two:"));
        for gone in ["one:a", "two:a"] {
            let what = format!("{write_name}, {harm_name}, {gone}");
            let set = LockSet::of([one.clone(), two.clone(), locks.lock("b")]);
            let held = set.acquire(LONG).unwrap();
            harm(&mut conn, gone);
            let lost_by = lost(&write(&held));
            assert_eq!(lost_by, Some(LostReason::TakenAway), "{what}");
            for key in ["one:a", "two:a", "b"] {
                let is_held = held.get(key).unwrap().is_held();
                assert_eq!(is_held, key != gone, "{what}: {key}");
            }
            let released = held.release().unwrap_err();
            assert_eq!(released.context().unwrap().lock, "a", "{what}");
            assert_eq!(lost(&Err(released)), Some(LostReason::TakenAway), "{what}");
            redis::cmd("FLUSHALL").exec(&mut conn).unwrap();
        }
    }
    assert!(!conn.exists::<_, bool>("written").unwrap());
}
