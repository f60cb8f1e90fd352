//! Work that one of many hosts does once per period.

use std::{
    cell::Cell,
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant, SystemTime},
};

use leasehold::{Error, Lease, Lock, Locks, Once, Options, Owner, Pool, Result};
use redis::{Commands, Connection};

use crate::common::{
    LONG, MS, Proxy, SLACK, Server,
    hold::{comes_true, every_kind, leave_the_watchdog_alone},
    tell,
    wait::{at_once, unless_halted},
};

const HOUR: Duration = Duration::from_hours(1);
const DAY: Duration = Duration::from_hours(24);
const MARK: &str = "{lock:a}:lease:ran";

fn start() -> (Server, Lock, Connection) {
    let server = Server::start().unwrap();
    let lock = crate::connect(&server.url()).lock("a");
    let conn = server.connection().unwrap();
    (server, lock, conn)
}

/// Runs an empty job.
fn once(lock: &Lock, period: Duration) -> &'static str {
    outcome(&lock.run_once(period, LONG, |_| Ok::<_, ()>(())))
}

fn outcome<T, E>(done: &Result<Once<T, E>>) -> &'static str {
    match done {
        Ok(Once::AlreadyRun(_)) => "has been run",
        Ok(Once::Ran(ran)) => match &ran.released {
            Ok(()) => "run",
            Err(Error::Unknown { .. }) => "run, unknown",
            Err(Error::Lost { .. }) => "run, lost",
            Err(Error::WrongKind { .. }) => "run, wrong kind",
            Err(_) => "run, not marked",
        },
        Ok(Once::Failed(_)) => "failed",
        Err(Error::Contended { .. }) => "contended",
        Err(Error::Invalid { .. }) => "invalid",
        Err(Error::WrongKind { .. }) => "wrong kind",
        Ok(_) | Err(_) => "something else",
    }
}

fn is_free(conn: &mut Connection) -> bool {
    !conn.exists::<_, bool>("lock:a").unwrap()
}

#[test]
fn it_runs_once_per_period_on_any_host_and_says_who_ran_it() {
    unless_halted(|| {
        let (server, lock, mut conn) = start();
        let me = Owner::new("the first host").unwrap();
        let mine = lock.clone().with(crate::options().owner(me.clone()));
        assert!(lock.last_run().unwrap().is_none());
        let ran = mine.run_once(DAY, LONG, |lease| {
            assert!(lease.is_held() && lock.last_run().unwrap().is_none());
            Ok::<_, Error>(7)
        });
        assert_eq!(ran.unwrap().done().unwrap(), Some(7));
        assert!(is_free(&mut conn));
        let other = crate::connect(&server.url()).lock("a");
        let ran = other.run_once(DAY, LONG, |_| -> Result<()> { panic!("run twice") });
        let Ok(Once::AlreadyRun(run)) = ran else {
            panic!("{ran:?}");
        };
        assert_eq!(run.by(), Some(&me));
        let since = SystemTime::now().duration_since(run.at()).unwrap();
        assert!(run.ago() <= LONG && since <= LONG, "{run:?}");
        let read = other.last_run().unwrap().unwrap();
        assert_eq!((read.by(), read.at()), (run.by(), run.at()));
        assert!(is_free(&mut conn));
        // The other's shorter period ends sooner.
        thread::sleep(300 * MS);
        assert_eq!(once(&other, 250 * MS), "run");
        assert_ne!(other.last_run().unwrap().unwrap().by(), Some(&me));
    });
}

#[test]
fn a_run_takes_two_round_trips_and_a_skip_one() {
    unless_halted(|| {
        for fencing in [true, false] {
            let (server, _, mut conn) = start();
            let proxy = Proxy::in_front_of(&server).unwrap();
            let locks = Locks::connect(&proxy.url()).unwrap();
            leave_the_watchdog_alone(&proxy, &locks, &mut conn);
            let lock = locks.lock("a").with(Options::new().fencing(fencing));
            // Retried until the server knows the scripts.
            assert!(comes_true(|| {
                let (ran, running) = proxy.traffic_of(|| once(&lock, HOUR));
                let (found, finding) = proxy.traffic_of(|| once(&lock, HOUR));
                assert_eq!((ran, found), ("run", "has been run"));
                let () = conn.del(MARK).unwrap();
                running.commands == ["EVALSHA"; 2]
                    && running.round_trips == 2
                    && finding.commands == ["EVALSHA"]
            }));
        }
    });
}

#[test]
fn a_run_that_failed_panicked_or_lost_its_lock_is_not_marked() {
    unless_halted(|| {
        let (server, lock, mut conn) = start();
        let failed = lock.run_once(HOUR, LONG, |_| Err::<(), _>("no disk"));
        assert!(matches!(&failed, Ok(Once::Failed(failed)) if failed.value == "no disk"));
        assert!(is_free(&mut conn));
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            lock.run_once(HOUR, LONG, |_| -> Result<()> { panic!("on purpose") })
        }));
        assert!(panicked.is_err() && is_free(&mut conn));

        let taken = |lose: &dyn Fn(&Lease)| {
            let done = lock.run_once(HOUR, LONG, |lease| {
                lose(lease);
                Ok::<_, ()>(())
            });
            assert_eq!(outcome(&done), "run, lost");
            let Ok(Once::Ran(ran)) = done else {
                panic!("{done:?}");
            };
            let text = ran.released.unwrap_err().to_string();
            assert!(text.starts_with("Lock::run_once on `a`: "), "{text}");
        };
        // Before the holder notices, and after.
        let mut other = server.connection().unwrap();
        taken(&|_| {
            let _ = lock.force_release().unwrap();
        });
        taken(&|lease| {
            let _ = lock.force_release().unwrap();
            assert!(lease.lost().wait_for(LONG));
        });
        taken(&|_| {
            tell(&mut server.connection().unwrap(), "FLUSHALL");
        });
        let short = Options::new().lease(500 * MS).renewal(false);
        let done = lock.clone().with(short).run_once(HOUR, LONG, |lease| {
            assert!(comes_true(|| !lease.is_held()));
            Ok::<_, ()>(())
        });
        assert_eq!(outcome(&done), "run, lost");
        assert!(!other.exists::<_, bool>(MARK).unwrap());
        assert_eq!(once(&lock, HOUR), "run");
    });
}

/// Runs concurrently: each mostly waits.
#[test]
fn how_long_a_run_may_take() {
    let cases: [fn(); 3] = [
        a_run_longer_than_the_lease_is_marked_while_it_is_renewed,
        without_an_answer_until_the_end_of_the_lease_the_mark_is_unknown_and_the_lock_given_back,
        a_server_that_is_gone_at_the_end_keeps_nobody_longer_than_the_lease,
    ];
    at_once(cases, |case| case());
}

fn a_run_longer_than_the_lease_is_marked_while_it_is_renewed() {
    let (_server, lock, _conn) = start();
    let lock = lock.with(crate::options().lease(3_600 * MS));
    let done = lock.run_once(HOUR, LONG, |_| {
        thread::sleep(4_000 * MS);
        Ok::<_, ()>(())
    });
    assert_eq!(outcome(&done), "run");
    assert_eq!(once(&lock, HOUR), "has been run");
}

#[test]
fn the_period_starts_at_the_end_of_the_run_by_the_servers_clock() {
    unless_halted(|| {
        let (_server, lock, mut conn) = start();
        let (seconds, _): (u64, u64) = redis::cmd("TIME").query(&mut conn).unwrap();
        let cases = [
            (-3_500, "has been run"),
            (-3_700, "run"),
            // The clock was set back a little since, or was wrong when the mark was written.
            (3_500, "has been run"),
            (3_700, "run"),
            (1_000_000_000, "run"),
        ];
        for (ahead, expected) in cases {
            let at = seconds.checked_add_signed(ahead).unwrap() * 1_000;
            let () = conn.hset(MARK, "at", at).unwrap();
            assert_eq!(once(&lock, HOUR), expected, "{ahead}");
        }
        let () = conn.hset(MARK, "at", (seconds + 1_000) * 1_000).unwrap();
        let ahead = lock.last_run().unwrap().unwrap();
        assert!(ahead.ago().is_zero() && ahead.at() > SystemTime::now());
    });
}

#[test]
fn it_does_not_run_a_fraction_of_a_millisecond_too_early() {
    let (_server, lock, _) = start();
    let period = 3 * MS;
    let (mut ended, mut runs) = (None::<Instant>, 0);
    while runs < 200 {
        let done = lock.run_once(period, LONG, |_| {
            let since = ended.map(|ended| ended.elapsed());
            assert!(since.is_none_or(|since| since >= period), "{since:?}");
            ended = Some(Instant::now());
            Ok::<_, ()>(())
        });
        runs += u32::from(outcome(&done) == "run");
    }
}

#[test]
fn one_of_many_runs_it_and_the_others_learn_of_it() {
    let cases = [
        crate::options(),
        Options::new().hand_over(100, LONG),
        Options::new().hand_over(100, LONG).fencing(false),
    ];
    at_once(cases, |options| {
        let (server, _, mut conn) = start();
        // So there are fencing tokens for hand-overs.
        let () = conn.hset("{lock:a}:lease", "fence", 1).unwrap();
        let hosts = [(); 3].map(|()| crate::connect(&server.url()).with(options.clone()));
        let (ran, found) = (AtomicU32::new(0), AtomicU32::new(0));
        // A holder without a mark does not hand over to a thread that would then skip the check.
        let first = hosts[0].lock("a").acquire(LONG).unwrap();
        thread::scope(|scope| {
            for host in &hosts {
                for _ in 0..4 {
                    scope.spawn(|| {
                        let done = host.lock("a").run_once(HOUR, LONG, |_| {
                            thread::sleep(50 * MS);
                            Ok::<_, ()>(ran.fetch_add(1, Ordering::SeqCst))
                        });
                        match outcome(&done) {
                            "has been run" => drop(found.fetch_add(1, Ordering::SeqCst)),
                            other => assert_eq!(other, "run"),
                        }
                    });
                }
            }
            let all_wait = || {
                hosts
                    .iter()
                    .all(|host| host.lock("a").inspect().unwrap().waiting_here() == 4)
            };
            assert!(comes_true(all_wait));
            first.release().unwrap();
        });
        assert_eq!((ran.into_inner(), found.into_inner()), (1, 11));
    });
}

#[test]
fn without_a_wait_a_running_job_is_reported_as_contended() {
    unless_halted(|| {
        let (server, lock, _conn) = start();
        let other = crate::connect(&server.url()).lock("a");
        let done = lock.run_once(HOUR, LONG, |_| {
            let contended = [Duration::ZERO, 50 * MS]
                .map(|wait| outcome(&other.run_once(HOUR, wait, |_| Ok::<_, ()>(()))));
            assert_eq!(contended, ["contended"; 2]);
            Ok::<_, ()>(())
        });
        assert_eq!(outcome(&done), "run");
    });
}

/// With a time-out short enough for a test.
fn quick(url: &str) -> Locks {
    let pool = Pool::builder().io_timeout(400 * MS);
    crate::connect_with(url, pool)
}

#[test]
fn a_mark_without_an_answer_is_written_once_and_recognised() {
    let cases = [
        ("swallow", "run"),
        ("cut before", "run"),
        ("cut after", "run"),
        ("cut twice", "run"),
        ("LOADING not yet", "run"),
        ("OOM no", "run"),
        ("NOPERM no", "run, not marked"),
    ];
    at_once(cases, |(case, expected)| {
        let (server, _, mut conn) = start();
        let proxy = Proxy::in_front_of(&server).unwrap();
        let lock = quick(&proxy.url()).lock("a");
        // From now on all scripts are cached, so the mark is written by an `EVALSHA`.
        assert_eq!(once(&lock, HOUR), "run");
        let () = conn.del(MARK).unwrap();
        let times = Cell::new(0);
        let done = lock.run_once(HOUR, LONG, |_| {
            times.set(times.get() + 1);
            let next = proxy.at("EVALSHA").about(MARK);
            match case {
                "swallow" => next.swallow(),
                "cut before" => next.cut_before(),
                "cut after" => next.cut_after(),
                "cut twice" => {
                    next.cut_after();
                    proxy.at("EVALSHA").about(MARK).nth(2).cut_after();
                }
                refusal => next.refuse(refusal),
            }
            Ok::<_, ()>(())
        });
        assert!(proxy.happened(), "{case}");
        assert_eq!((outcome(&done), times.get()), (expected, 1), "{case}");
        assert!(comes_true(|| is_free(&mut conn)), "{case}");
        let is_marked: bool = conn.exists(MARK).unwrap();
        assert_eq!(is_marked, expected == "run", "{case}");
    });
}

fn without_an_answer_until_the_end_of_the_lease_the_mark_is_unknown_and_the_lock_given_back() {
    let (server, _, mut conn) = start();
    let proxy = Proxy::in_front_of(&server).unwrap();
    let options = crate::options().lease(3_000 * MS);
    let lock = quick(&proxy.url()).lock("a").with(options);
    let done = lock.run_once(HOUR, LONG, |_| {
        for n in 1..40 {
            proxy.at("EVALSHA").nth(n).swallow();
        }
        Ok::<_, ()>(())
    });
    assert_eq!(outcome(&done), "run, unknown");
    assert!(comes_true(|| is_free(&mut conn)));
}

fn a_server_that_is_gone_at_the_end_keeps_nobody_longer_than_the_lease() {
    let (server, lock, _) = start();
    let server = std::sync::Mutex::new(server);
    let lock = lock.with(crate::options().lease(3_000 * MS));
    let mut ended = Instant::now();
    let done = lock.run_once(HOUR, LONG, |_| {
        server.lock().unwrap().kill().unwrap();
        ended = Instant::now();
        Ok::<_, ()>(())
    });
    let waited = ended.elapsed();
    assert!(
        ["run, unknown", "run, not marked"].contains(&outcome(&done)),
        "{done:?}"
    );
    assert!(waited < 3_000 * MS + SLACK, "{waited:?}");
}

#[test]
fn invalid_arguments_of_run_once_are_refused_before_anything_is_sent() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let proxy = Proxy::in_front_of(&server).unwrap();
        let locks = Locks::connect(&proxy.url()).unwrap();
        let (refused, traffic) = proxy.traffic_of(|| {
            let mut refused: Vec<_> = [Duration::ZERO, Duration::MAX, 31 * DAY + MS]
                .map(|period| once(&locks.lock("a"), period))
                .into();
            refused.extend(every_kind(&locks)[1..5].iter().map(|lock| once(lock, HOUR)));
            refused.extend(["", "a:lease:ran"].map(|name| once(&locks.lock(name), HOUR)));
            refused
        });
        assert_eq!(refused, ["invalid"; 9]);
        assert_eq!(traffic.commands, [""; 0]);
        assert_eq!(
            once(&locks.lock("a"), Duration::from_nanos(1_000_001)),
            "run"
        );
        assert_eq!(once(&locks.lock("b"), 31 * DAY), "run");
    });
}

#[test]
fn a_key_that_is_not_a_mark_is_an_error_and_unchanged() {
    unless_halted(|| {
        let (server, lock, mut conn) = start();
        let harms: [fn(&mut Connection); 3] = [
            |conn| conn.rpush(MARK, 1).unwrap(),
            |conn| conn.hset(MARK, "at", "noon").unwrap(),
            |conn| conn.hset(MARK, "by", "nobody").unwrap(),
        ];
        for harm in harms {
            harm(&mut conn);
            let before: Vec<u8> = redis::cmd("DUMP").arg(MARK).query(&mut conn).unwrap();
            assert_eq!(once(&lock, HOUR), "wrong kind");
            let after: Vec<u8> = redis::cmd("DUMP").arg(MARK).query(&mut conn).unwrap();
            assert!(before == after && is_free(&mut conn));
            assert_names_the_mark(&lock.run_once(HOUR, LONG, |_| Ok::<_, ()>(())).unwrap_err());
            assert_names_the_mark(&lock.last_run().unwrap_err());
            let () = conn.del(MARK).unwrap();
            // During the work.
            let done = lock.run_once(HOUR, LONG, |_| {
                harm(&mut server.connection().unwrap());
                Ok::<_, ()>(())
            });
            assert!(is_free(&mut conn));
            let Ok(Once::Ran(ran)) = done else {
                panic!("{done:?}");
            };
            assert_names_the_mark(&ran.released.unwrap_err());
            let after: Vec<u8> = redis::cmd("DUMP").arg(MARK).query(&mut conn).unwrap();
            assert_eq!(before, after);
            let () = conn.del(MARK).unwrap();
        }
    });
}

/// The error names the mark's key and no other.
fn assert_names_the_mark(error: &Error) {
    let text = error.to_string();
    assert!(matches!(error, Error::WrongKind { .. }), "{error:?}");
    let (before, after) = text.split_once(", at ").unwrap();
    assert!(before.starts_with("Lock::"), "{text}");
    assert_eq!(after, format!("`{MARK}`"), "{text}");
}

#[test]
fn a_mark_is_written_whole_or_not_at_all() {
    let commands = [
        "get", "time", "hmget", "exists", "pttl", "pexpire", "hset", "del",
    ];
    at_once(commands, |command| {
        for marked_before in [false, true] {
            let server = Server::start().unwrap();
            let mut conn = server.connection().unwrap();
            let allow = |rules: &[&str]| {
                let mut conn = server.connection().unwrap();
                let mut allow = redis::cmd("ACL");
                allow.arg(&["SETUSER", "app"]).arg(rules);
                allow.exec(&mut conn).unwrap();
            };
            allow(&["reset", "on", ">secret", "~*", "&*", "+@all"]);
            let url = format!("redis://app:secret@127.0.0.1:{}/", server.port());
            let lock = crate::connect(&url).lock("a");
            let mut period = 20_000 * MS;
            if marked_before {
                assert_eq!(once(&lock, period), "run");
                thread::sleep(20 * MS);
                period = 10 * MS;
            }
            let fields = |conn: &mut Connection| {
                let fields: BTreeMap<String, String> = conn.hgetall(MARK).unwrap();
                fields
            };
            let before = fields(&mut conn);
            let done = lock.run_once(period, LONG, |_| {
                allow(&[&format!("-{command}")]);
                Ok::<_, ()>(())
            });
            let (is, after) = (outcome(&done), fields(&mut conn));
            let what = format!("without {command}, {marked_before}: {done:?}, {after:?}");
            match is {
                "run" => assert!(after != before && after.len() == 3, "{what}"),
                "run, not marked" => assert_eq!(after, before, "{what}"),
                _ => panic!("{what}"),
            }
            let left: i64 = conn.pttl(MARK).unwrap();
            assert!(left > 20_000 || after.is_empty(), "{left} {what}");
            assert!(is != "run" || is_free(&mut conn), "{what}");
        }
    });
}

#[test]
fn a_run_whose_server_comes_back_before_the_lease_ends_is_marked() {
    unless_halted(|| {
        let saved = ["--appendonly", "yes", "--appendfsync", "always"];
        let server = std::sync::Mutex::new(Server::start_with(&saved).unwrap());
        let url = server.lock().unwrap().url();
        let pool = Pool::builder().get_timeout(200 * MS).connect(&url).unwrap();
        let options = crate::options().lease(2 * LONG);
        let lock = Locks::new(&pool).unwrap().lock("a").with(options);
        let done = thread::scope(|scope| {
            lock.run_once(HOUR, LONG, |_| {
                server.lock().unwrap().kill().unwrap();
                scope.spawn(|| {
                    // Longer than the wait for a connection.
                    thread::sleep(1_000 * MS);
                    server.lock().unwrap().restart().unwrap();
                });
                Ok::<_, ()>(())
            })
        });
        assert_eq!(outcome(&done), "run", "{done:?}");
        assert_eq!(once(&lock, HOUR), "has been run");
    });
}

/// The server refuses the second attempt. The first, which got no answer, may have marked the run.
#[test]
fn a_refusal_after_an_unanswered_attempt_is_unknown() {
    at_once(["NOPERM no", "WRONGTYPE no"], |refusal| {
        let (server, _, mut conn) = start();
        let proxy = Proxy::in_front_of(&server).unwrap();
        let lock = quick(&proxy.url()).lock("a");
        assert_eq!(once(&lock, HOUR), "run");
        let () = conn.del(MARK).unwrap();
        let done = lock.run_once(HOUR, LONG, |_| {
            proxy.at("EVALSHA").about(MARK).swallow();
            proxy.at("EVALSHA").about(MARK).nth(2).refuse(refusal);
            Ok::<_, ()>(())
        });
        assert!(proxy.happened());
        assert_eq!(outcome(&done), "run, unknown", "{refusal}");
        // The refusal says more than the lack of an answer.
        let names_it = format!("{done:?}").contains("NoPerm: no");
        assert!(names_it || refusal.starts_with("WRONGTYPE"), "{done:?}");
        assert!(conn.exists::<_, bool>(MARK).unwrap());
    });
}
