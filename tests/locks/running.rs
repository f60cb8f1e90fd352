//! `Lock::run`: an error means that the work has not run, and no later failure discards its value.

use std::{
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use leasehold::{Error, Lease, Lock, Locks, Options, Pool, Ran, Result};
use redis::Commands;

use crate::common::{
    Proxy, Server, clients,
    hold::{comes_true, every_kind},
    wait::{at_once, tracked_keys, unless_halted},
};

const MS: Duration = Duration::from_millis(1);
const LONG: Duration = Duration::from_secs(20);

/// With a time-out short enough for a test.
fn quick(url: &str) -> Locks {
    let pool = Pool::builder().io_timeout(800 * MS);
    crate::connect_with(url, pool)
}

fn is_lost<T>(result: &Result<T>) -> bool {
    matches!(result, Err(Error::Lost { .. }))
}

#[test]
fn run_releases_on_return_and_on_panic() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        for lock in every_kind(&crate::connect(&server.url())) {
            let ran = lock.run(LONG, Lease::is_held).unwrap();
            assert!(ran.value && ran.released.is_ok(), "{ran:?}");
            assert!(lock.run(LONG, |_| 7).unwrap().unless_lost().unwrap() == 7);
            assert!(!lock.inspect().unwrap().is_held());
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                lock.run(LONG, |_| panic!("on purpose")).map(drop)
            }));
            assert!(panicked.is_err());
            assert!(!lock.inspect().unwrap().is_held());
        }
    });
}

#[test]
fn an_error_of_run_means_that_the_closure_did_not_run() {
    unless_halted(|| {
        let mut server = Server::start().unwrap();
        let proxy = Proxy::in_front_of(&server).unwrap();
        let (locks, theirs) = (quick(&proxy.url()), crate::connect(&server.url()));
        let fails = |lock: Lock| {
            let ran = Cell::new(false);
            let failed = lock.run(50 * MS, |_| ran.set(true));
            assert!(!ran.get(), "{lock:?} {failed:?}");
            failed.unwrap_err()
        };
        let () = server.connection().unwrap().lpush("lock:list", 1).unwrap();
        assert!(matches!(fails(locks.lock("list")), Error::WrongKind { .. }));
        assert!(matches!(fails(locks.lock("")), Error::Invalid { .. }));
        let _held = theirs.lock("held").acquire(LONG).unwrap();
        assert!(matches!(fails(locks.lock("held")), Error::Contended { .. }));
        proxy.at("EVALSHA").about("lock:lost").swallow();
        assert!(matches!(fails(locks.lock("lost")), Error::Unknown { .. }));
        let nobody = crate::connect("redis://127.0.0.1:1/");
        assert!(matches!(fails(nobody.lock("a")), Error::Pool { .. }));
        server.kill().unwrap();
        fails(locks.lock("a"));
    });
}

/// Runs work under each kind of lock, during which `happens` makes the release fail.
fn run_while(happens: impl Fn(&Server, &Proxy, &Lease) + Sync, check: impl Fn(Ran<u32>) + Sync) {
    for kind in 0..6 {
        let server = Server::start().unwrap();
        let mut conn = server.connection().unwrap();
        let proxy = Proxy::in_front_of(&server).unwrap();
        let lock = every_kind(&quick(&proxy.url()))[kind].clone();
        let times = Cell::new(0);
        let ran = lock.run(LONG, |lease| {
            times.set(times.get() + 1);
            // The watchdog has read it on its own connection: the next other `EVALSHA` is the
            // release.
            assert!(comes_true(|| tracked_keys(&mut conn).unwrap() > 0));
            proxy.leave_alone(&clients::told_of_changes(&mut conn));
            happens(&server, &proxy, lease);
            7
        });
        let ran = ran.unwrap_or_else(|error| panic!("{lock:?} has run, but returned {error:?}"));
        assert_eq!((ran.value, times.get()), (7, 1), "{lock:?}");
        check(ran);
    }
}

#[test]
fn a_failed_release_loses_no_value() {
    let cases = [
        "NOPERM no",
        "MISCONF no",
        "OOM no",
        "LOADING not yet",
        "BUSY no",
        "ERR no",
        "swallow",
        "cut after",
    ];
    at_once(cases, |case| {
        let refuse = |_: &Server, proxy: &Proxy, _: &Lease| match case {
            "swallow" => proxy.at("EVALSHA").swallow(),
            // The release is sent again on another connection, and its answer is lost too.
            "cut after" => {
                proxy.at("EVALSHA").cut_after();
                proxy.at("EVALSHA").nth(2).cut_after();
            }
            refusal => proxy.at("EVALSHA").refuse(refusal),
        };
        run_while(refuse, |ran| {
            let failed = ran.released.as_ref().unwrap_err();
            let is_unknown = matches!(failed, Error::Unknown { .. });
            let is_refused = matches!(failed, Error::Redis { .. });
            assert!(
                is_unknown || is_refused && case.contains(' '),
                "{case}: {failed:?}"
            );
            assert_eq!(ran.unless_lost().unwrap(), 7, "{case}");
        });
    });
}

#[test]
fn a_missing_server_at_the_end_loses_no_value() {
    unless_halted(|| {
        let server = std::sync::Mutex::new(Server::start().unwrap());
        let url = server.lock().unwrap().url();
        let ran = quick(&url).lock("a").run(LONG, |_| {
            server.lock().unwrap().kill().unwrap();
            7
        });
        let ran = ran.unwrap();
        assert!(ran.released.is_err() && !is_lost(&ran.released), "{ran:?}");
        assert_eq!(ran.value, 7);
    });
}

#[test]
fn a_loss_is_reported_and_loses_no_value() {
    unless_halted(|| {
        let deletes = |server: &Server, _: &Proxy, lease: &Lease| {
            let key = format!("lock:{}", lease.name());
            let () = server.connection().unwrap().del(key).unwrap();
        };
        run_while(deletes, |ran| {
            assert!(is_lost(&ran.released), "{ran:?}");
            assert!(is_lost(&ran.unless_lost()));
        });
        let replaces = |server: &Server, _: &Proxy, lease: &Lease| {
            let mut conn = server.connection().unwrap();
            let key = format!("lock:{}", lease.name());
            let mut pipe = redis::pipe();
            pipe.atomic().del(&key).ignore().lpush(&key, 1).ignore();
            pipe.exec(&mut conn).unwrap();
        };
        run_while(replaces, |ran| assert!(ran.unless_lost().is_err()));
    });
}

/// A refused release does not hide that the lease had ended before.
#[test]
fn a_loss_is_reported_even_if_the_release_is_refused() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let proxy = Proxy::in_front_of(&server).unwrap();
        let options = Options::new().lease(100 * MS).renewal(false);
        for kind in 0..6 {
            let locks = quick(&proxy.url()).with(options.clone());
            let lock = every_kind(&locks)[kind].clone();
            let ran = lock.run(LONG, |lease| {
                assert!(comes_true(|| !lease.is_held()));
                proxy.at("EVALSHA").refuse("NOPERM no");
            });
            let ran = ran.unwrap();
            assert!(is_lost(&ran.released), "{ran:?}");
        }
    });
}
