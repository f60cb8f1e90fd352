//! The caller's transactions: the data that a decision was based on is unchanged when it is
//! written.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread,
};

use leasehold::{
    Error, Locks, Options, Pool, RenewalState, Result, WatchedConnection,
    acquire_lock_with_timeout, release_lock, transaction_with_lock, with_lock,
};
use redis::{Client, Commands, Connection, ConnectionLike, Pipeline};

use crate::common::{
    LONG, MS, Proxy, Server,
    hold::{comes_true, every_kind},
    wait::{at_once, unless_halted},
};

struct Bench {
    server: Server,
    conn: Connection,
    locks: Locks,
    pool: Pool,
}

fn bench() -> Bench {
    let server = Server::start().unwrap();
    let pool = Pool::builder().max_size(1).connect(&server.url()).unwrap();
    Bench {
        conn: server.connection().unwrap(),
        locks: Locks::new(&pool).unwrap().with(crate::options()),
        pool,
        server,
    }
}

fn take_five(conn: &mut WatchedConnection<'_>, pipe: &mut Pipeline) -> Result<bool> {
    let funds: i64 = conn.get("wallet")?;
    if funds >= 5 {
        pipe.decr("wallet", 5).incr("spent", 5);
    }
    Ok(funds >= 5)
}

/// The pool's only connection watches nothing: a write to these keys aborts no transaction on it.
fn assert_nothing_is_watched(pool: &Pool, other: &mut Connection, keys: &[&str]) {
    let mut conn = pool.get().unwrap();
    for key in keys {
        let () = other.set(key, "touched").unwrap();
    }
    let mut transaction = redis::pipe();
    transaction.atomic().set("free", 1).ignore().get("free");
    let answer: Option<(u64,)> = transaction.query(&mut conn).unwrap();
    assert_eq!(answer, Some((1,)));
}

/// Pays while another thread changes the wallet. Returns the result, the final balance and the
/// number of attempts.
fn pays_while_another_changes(times: u32) -> (Result<bool>, i64, u32) {
    let mut bench = bench();
    let proxy = Proxy::in_front_of(&bench.server).unwrap();
    let locks = crate::connect(&proxy.url());
    let lease = locks.lock("a").acquire(LONG).unwrap();
    let () = bench.conn.set("wallet", 12).unwrap();
    let mut other = bench.server.connection().unwrap();
    let changes = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&changes);
    proxy.at("MULTI").run_each_time(move || {
        if counter.fetch_add(1, Ordering::SeqCst) < times {
            let () = other.decr("wallet", 0).unwrap();
        }
        // Leaves time for other tests.
        thread::sleep(10 * MS);
    });
    let mut attempts = 0;
    let paid = lease.transaction(&["wallet"], |conn, pipe| {
        attempts += 1;
        take_five(conn, pipe)
    });
    assert!(lease.is_held());
    assert_eq!(attempts, changes.load(Ordering::SeqCst));
    (paid, bench.conn.get("wallet").unwrap(), attempts)
}

#[test]
fn it_restarts_if_a_key_changed() {
    let (paid, left, attempts) = pays_while_another_changes(1);
    assert!(paid.unwrap());
    assert_eq!((left, attempts), (7, 2));
}

#[test]
#[ignore = "five seconds: cargo test --test locks for_ever -- --ignored"]
fn it_does_not_restart_for_ever() {
    let (paid, left, attempts) = pays_while_another_changes(u32::MAX);
    assert!(matches!(paid, Err(Error::Contended { .. })), "{paid:?}");
    assert!(left == 12 && attempts > 2, "{left}, {attempts}");
}

/// A way for a transaction to end.
type Ending = fn(&mut WatchedConnection<'_>, &mut Pipeline) -> Result<()>;

#[test]
fn no_outcome_leaves_a_watch_or_a_write() {
    let endings: [(&str, Ending); 11] = [
        ("nothing is read or written", |_, _| Ok(())),
        ("only read", |conn, _| {
            let _: i64 = conn.get("wallet")?;
            Ok(())
        }),
        ("an error of its own", |conn, pipe| {
            take_five(conn, pipe)?;
            Err(Error::other(anyhow::anyhow!("the item is sold")))
        }),
        ("a type", |conn, _| {
            let _: i64 = conn.hget("wallet", "field")?;
            Ok(())
        }),
        ("a value", |conn, _| {
            let _: i64 = conn.get("text")?;
            Ok(())
        }),
        ("a panic", |conn, pipe| {
            take_five(conn, pipe)?;
            std::panic::resume_unwind(Box::new("the caller's own"))
        }),
        ("an EXEC on the connection", |conn, pipe| {
            take_five(conn, pipe)?;
            // The same as redis-rs's own transactions.
            let _: Option<()> = pipe.atomic().query(conn).unwrap_or_default();
            Ok(())
        }),
        ("an UNWATCH", |conn, pipe| {
            redis::cmd("unwatch").exec(conn)?;
            take_five(conn, pipe).map(drop)
        }),
        ("an UNWATCH that is ignored", |conn, pipe| {
            let _ = redis::cmd("UNWATCH").exec(conn);
            pipe.decr("wallet", 5);
            Ok(())
        }),
        ("a WATCH in the pipeline", |conn, pipe| {
            take_five(conn, pipe)?;
            pipe.cmd("WATCH").arg("a");
            Ok(())
        }),
        ("a command that nobody knows", |conn, pipe| {
            take_five(conn, pipe)?;
            pipe.cmd("NO.SUCH.COMMAND");
            Ok(())
        }),
    ];
    at_once(endings, |(name, ending)| {
        let mut bench = bench();
        let () = bench
            .conn
            .mset(&[("wallet", "100"), ("text", "none")])
            .unwrap();
        let lease = bench.locks.lock("a").acquire(LONG).unwrap();
        let run = || lease.transaction(&["wallet"], ending);
        let ended = catch_unwind(AssertUnwindSafe(run));
        let Ok(outcome) = ended else {
            assert_eq!(name, "a panic");
            assert_nothing_is_watched(&bench.pool, &mut bench.conn, &["wallet"]);
            return;
        };
        let as_told = match name {
            "nothing is read or written" | "only read" => outcome.is_ok(),
            "an error of its own" => matches!(outcome, Err(Error::Other { .. })),
            "a type" | "a value" => matches!(outcome, Err(Error::WrongKind { .. })),
            "a command that nobody knows" => matches!(outcome, Err(Error::Redis { .. })),
            _ => matches!(outcome, Err(Error::Invalid { .. })),
        };
        assert!(as_told, "{name}: {outcome:?}");
        if let Err(error) = &outcome {
            let text = error.to_string();
            let names_it = text.starts_with("Lease::transaction on `a`: ");
            let is_bare = matches!(error, Error::Invalid { .. } | Error::Other { .. });
            assert!(names_it || is_bare, "{name}: {text}");
            assert_eq!(text.contains("`wallet`"), name == "a type", "{text}");
            assert_eq!(text.contains("`Option`"), name == "a value", "{text}");
        }
        assert_eq!(bench.conn.get::<_, i64>("wallet").unwrap(), 100, "{name}");
        assert!(lease.is_held());
        assert_nothing_is_watched(&bench.pool, &mut bench.conn, &["wallet"]);
    });
}

/// The server refuses to watch a key, but not the proof of the hold, which is watched after it.
#[test]
fn a_key_that_may_not_be_watched_leaves_no_watch_and_no_proof() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let mut conn = server.connection().unwrap();
        let user = "SETUSER me on >pass +@all &* ~lock:* ~{lock:* ~free";
        redis::cmd("ACL")
            .arg(user.split(' ').collect::<Vec<_>>())
            .exec(&mut conn)
            .unwrap();
        let url = server.url().replace("://", "://me:pass@");
        let pool = Pool::builder().max_size(1).connect(&url).unwrap();
        let locks = Locks::new(&pool).unwrap().with(crate::options());
        for lock in every_kind(&locks) {
            let lease = lock.acquire(LONG).unwrap();
            let refused = lease.transaction(&["secret"], |_, _| Ok(()));
            assert!(matches!(refused, Err(Error::Redis { .. })), "{refused:?}");
            let proofs: Vec<String> = conn.keys("{lock:*:proof*").unwrap();
            let keys: Vec<_> = proofs.iter().map(String::as_str).collect();
            assert_nothing_is_watched(&pool, &mut conn, &keys);
            assert_eq!(keys, [""; 0], "{}", lock.name());
            lease.verify().unwrap();
        }
    });
}

#[test]
fn the_books_try_finally_releases_on_a_panic_and_reports_a_loss() {
    unless_halted(|| {
        let mut bench = bench();
        let mut conn = bench.server.connection().unwrap();
        for takes_lock in [true, false] {
            let run = || -> () { std::panic::resume_unwind(Box::new("the caller's own")) };
            let panics = catch_unwind(AssertUnwindSafe(|| {
                if takes_lock {
                    let _ = with_lock(&mut conn, "a", LONG, LONG, |_, _| run());
                } else {
                    let _ = transaction_with_lock(&mut conn, "a", LONG, LONG, &[], |conn, _| {
                        let _: Option<i64> = conn.get("wallet")?;
                        run();
                        Ok(())
                    });
                }
            }));
            assert!(panics.is_err());
            assert!(
                !bench.conn.exists::<_, bool>("lock:a").unwrap(),
                "{takes_lock}"
            );
        }
        let mut other = bench.server.connection().unwrap();
        let ran = with_lock(&mut conn, "a", LONG, LONG, |_, _| {
            let () = other.set("lock:a", "somebody else").unwrap();
            7
        });
        let ran = ran.unwrap().unwrap();
        assert!(matches!(ran.released, Err(Error::Lost { .. })) && ran.value == 7);
        let busy = with_lock(&mut conn, "a", MS, LONG, |_, _| ());
        assert!(busy.unwrap().is_none());
        let busy = transaction_with_lock(&mut conn, "a", MS, LONG, &[], |conn, _| {
            let _: Option<i64> = conn.get("wallet")?;
            Ok(())
        });
        assert!(busy.unwrap().is_none());
    });
}

#[test]
fn a_transaction_waits_for_its_lock_and_then_reads_what_is_there() {
    unless_halted(|| {
        let mut bench = bench();
        let () = bench.conn.set("wallet", 3).unwrap();
        let token = acquire_lock_with_timeout(&mut bench.conn, "a", LONG, LONG).unwrap();
        let mut conn = bench.server.connection().unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                transaction_with_lock(&mut conn, "a", LONG, LONG, &["wallet"], take_five)
            });
            thread::sleep(100 * MS);
            let () = bench.conn.set("wallet", 100).unwrap();
            assert!(release_lock(&mut bench.conn, "a", &token.unwrap()).unwrap());
            assert_eq!(waiting.join().unwrap().unwrap(), Some(true));
        });
        assert!(!bench.conn.exists::<_, bool>("lock:a").unwrap());
        assert_eq!(bench.conn.get::<_, i64>("wallet").unwrap(), 95);
    });
}

/// An error from another lock or server than the transaction's.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Elsewhere {
    Lost,
    Unknown,
    NoConnection,
    ClosedConnection,
    Refusal,
    Own,
}

const ELSEWHERE: [Elsewhere; 6] = [
    Elsewhere::Lost,
    Elsewhere::Unknown,
    Elsewhere::NoConnection,
    Elsewhere::ClosedConnection,
    Elsewhere::Refusal,
    Elsewhere::Own,
];

impl Elsewhere {
    /// Causes it, at a lock `b` or at another server.
    fn meet(self, bench: &Bench) -> Result<()> {
        let proxy = Proxy::in_front_of(&bench.server).unwrap();
        let pool = Pool::builder().io_timeout(300 * MS);
        let locks = Locks::new(&pool.connect(&proxy.url()).unwrap()).unwrap();
        let mut conn = bench.server.connection().unwrap();
        match self {
            Self::Lost => {
                let lease = locks.lock("b").acquire(LONG)?;
                let () = conn.del("lock:b")?;
                assert!(lease.lost().wait_for(LONG));
                lease.check()
            }
            Self::Unknown => {
                let lease = locks.lock("b").acquire(LONG)?;
                proxy.at("EXEC").swallow();
                lease.commit(|pipe| {
                    pipe.set("x", 1);
                })
            }
            Self::NoConnection => {
                let nobody = Client::open("redis://127.0.0.1:1/")?;
                nobody.get_connection()?;
                Ok(())
            }
            Self::ClosedConnection => {
                let mut server = Server::start().unwrap();
                let mut conn = server.connection().unwrap();
                server.kill().unwrap();
                let () = conn.get("x")?;
                Ok(())
            }
            Self::Refusal => Ok(redis::cmd("NO.SUCH.COMMAND").exec(&mut conn)?),
            Self::Own => Err(Error::other(anyhow::anyhow!("the item is sold"))),
        }
    }

    /// True if the closure returned it unchanged.
    fn is_told_by(self, error: &Error) -> bool {
        match error {
            Error::Lost { context, .. } => self == Self::Lost && context.lock == "b",
            Error::Unknown { context, .. } => self == Self::Unknown && context.lock == "b",
            Error::Redis { source, .. } if source.is_io_error() => {
                self == Self::NoConnection || self == Self::ClosedConnection
            }
            Error::Redis { .. } => self == Self::Refusal,
            _ => self == Self::Own && matches!(error, Error::Other { .. }),
        }
    }
}

#[test]
fn a_foreign_error_of_the_closure_ends_the_transaction_and_not_the_lease() {
    at_once(ELSEWHERE, |elsewhere| {
        let mut bench = bench();
        // So there are fencing tokens for hand-overs.
        let () = bench.conn.hset("{lock:a}:lease", "fence", 1).unwrap();
        let locks = bench.locks.with(Options::new().hand_over(10, LONG));
        let lease = locks.lock("a").acquire(LONG).unwrap();
        let (mut attempts, told) = (0, Arc::new(AtomicU32::new(0)));
        let count = Arc::clone(&told);
        let tell = move |_| {
            count.fetch_add(1, Ordering::SeqCst);
        };
        lease.lost().notify(tell).unwrap();
        let ended = lease.transaction(&["wallet"], |conn, pipe| {
            attempts += 1;
            let _: Option<i64> = conn.get("wallet")?;
            pipe.set("wallet", 1);
            elsewhere.meet(&bench)
        });
        let error = ended.unwrap_err();
        assert!(elsewhere.is_told_by(&error), "{elsewhere:?}: {error:?}");
        assert_eq!(attempts, 1, "{elsewhere:?}");
        assert!(lease.is_held() && lease.state() == RenewalState::Held);
        lease.verify().unwrap();
        // None of its writes is pending, so the lock is handed over.
        let fence = lease.fencing_token().unwrap().get();
        thread::scope(|scope| {
            let next = scope.spawn(|| locks.lock("a").acquire(LONG).unwrap().fencing_token());
            let waits = || locks.lock("a").inspect().unwrap().waiting_here() == 1;
            assert!(comes_true(waits));
            lease.release().unwrap();
            let next = next.join().unwrap().unwrap().get();
            assert_eq!(next, fence + 1, "{elsewhere:?}");
        });
        assert_eq!(told.load(Ordering::SeqCst), 0);
    });
}

#[test]
fn a_foreign_error_of_the_closure_leaves_no_lock() {
    at_once(ELSEWHERE, |elsewhere| {
        let mut bench = bench();
        let mut conn = bench.server.connection().unwrap();
        let attempt = |conn: &mut WatchedConnection<'_>, pipe: &mut Pipeline| {
            let _: Option<i64> = conn.get("wallet")?;
            pipe.set("wallet", 1);
            elsewhere.meet(&bench)
        };
        let ended = transaction_with_lock(&mut conn, "a", LONG, 10 * LONG, &["wallet"], attempt);
        let error = ended.unwrap_err();
        assert!(elsewhere.is_told_by(&error), "{elsewhere:?}: {error:?}");
        let left: bool = bench.conn.exists("lock:a").unwrap();
        assert!(!left, "{elsewhere:?}");
        let ran = with_lock(&mut conn, "a", LONG, 10 * LONG, |_, _| {
            elsewhere.meet(&bench)
        });
        let ran = ran.unwrap().unwrap();
        assert!(ran.released.is_ok() && ran.value.is_err());
        let keys: Vec<String> = bench.conn.keys("*").unwrap();
        assert!(!keys.contains(&"lock:a".into()) && !keys.contains(&"wallet".into()));
    });
}

#[test]
fn a_refusal_ignored_by_the_closure_does_not_replace_its_error() {
    unless_halted(|| {
        let mut bench = bench();
        let () = bench.conn.lpush("list", 1).unwrap();
        let lease = bench.locks.lock("a").acquire(LONG).unwrap();
        let nobody = Client::open("redis://127.0.0.1:1/").unwrap();
        let ended = lease.transaction(&[], |conn, _| {
            assert!(conn.get::<_, String>("list").is_err());
            nobody.get_connection()?;
            Ok(())
        });
        let error = ended.unwrap_err();
        assert!(
            matches!(&error, Error::Redis { source, .. } if source.is_connection_refusal()),
            "{error:?}"
        );
        // Even if the refusals of several commands are one error.
        let ended: Result<()> = lease.transaction(&[], |conn, _| {
            let mut reads = redis::pipe();
            reads.get("wallet").get("list").exec(conn)?;
            Ok(())
        });
        let text = ended.unwrap_err().to_string();
        assert!(text.contains("another type at `list`"), "{text}");
    });
}

#[test]
fn raw_bytes_are_not_sent_while_keys_are_watched() {
    unless_halted(|| {
        let two = [redis::cmd("PING"), redis::cmd("PING")];
        let two: Vec<u8> = two
            .iter()
            .flat_map(redis::Cmd::get_packed_command)
            .collect();
        let unwatch: &[u8] = b"UNWATCH\r\n";
        let behind = [&redis::cmd("PING").get_packed_command(), unwatch].concat();
        for packed in [
            unwatch,
            b"\r\nUNWATCH\r\n",
            &behind,
            &two,
            b"*1\r\n$4\r\nPI",
        ] {
            let mut bench = bench();
            let () = bench.conn.set("wallet", 100).unwrap();
            let lease = bench.locks.lock("a").acquire(LONG).unwrap();
            let ended = lease.transaction(&["wallet"], |conn, pipe| {
                take_five(conn, pipe)?;
                let _ = conn.req_packed_command(packed);
                let () = bench.conn.set("wallet", "changed by another")?;
                Ok(())
            });
            let text = String::from_utf8_lossy(packed);
            assert!(
                matches!(ended, Err(Error::Invalid { .. })),
                "{text}: {ended:?}"
            );
            let left: String = bench.conn.get("wallet").unwrap();
            assert_eq!(left, "changed by another", "{text}");
            assert_nothing_is_watched(&bench.pool, &mut bench.conn, &["wallet"]);
        }
    });
}

#[test]
fn a_transaction_left_open_by_a_closure_is_discarded_and_the_lock_released() {
    unless_halted(|| {
        let mut bench = bench();
        let mut conn = bench.server.connection().unwrap();
        for panics in [false, true] {
            let run = |conn: &mut Connection| {
                redis::cmd("MULTI").exec(conn).unwrap();
                let _: String = redis::cmd("SET").arg(&["left", "1"]).query(conn).unwrap();
                if panics {
                    std::panic::resume_unwind(Box::new("the caller's own"));
                }
            };
            let held = || with_lock(&mut conn, "a", LONG, LONG, |conn, _| run(conn));
            if let Ok(ran) = catch_unwind(AssertUnwindSafe(held)) {
                ran.unwrap().unwrap().released.unwrap();
            }
            assert!(!bench.conn.exists::<_, bool>("lock:a").unwrap(), "{panics}");
            let answer: Option<i64> = conn.get("left").unwrap();
            assert_eq!(answer, None, "{panics}");
        }
    });
}

#[test]
fn a_busy_lock_leaves_no_watch_even_after_a_late_answer() {
    unless_halted(|| {
        let mut bench = bench();
        let () = bench.conn.set("lock:a", "somebody else").unwrap();
        let proxy = Proxy::in_front_of(&bench.server).unwrap();
        let mut conn = proxy.connection().unwrap();
        conn.set_read_timeout(Some(500 * MS)).unwrap();
        // `SET`, `WATCH` and the read are sent together, and get no answer in time.
        proxy.at("SET").delay(700 * MS);
        let wait = 3_000 * MS;
        let ended = transaction_with_lock(&mut conn, "a", wait, LONG, &["wallet"], take_five);
        assert!(proxy.happened());
        assert!(matches!(ended, Ok(None)), "{ended:?}");
        let () = bench.conn.mset(&[("wallet", 1), ("lock:a", 2)]).unwrap();
        let mut transaction = redis::pipe();
        transaction.atomic().set("free", 1).ignore().get("free");
        let answer: Option<(u64,)> = transaction.query(&mut conn).unwrap();
        assert_eq!(answer, Some((1,)));
    });
}

/// The pool's connection may be one that an earlier restart of the server has closed.
#[test]
fn a_transaction_goes_on_a_second_connection_but_on_no_third() {
    unless_halted(|| {
        let mut bench = bench();
        let proxy = Proxy::in_front_of(&bench.server).unwrap();
        let lease = crate::connect(&proxy.url()).lock("a").acquire(LONG);
        let lease = lease.unwrap();
        for cuts in [1, 2] {
            (1..=cuts).for_each(|nth| proxy.at("WATCH").nth(nth).cut_before());
            let told = lease.commit(|pipe| _ = pipe.incr("count", 1));
            assert_eq!(told.is_ok(), cuts == 1, "{told:?}");
            assert!(proxy.happened());
        }
        assert_eq!(bench.conn.get("count"), Ok(1));
    });
}
