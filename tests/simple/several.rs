//! Several locks of the book around one closure.

use std::{
    panic, thread,
    time::{Duration, Instant},
};

use leasehold::{
    Error, acquire_lock_with_timeout, recipes::mutex, release_lock, with_lock, with_locks,
};
use redis::Commands;

use crate::common::{LONG, MS, Proxy, SLACK, Server, hold::comes_true, wait::unless_halted};

#[test]
fn the_closure_has_all_locks_with_tokens_in_the_order_of_the_names() {
    let server = Server::start().unwrap();
    let mut conn = server.connection().unwrap();
    let names = ["b", "a", "c"];
    let ran = with_locks(&mut conn, names, LONG, LONG, |conn, tokens| {
        let held = names.map(|name| conn.get::<_, String>(format!("lock:{name}")).unwrap());
        let tokens: Vec<String> = tokens.iter().map(ToString::to_string).collect();
        assert_eq!(tokens, held);
        7
    });
    assert_eq!(ran.unwrap().unwrap().unless_lost().unwrap(), 7);
    assert_eq!(conn.keys::<_, Vec<String>>("*").unwrap(), [""; 0]);
}

#[test]
fn if_one_lock_is_busy_nothing_runs_and_no_lock_is_held() {
    let server = Server::start().unwrap();
    let mut conn = server.connection().unwrap();
    let token = acquire_lock_with_timeout(&mut conn, "b", Duration::ZERO, LONG).unwrap();
    let names = ["c", "b", "a"];
    let ran = with_locks(&mut conn, names, 30 * MS, LONG, |_, _| panic!("it ran"));
    assert!(ran.unwrap().is_none());
    assert_eq!(conn.keys::<_, Vec<String>>("*").unwrap(), ["lock:b"]);
    assert!(release_lock(&mut conn, "b", &token.unwrap()).unwrap());
}

#[test]
fn invalid_arguments_are_refused() {
    let server = Server::start().unwrap();
    let mut conn = server.connection().unwrap();
    let refused: [&[&str]; 3] = [&[], &["a", "b", "a"], &["a", ""]];
    for names in refused {
        let ran = with_locks(&mut conn, names, MS, LONG, |_, _| panic!("it ran"));
        assert!(matches!(ran, Err(Error::Invalid { .. })), "{names:?}");
    }
    assert_eq!(conn.keys::<_, Vec<String>>("*").unwrap(), [""; 0]);
}

/// The wait takes longer than the first lock's lease.
#[test]
fn held_locks_are_renewed_while_waiting_for_the_next() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let [mut conn, mut other] = [(); 2].map(|()| server.connection().unwrap());
        let token = acquire_lock_with_timeout(&mut other, "b", Duration::ZERO, LONG).unwrap();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                with_locks(&mut conn, ["a", "b"], LONG, 600 * MS, |conn, _| {
                    conn.pttl::<_, i64>("lock:a").unwrap()
                })
            });
            assert!(comes_true(|| other.exists("lock:a").unwrap()));
            let first: String = other.get("lock:a").unwrap();
            thread::sleep(1_500 * MS);
            assert_eq!(other.get::<_, String>("lock:a").unwrap(), first);
            release_lock(&mut other, "b", &token.unwrap()).unwrap();
            let ran = waiter.join().unwrap().unwrap().unwrap();
            assert!(ran.unless_lost().unwrap() > 300);
        });
    });
}

#[test]
fn a_lock_stolen_while_waiting_for_the_next_is_a_loss() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let [mut conn, mut other] = [(); 2].map(|()| server.connection().unwrap());
        acquire_lock_with_timeout(&mut other, "b", Duration::ZERO, LONG).unwrap();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                with_locks(&mut conn, ["a", "b"], LONG, 600 * MS, |_, _| {
                    panic!("it ran")
                })
            });
            assert!(comes_true(|| other.exists("lock:a").unwrap()));
            let () = other.set("lock:a", "somebody else").unwrap();
            let lost = waiter.join().unwrap().map(drop);
            let is_named = matches!(&lost, Err(Error::Lost { context, .. }) if context.lock == "a");
            assert!(is_named, "{lost:?}");
        });
        assert_eq!(other.get::<_, String>("lock:a").unwrap(), "somebody else");
    });
}

#[test]
fn a_loss_names_all_locks_and_a_panic_releases_all() {
    let server = Server::start().unwrap();
    let mut conn = server.connection().unwrap();
    let ran = with_locks(&mut conn, ["c", "a", "b"], LONG, LONG, |conn, _| {
        let () = conn.del(&["lock:a", "lock:c"]).unwrap();
    });
    let released = ran.unwrap().unwrap().released;
    let is_named = matches!(&released, Err(Error::Lost { context, .. }) if context.lock == "a, c");
    assert!(is_named, "{released:?}");
    let panicked = panic::catch_unwind(panic::AssertUnwindSafe(|| {
        with_locks(&mut conn, ["a", "b"], LONG, LONG, |_, _| panic!("inside"))
    }));
    assert!(panicked.is_err());
    assert_eq!(conn.keys::<_, Vec<String>>("*").unwrap(), [""; 0]);
}

/// In the callers' orders each would wait for the other until its time limit.
#[test]
fn callers_with_opposite_orders_do_not_deadlock() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        thread::scope(|scope| {
            for names in [["a", "b"], ["b", "a"], ["a", "b"], ["b", "a"]] {
                let mut conn = server.connection().unwrap();
                scope.spawn(move || {
                    for _ in 0..25 {
                        let ran = with_locks(&mut conn, names, 3 * LONG, LONG, |conn, _| {
                            conn.incr::<_, _, ()>("runs", 1)
                        });
                        ran.unwrap().unwrap().unless_lost().unwrap().unwrap();
                    }
                });
            }
        });
        let runs: u32 = server.connection().unwrap().get("runs").unwrap();
        assert_eq!(runs, 100);
    });
}

#[test]
fn single_locks_and_mutexes_exclude_it() {
    let server = Server::start().unwrap();
    let mut conn = server.connection().unwrap();
    let ran = with_lock(&mut conn, "a", MS, LONG, |conn, token| {
        let inner = with_locks(conn, ["b", "a"], MS, LONG, |_, _| ()).unwrap();
        assert!(inner.is_none());
        mutex::renew(conn, "a", token, LONG).unwrap()
    });
    assert!(ran.unwrap().unwrap().unless_lost().unwrap());
}

/// The last one is granted at once, but its answer takes longer than the leases.
#[test]
fn all_are_held_in_the_closure_however_slow_the_answers() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let proxy = Proxy::in_front_of(&server).unwrap();
        let (mut conn, mut other) = (proxy.connection().unwrap(), server.connection().unwrap());
        for slow in ["lock:b", "lock:c"] {
            proxy.at("SET").about(slow).delay(800 * MS);
            let names = ["a", "b", "c"];
            let ran = with_locks(&mut conn, names, LONG, 600 * MS, |_, tokens| {
                let held = names.map(|name| other.get::<_, Option<String>>(format!("lock:{name}")));
                let tokens: Vec<_> = tokens.iter().map(ToString::to_string).collect();
                (tokens, held.map(|value| value.unwrap().unwrap_or_default()))
            });
            let (tokens, held) = ran.unwrap().unwrap().unless_lost().unwrap();
            assert_eq!(tokens, held);
        }
    });
}

#[test]
fn a_lease_that_expires_before_its_answer_is_a_loss() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let proxy = Proxy::in_front_of(&server).unwrap();
        let (mut conn, mut other) = (proxy.connection().unwrap(), server.connection().unwrap());
        proxy.at("SET").about("lock:b").delay(500 * MS);
        proxy.at("EVALSHA").about("lock:a").delay(800 * MS);
        let lost = with_locks(&mut conn, ["b", "a"], LONG, 400 * MS, |_, _| {
            panic!("it ran")
        });
        let is_named = matches!(&lost, Err(Error::Lost { context, .. }) if context.lock == "a");
        assert!(is_named, "{lost:?}");
        assert_eq!(other.keys::<_, Vec<String>>("*").unwrap(), [""; 0]);
    });
}

/// Otherwise each release would wait for its own answer.
#[test]
fn releasing_all_from_a_silent_server_takes_one_timeout() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let mut conn = server.connection().unwrap();
        conn.set_read_timeout(Some(500 * MS)).unwrap();
        let names = ["a", "b", "c", "d", "e", "f"];
        let ran = with_locks(&mut conn, names, LONG, LONG, |_, _| {
            server.freeze().unwrap();
            Instant::now()
        });
        let ran = ran.unwrap().unwrap();
        let took = ran.value.elapsed();
        server.thaw().unwrap();
        let is_unknown = ran
            .released
            .is_err_and(|error| !matches!(error, Error::Lost { .. }));
        assert!(is_unknown && took < 500 * MS + SLACK, "{took:?}");
    });
}

/// The closure leaves a transaction open, and releases a lock.
#[test]
fn an_open_transaction_is_discarded_and_a_released_lock_reported() {
    let server = Server::start().unwrap();
    let mut conn = server.connection().unwrap();
    let ran = with_locks(&mut conn, ["b", "a"], LONG, LONG, |conn, tokens| {
        assert!(release_lock(conn, "b", &tokens[0]).unwrap());
        redis::cmd("MULTI").exec(conn).unwrap();
    });
    let released = ran.unwrap().unwrap().released;
    let is_named = matches!(&released, Err(Error::Lost { context, .. }) if context.lock == "b");
    assert!(is_named, "{released:?}");
    assert_eq!(conn.keys::<_, Vec<String>>("*").unwrap(), [""; 0]);
}

/// Asking for all thirty would take three seconds. A limit of zero asks for each once.
#[test]
fn a_distant_server_does_not_delay_the_deadline() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let proxy = Proxy::in_front_of(&server).unwrap();
        let (mut conn, mut other) = (proxy.connection().unwrap(), server.connection().unwrap());
        let names: Vec<String> = (0..30).map(|number| number.to_string()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        proxy.delay_each(100 * MS);
        let mut ran = |names: &[&str], limit| {
            let asked = Instant::now();
            let ran = with_locks(&mut conn, names, limit, 2 * LONG, |_, _| ()).unwrap();
            (ran.is_some(), asked.elapsed())
        };
        let (has_run, took) = ran(&names, 300 * MS);
        assert!(!has_run && took < 600 * MS + SLACK, "{took:?}");
        assert_eq!(other.keys::<_, Vec<String>>("*").unwrap(), [""; 0]);
        assert!(ran(&names[..4], Duration::ZERO).0);
    });
}

/// The first is acquired shortly before the deadline, and the second not at all.
#[test]
fn all_share_one_deadline() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let [mut conn, mut other] = [(); 2].map(|()| server.connection().unwrap());
        for (name, lease) in [("a", 1_700 * MS), ("b", 12 * LONG)] {
            acquire_lock_with_timeout(&mut other, name, Duration::ZERO, lease).unwrap();
        }
        let asked = Instant::now();
        let ran = with_locks(&mut conn, ["a", "b"], 2_000 * MS, LONG, |_, _| panic!());
        let took = asked.elapsed();
        assert!(ran.unwrap().is_none());
        let limit = 2_000 * MS;
        assert!(took >= limit && took < limit + SLACK, "{took:?}");
    });
}

/// Busy or not: the server may have lost its scripts.
#[test]
fn all_are_released_in_one_round_trip() {
    let server = Server::start().unwrap();
    let proxy = Proxy::in_front_of(&server).unwrap();
    let mut admin = server.connection().unwrap();
    let mut conn = proxy.connection().unwrap();
    let names: Vec<String> = (0..20).map(|number| format!("n{number:02}")).collect();
    let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
    let ran = with_locks(&mut conn, &names, LONG, LONG, |_, _| {
        redis::cmd("SCRIPT").arg("FLUSH").exec(&mut admin).unwrap();
        proxy.take_bursts();
    });
    ran.unwrap().unwrap().unless_lost().unwrap();
    let bursts = proxy.take_bursts();
    assert_eq!(bursts.iter().map(Vec::len).collect::<Vec<_>>(), [20]);

    let () = admin.set("lock:z", "someone").unwrap();
    names.push("z");
    let ran = with_locks(&mut conn, names, 1_000 * MS, LONG, |_, _| panic!("it ran"));
    assert!(ran.unwrap().is_none());
    let bursts = proxy.take_bursts();
    assert_eq!(bursts.last().map(Vec::len), Some(20), "{bursts:?}");
    assert_eq!(admin.keys::<_, Vec<String>>("*").unwrap(), ["lock:z"]);
}
