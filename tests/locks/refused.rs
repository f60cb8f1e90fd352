//! Waits on a server that is down or refuses commands, from the first attempt on.

use std::{
    thread,
    time::{Duration, Instant},
};

use leasehold::{Error, Lease, Lock, Locks, Once, Options, Owner, Result};
use redis::{Commands, Connection};

use crate::{
    common::{
        LONG, MS, Proxy, SLACK, Server,
        fake::Fake,
        hold::{comes_true, every_kind, semaphore},
        wait::{PATIENCE, at_once, unless_halted},
    },
    waiting::waiting,
};

/// Temporary refusals in the server's words; the last ones are of scripts: before Redis 7, and by a
/// node whose slot is moving.
const PASSES: [&str; 13] = [
    "LOADING Redis is loading the dataset in memory",
    "BUSY Redis is busy running a script",
    "READONLY You can't write against a read only replica.",
    "TRYAGAIN Multiple keys request during rehashing of slot",
    "MASTERDOWN Link with MASTER is down",
    "CLUSTERDOWN The cluster is down",
    "NOREPLICAS Not enough good replicas to write.",
    "OOM command not allowed when used memory > 'maxmemory'.",
    "MISCONF Redis is configured to save RDB snapshots",
    "ERR Error running script (call to f_1): @user_script:1: @user_script: 1: -OOM command not allowed",
    "ERR Error running script (call to f_1): @user_script: 1: Script attempted to access a non local key in a cluster node",
    "ERR Script attempted to access a non local key in a cluster node script: 1, on @user_script:1.",
    "ERR Script attempted to execute a command while the cluster is down script: 1",
];

/// Addresses without a server.
const NOBODY: [&str; 3] = [
    "redis://127.0.0.1:1/",
    "redis+sentinel://127.0.0.1:1,127.0.0.1:2/mymaster",
    "redis+cluster://127.0.0.1:1,127.0.0.1:2/",
];

/// The results of this many threads that wait for one lock, and the time that each took.
fn told(lock: &Lock, threads: usize, wait: Duration) -> Vec<(Result<Lease>, Duration)> {
    thread::scope(|scope| {
        let wait = || {
            let asked = Instant::now();
            (lock.acquire(wait), asked.elapsed())
        };
        let waiters: Vec<_> = (0..threads).map(|_| scope.spawn(wait)).collect();
        let told = waiters.into_iter().map(|waiter| waiter.join().unwrap());
        told.collect()
    })
}

/// That too few replicas would have it shows only once it is granted.
#[test]
fn a_busy_lock_is_busy_to_a_thread_that_wants_more_replicas_than_there_are() {
    at_once(0..6, |kind| {
        let server = Server::start().unwrap();
        let [ours, theirs] = [(); 2].map(|()| Locks::connect(&server.url()).unwrap());
        let ours = ours.with(Options::new().replicas(1, 50 * MS));
        let lock = &every_kind(&ours)[kind];
        // A reader would share it.
        let held = match lock.name() {
            "read" => theirs.write("read"),
            _ => every_kind(&theirs)[kind].clone(),
        };
        let other = Options::new().owner(Owner::new("other").unwrap());
        let _held = held.with(other).acquire(LONG).unwrap();
        assert!(lock.try_acquire().unwrap().is_none(), "{}", lock.name());
        let refused = lock.acquire(1_000 * MS).unwrap_err();
        let is_busy = matches!(
            refused,
            Error::Contended {
                remaining: Some(_),
                ..
            }
        );
        assert!(is_busy, "{}: {refused:?}", lock.name());
    });
}

#[test]
fn a_transient_refusal_does_not_end_a_wait() {
    at_once(PASSES, |refusal| {
        let server = Server::start().unwrap();
        let proxy = Proxy::in_front_of(&server).unwrap();
        let lock = crate::connect(&proxy.url()).lock("a");
        proxy.at("EVALSHA").refuse(refusal);
        proxy.at("EVALSHA").nth(2).refuse(refusal);
        lock.acquire(LONG).unwrap().release().unwrap();
    });
}

#[test]
fn a_wait_may_begin_before_the_server_is_up() {
    unless_halted(|| {
        let mut server = Server::start().unwrap();
        let lock = crate::connect(&server.url()).lock("a");
        server.kill().unwrap();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| lock.acquire(LONG));
            thread::sleep(300 * MS);
            assert!(!waiter.is_finished());
            server.restart().unwrap();
            waiter.join().unwrap().unwrap().verify().unwrap();
        });
    });
}

#[test]
fn all_waiters_get_a_refusal_that_lasts_until_the_deadline() {
    let wait = 700 * MS;
    at_once(NOBODY, |url| {
        let lock = Locks::connect(url).unwrap().lock("a");
        for (told, after) in told(&lock, 4, wait) {
            assert!(matches!(told, Err(Error::Pool { .. })), "{url}: {told:?}");
            assert!(
                after >= wait && after < wait + 250 * MS + SLACK,
                "{after:?}"
            );
        }
    });
}

/// The threads behind the head have not asked themselves.
#[test]
fn waiters_behind_a_failing_head_get_its_error_and_not_contention() {
    unless_halted(|| {
        let fake = Fake::saying(|command, _| match command {
            "EVALSHA" | "EVAL" => b"-LOADING Redis is loading\r\n".to_vec(),
            "INFO" => b"$20\r\nredis_version:7.0.15\r\n".to_vec(),
            _ => b"+OK\r\n".to_vec(),
        });
        let lock = crate::connect(&format!("redis://127.0.0.1:{}/", fake.port())).lock("a");
        thread::scope(|scope| {
            let head = scope.spawn(|| lock.acquire(1_500 * MS));
            let asks = || {
                fake.asked()
                    .iter()
                    .filter(|name| *name == "EVALSHA")
                    .count()
            };
            assert!(comes_true(|| asks() >= 3));
            for (told, _) in told(&lock, 8, 300 * MS) {
                assert!(matches!(told, Err(Error::Redis { .. })), "{told:?}");
            }
            let told = head.join().unwrap();
            assert!(matches!(told, Err(Error::Redis { .. })), "{told:?}");
        });
    });
}

/// Some have queued, and then wait for a connection that others use; the server answers all the
/// time.
#[test]
fn too_few_replicas_are_not_reported_as_a_silent_server() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let options = Options::new().replicas(1, 100 * MS);
        let locks = Locks::connect(&server.url()).unwrap().with(options);
        at_once(0..16, |number| {
            let lock = locks.lock(&format!("{}", number / 2));
            thread::sleep(number % 2 * 50 * MS);
            let told = lock.acquire(600 * MS + number % 2 * 300 * MS);
            // Another thread's attempt that lacked replicas blocks this one for a while.
            let is_it = matches!(
                told,
                Err(Error::TooFewReplicas { .. } | Error::Contended { .. })
            );
            assert!(is_it, "{told:?}");
        });
    });
}

/// A typo in the password does not cost the whole wait.
#[test]
fn a_wrong_password_ends_a_wait_at_once() {
    unless_halted(|| {
        let server = Server::start_with(&["--requirepass", "right"]).unwrap();
        for login in ["redis://:wrong@127.0.0.1", "redis://127.0.0.1"] {
            let url = format!("{login}:{}/", server.port());
            let asked = Instant::now();
            let told = crate::connect(&url).lock("a").acquire(LONG);
            assert!(matches!(told, Err(Error::Pool { .. })), "{told:?}");
            assert!(asked.elapsed() < LONG / 4, "{:?}", asked.elapsed());
        }
    });
}

/// Neither a holder that does not keep us out, nor the end of an intent as that of a lease.
#[test]
fn contended_says_only_what_was_seen() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let (ours, theirs) = (crate::connect(&server.url()), crate::connect(&server.url()));
        let mut conn = server.connection().unwrap();
        // Returns whether it names a holder, and tells the end of a lease.
        let said_after = |lock: &Lock, wait| {
            let error = lock.acquire(wait).map(drop).unwrap_err();
            let text = error.to_string();
            let Error::Contended {
                holder, remaining, ..
            } = error
            else {
                panic!("{text}");
            };
            assert_eq!(
                text.contains(" of this process"),
                holder.is_some(),
                "{text}"
            );
            assert_eq!(
                text.contains("lease ends in"),
                remaining.is_some(),
                "{text}"
            );
            assert!(!text.contains("someone else"), "{text}");
            (holder.is_some(), remaining.is_some())
        };
        let said = |lock: &Lock| said_after(lock, 600 * MS);
        // A first attempt may read no end, and a busy machine has no time for a second.
        let says = |lock: &Lock, expected| {
            let is_said = |wait| said_after(lock, wait) == expected;
            assert!(is_said(600 * MS) || is_said(PATIENCE), "{}", lock.name());
        };
        for (lock, again) in every_kind(&ours).into_iter().zip(every_kind(&theirs)) {
            if lock.name() == "read" {
                continue;
            }
            let another = lock
                .clone()
                .with(Options::new().owner(Owner::new("x").unwrap()));
            let held = lock.acquire(LONG).unwrap();
            // The holder is of this process in both cases, but by another `Locks`.
            says(&another, (true, true));
            let again = again.with(Options::new().owner(Owner::new("y").unwrap()));
            says(&again, (false, true));
            held.release().unwrap();
        }
        // A writer of this process, and of another.
        let writer = ours.write("a").acquire(LONG).unwrap();
        says(&ours.read("a"), (true, true));
        says(&theirs.read("a"), (false, true));
        writer.release().unwrap();
        // Only the intent of a writer of another process keeps our reader out.
        let reader = ours.read("a").acquire(LONG).unwrap();
        thread::scope(|scope| {
            let writer = scope.spawn(|| theirs.write("a").acquire(LONG).map(drop));
            let has_intent = |conn: &mut Connection| {
                let fields: Vec<String> = conn.hkeys("lock:a").unwrap();
                fields.iter().any(|field| field.starts_with("i:"))
            };
            assert!(comes_true(|| has_intent(&mut conn)));
            assert_eq!(said(&ours.read("a")), (false, false));
            reader.release().unwrap();
            writer.join().unwrap().unwrap();
        });
        // The writer has died, so no one holds it.
        let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(&mut conn).unwrap();
        let end = seconds * 1_000 + micros / 1_000 + 1_000;
        let intent = ("i:dead", end.to_string());
        let fields = [("kind", "rw".to_owned()), intent];
        let () = conn.hset_multiple("lock:b", &fields).unwrap();
        let _: bool = conn.pexpire("lock:b", 1_000).unwrap();
        assert_eq!(said(&ours.read("b")), (false, false));
    });
}

/// The thread ahead of it is refused for its whole wait.
#[test]
fn a_waiter_behind_another_gets_its_own_answer_at_its_deadline() {
    type Case = fn(&Locks, &Locks, &Server) -> (Lock, Lock);
    let cases: [(&str, Case); 4] = [
        ("granted", |ours, theirs, _| {
            let one = semaphore(theirs, "a", 3).acquire(LONG).unwrap();
            drop(one.detach());
            (semaphore(ours, "a", 1), semaphore(ours, "a", 3))
        }),
        // A writer's intent keeps readers out, but no other writer.
        ("granted", |ours, _, server| {
            let mut conn = server.connection().unwrap();
            let (seconds, _): (u64, u64) = redis::cmd("TIME").query(&mut conn).unwrap();
            let end = (seconds + 10) * 1_000;
            let fields = [("kind", "rw".to_owned()), ("i:dead", end.to_string())];
            let () = conn.hset_multiple("lock:a", &fields).unwrap();
            let _: bool = conn.pexpire("lock:a", 10_000).unwrap();
            (ours.read("a"), ours.write("a"))
        }),
        // The work was done, and then somebody else took the lock.
        ("run before", |ours, theirs, _| {
            let lock = theirs.lock("a");
            drop(
                lock.run_once(LONG * 4, LONG, |_| Ok::<(), Error>(()))
                    .unwrap(),
            );
            drop(lock.acquire(LONG).unwrap().detach());
            (ours.lock("a"), ours.lock("a"))
        }),
        // The replicas that the thread ahead asks for are its own affair.
        ("contended", |ours, theirs, _| {
            drop(theirs.lock("b").acquire(LONG).unwrap());
            let asks = Options::new().replicas(1, 50 * MS);
            (ours.lock("a").with(asks), ours.lock("a"))
        }),
    ];
    at_once(cases, |(told, case)| {
        let server = Server::start().unwrap();
        let long = Options::new().lease(4 * LONG);
        let [ours, theirs] = [(); 2].map(|()| crate::connect(&server.url()).with(long.clone()));
        let (ahead, behind) = case(&ours, &theirs, &server);
        thread::scope(|scope| {
            let first = scope.spawn(|| ahead.acquire(3_000 * MS).map(drop));
            assert!(comes_true(|| waiting(&behind) == 1));
            let own = match told {
                "run before" => behind
                    .run_once(LONG * 4, 500 * MS, |_| Ok::<(), Error>(()))
                    .map(|once| matches!(once, Once::AlreadyRun(_)).then_some("run before")),
                _ => behind.acquire(500 * MS).map(|_| Some("granted")),
            };
            assert_eq!(
                own.unwrap_or_else(|error| error.is_contended().then_some("contended")),
                Some(told)
            );
            assert!(first.join().unwrap().is_err(), "{told}");
        });
    });
}

/// The thread ahead of it waits for its own owner.
#[test]
fn a_reentry_does_not_queue_after_a_temporary_refusal() {
    // The owner's first hold is of this `Locks`, or of another one.
    at_once([true, false], |is_ours| {
        let server = Server::start().unwrap();
        let mut conn = server.connection().unwrap();
        let options = Options::new()
            .owner(Owner::new("x").unwrap())
            .lease(4 * LONG);
        let [ours, theirs] = [(); 2].map(|()| crate::connect(&server.url()).with(options.clone()));
        let lock = ours.reentrant("a");
        let held = if is_ours { &ours } else { &theirs };
        let held = held.reentrant("a").acquire(LONG).unwrap();
        let other = Options::new().owner(Owner::new("y").unwrap());
        let other = lock.clone().with(other);
        let mut needs = move |replicas: u32| {
            let mut set = redis::cmd("CONFIG");
            set.arg(&["SET", "min-replicas-to-write"]).arg(replicas);
            set.exec(&mut conn).unwrap();
        };
        thread::scope(|scope| {
            let ahead = scope.spawn(|| other.acquire(3 * LONG).map(drop));
            assert!(comes_true(|| waiting(&lock) == 1));
            needs(1);
            let entered = scope.spawn(|| (lock.acquire(LONG).map(drop), Instant::now()));
            thread::sleep(200 * MS); // it is refused
            assert!(!entered.is_finished());
            needs(0);
            let since = Instant::now();
            let (entered, at) = entered.join().unwrap();
            entered.unwrap();
            let took = at.saturating_duration_since(since);
            assert!(took < 250 * MS + SLACK, "{took:?}");
            drop(held);
            ahead.join().unwrap().unwrap();
        });
    });
}
