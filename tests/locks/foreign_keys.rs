//! Keys of other programs: every call on a lock of every kind leaves them as they are.

use std::time::Duration;

use leasehold::{Error, Lease, Lock, Locks, Options, Result};
use redis::{Commands, Connection};

use crate::common::{
    MS, Server, State,
    hold::{every_kind, semaphore},
    wait::unless_halted,
};

const LONG: Duration = Duration::from_secs(20);
/// Members of a large key.
const MANY: u64 = 300_000;

/// Each creates a key of another program. `KEY`, and the server's clock plus a number of
/// milliseconds: `NOW`, `LATER`, `MICROS`.
const FOREIGN: [&str; 17] = [
    // The permits of npm's redis-semaphore, the due times of a queue, and other scores.
    "ZADD KEY NOW theirs",
    "ZADD KEY NOW one LATER two",
    "ZADD KEY LATER one LATER two",
    "ZADD KEY MICROS one",
    "ZADD KEY 0 one",
    "ZADD KEY -1 one 1764240000.5 two",
    "ZADD KEY LATER one inf two",
    "HSET KEY one 1 two 2",
    "HSET KEY word text",
    "HSET KEY none 0",
    // One more than the greatest count.
    "HSET KEY one 9007199254740991",
    "HSET KEY kind semaphore",
    "HSET KEY kind rw other field",
    "HSET KEY kind rw r:one never",
    "RPUSH KEY one",
    "SADD KEY one",
    "XADD KEY * field one",
];

/// A string is a mutex, and these are a reentrant lock of the notes' scripts.
const LOCKS_OF_OTHERS: [(&str, &[&str]); 3] = [
    ("SET KEY theirs", &["mutex", "bare"]),
    ("SET KEY ''", &["mutex", "bare"]),
    ("HSET KEY theirs 2", &["reentrant"]),
];

fn create(conn: &mut Connection, creation: &str, key: &str) {
    let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(conn).unwrap();
    let now = seconds * 1_000 + micros / 1_000;
    let creation = creation
        .replace("NOW", &(now - 5).to_string())
        .replace("LATER", &(now + 60_000).to_string())
        .replace("MICROS", &(now * 1_000).to_string());
    let mut words = creation.split(' ');
    let mut command = redis::cmd(words.next().unwrap());
    for word in words {
        command.arg(word.replace("KEY", key).replace("''", ""));
    }
    command.exec(conn).unwrap();
}

/// Every kind, and a mutex without a fencing token.
fn all_kinds(locks: &Locks) -> Vec<(&'static str, Lock)> {
    let locks = locks.with(Options::new().lease(LONG).renewal(false));
    let names = ["mutex", "reentrant", "read", "write", "semaphore", "bare"];
    let mut all: Vec<_> = names.into_iter().zip(every_kind(&locks)).collect();
    all.push(("permits", semaphore(&locks, "permits", 5)));
    all
}

/// Its first attempt is the plain command, which only finds that the key exists.
#[track_caller]
fn is_refused(lock: &Lock, kind: &str, what: &str) {
    match lock.try_acquire() {
        Ok(None) if kind == "bare" => {}
        tried => is_wrong_kind(tried, what),
    }
}

#[track_caller]
fn is_wrong_kind<T>(answer: Result<T>, what: &str) {
    let error = answer.err();
    let is_wrong = matches!(error, Some(Error::WrongKind { .. }));
    assert!(is_wrong, "{what}: {error:?}");
}

/// Calls that need no lease.
fn assert_foreign(conn: &mut Connection, locks: &Locks, kind: &str, lock: &Lock, what: &str) {
    let before = State::of(conn).unwrap();
    let what = format!("{kind}, {what}");
    is_refused(lock, kind, &what);
    is_wrong_kind(lock.acquire(LONG), &what);
    let seen = lock.inspect().unwrap();
    assert!(seen.is_foreign() && seen.is_held(), "{what}: {seen:?}");
    is_wrong_kind(lock.force_release(), &what);
    assert_eq!(locks.held("").unwrap().iter().count(), 0, "{what}");
    assert_eq!(State::of(conn).unwrap(), before, "{what}");
}

#[test]
fn a_key_of_another_program_is_the_wrong_kind_and_unchanged() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let mut conn = server.connection().unwrap();
        let locks = crate::connect(&server.url());
        for creation in FOREIGN {
            for (kind, lock) in all_kinds(&locks) {
                create(&mut conn, creation, &format!("lock:{}", lock.name()));
                assert_foreign(&mut conn, &locks, kind, &lock, creation);
                redis::cmd("FLUSHALL").exec(&mut conn).unwrap();
            }
        }
    });
}

/// With the companion of an earlier lock of the name, whatever its kind.
#[test]
fn the_companion_of_an_earlier_lock_makes_no_key_ours() {
    let server = Server::start().unwrap();
    let mut conn = server.connection().unwrap();
    let locks = crate::connect(&server.url());
    for creation in &FOREIGN[..7] {
        let lock = semaphore(&locks, "a", 5);
        let _held = [(); 2].map(|()| lock.acquire(LONG).unwrap());
        let () = conn.del("lock:a").unwrap();
        create(&mut conn, creation, "lock:a");
        assert_foreign(&mut conn, &locks, "semaphore", &lock, creation);
        redis::cmd("FLUSHALL").exec(&mut conn).unwrap();
    }
}

#[test]
fn a_lock_of_another_program_is_held_for_its_kind_and_the_wrong_kind_for_others() {
    let server = Server::start().unwrap();
    let mut conn = server.connection().unwrap();
    let locks = crate::connect(&server.url());
    for (creation, kinds) in LOCKS_OF_OTHERS {
        for (kind, lock) in all_kinds(&locks) {
            create(&mut conn, creation, &format!("lock:{}", lock.name()));
            let before = State::of(&mut conn).unwrap();
            if kinds.contains(&kind) {
                assert!(lock.try_acquire().unwrap().is_none(), "{kind} {creation}");
            } else {
                is_refused(&lock, kind, &format!("{kind}, {creation}"));
            }
            assert!(!lock.inspect().unwrap().is_foreign(), "{kind} {creation}");
            assert_eq!(State::of(&mut conn).unwrap(), before);
            let _ = lock.force_release().unwrap();
            assert_eq!(conn.keys::<_, Vec<String>>("*").unwrap(), [""; 0]);
        }
    }
}

/// A name that is no text keeps others out, so it is shown, and returned when it is removed.
#[test]
fn a_holder_whose_name_is_no_text_is_a_holder() {
    type Create = fn(&mut Connection, &[u8], u64);
    let server = Server::start().unwrap();
    let mut conn = server.connection().unwrap();
    let locks = crate::connect(&server.url());
    let later = 4_000_000_000_000_u64;
    let raw: [&[u8]; 3] = [b"\xff", b"r:\xff", b"w:\xff"];
    let reader: Create = |conn, field, end| {
        let () = conn.hset("lock:a", "kind", "rw").unwrap();
        let () = conn.hset("lock:a", field, end).unwrap();
    };
    let cases: [(Lock, &[u8], Create); 4] = [
        (locks.reentrant("a"), raw[0], |conn, owner, _| {
            let () = conn.hset("lock:a", owner, 2).unwrap();
        }),
        (locks.write("a"), raw[1], reader),
        (locks.read("a"), raw[2], reader),
        (semaphore(&locks, "a", 1), raw[0], |conn, mark, end| {
            let () = conn.zadd("lock:a", "one", end).unwrap();
            let () = conn.hset("{lock:a}:lease", "fence", 0).unwrap();
            let () = conn.hset("{lock:a}:lease", "p:one", mark).unwrap();
        }),
    ];
    for (lock, name, create) in cases {
        create(&mut conn, name, later);
        assert!(lock.try_acquire().unwrap().is_none(), "{lock:?}");
        let seen = lock.inspect().unwrap();
        assert!(!seen.is_foreign(), "{seen:?}");
        assert_eq!(seen.holders().len(), 1, "{seen:?}");
        assert_eq!(locks.held("").unwrap().iter().count(), 1, "{seen:?}");
        assert_eq!(lock.force_release().unwrap().holders().len(), 1);
        assert_eq!(conn.keys::<_, Vec<String>>("*").unwrap(), [""; 0]);
    }
}

/// Each call about a lease, with its name.
type Call = (&'static str, fn(Lease) -> Result<()>);

const CALLS: [Call; 6] = [
    ("renew", |lease| lease.renew(2 * LONG)),
    ("verify", |lease| lease.verify()),
    ("commit", |lease| {
        lease.commit(|pipe| _ = pipe.set("written", 1))
    }),
    ("transaction", |lease| {
        lease.transaction(&[], |_, pipe| {
            pipe.set("written", 1);
            Ok(())
        })
    }),
    ("commit_and_release", |lease| {
        lease.commit_and_release(|pipe| _ = pipe.set("written", 1))
    }),
    ("release", Lease::release),
];

/// The key's value and end. The proof of a commit is a key of its own.
fn dump(conn: &mut Connection, key: &str) -> (Vec<u8>, i64) {
    let value = redis::cmd("DUMP").arg(key).query(conn).unwrap();
    (value, conn.pttl(key).unwrap())
}

#[test]
fn no_call_about_a_lease_changes_a_key_that_another_program_has_written_since() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let mut conn = server.connection().unwrap();
        // Otherwise a notification may end the lease before the call.
        let acl = ["SETUSER", "default", "-client", "-subscribe"];
        redis::cmd("ACL").arg(&acl).exec(&mut conn).unwrap();
        let locks = crate::connect(&server.url());
        for creation in FOREIGN {
            for (kind, lock) in all_kinds(&locks) {
                for (name, call) in CALLS {
                    let what = format!("{name} of {kind}, {creation}");
                    let lease = lock.acquire(LONG).unwrap();
                    let key = format!("lock:{}", lock.name());
                    let () = conn.del(&key).unwrap();
                    create(&mut conn, creation, &key);
                    let before = dump(&mut conn, &key);
                    let error = call(lease).unwrap_err();
                    let is_told = matches!(error, Error::WrongKind { .. } | Error::Lost { .. });
                    assert!(is_told, "{what}: {error:?}");
                    assert_eq!(dump(&mut conn, &key), before, "{what}");
                    assert!(!conn.exists::<_, bool>("written").unwrap(), "{what}");
                    redis::cmd("FLUSHALL").exec(&mut conn).unwrap();
                }
            }
        }
    });
}

/// Milliseconds of the server in scripts for one call, the least of three: a busy machine takes its
/// processor away.
fn cost(conn: &mut Connection, call: impl Fn()) -> u64 {
    let costs = [(); 3].map(|()| {
        redis::cmd("CONFIG").arg("RESETSTAT").exec(conn).unwrap();
        call();
        let stats: String = redis::cmd("INFO").arg("commandstats").query(conn).unwrap();
        let scripts = stats
            .lines()
            .filter(|line| line.starts_with("cmdstat_eval"));
        let micros = scripts.filter_map(|line| line.split(',').nth(1)?.strip_prefix("usec="));
        micros.map(|micros| micros.parse::<u64>().unwrap()).sum()
    });
    costs.into_iter().min().unwrap_or(0) / 1_000
}

/// To read all of either takes the server more than 100 ms.
#[test]
fn no_call_reads_all_of_another_programs_key() {
    let server = Server::start().unwrap();
    let mut conn = server.connection().unwrap();
    let locks = crate::connect(&server.url());
    let fill = "local later = redis.call('TIME')[1] * 1000 + 1000000
        for n = 1, ARGV[1] do
            redis.call('ZADD', KEYS[1], later + n, n)
            redis.call('HSET', KEYS[2], n, n)
        end";
    let fill = redis::Script::new(fill);
    let () = (fill.key("sorted").key("hash").arg(MANY).invoke(&mut conn)).unwrap();
    for large in ["sorted", "hash"] {
        for (kind, lock) in all_kinds(&locks) {
            let key = format!("lock:{}", lock.name());
            let mut admin = server.connection().unwrap();
            let mut bounded = |name: &str, call: &dyn Fn()| {
                let took = cost(&mut admin, call);
                assert!(took < 20, "{name} of {kind}, {large}: {took} ms");
            };
            let () = conn.rename(large, &key).unwrap();
            bounded("acquire", &|| assert!(lock.acquire(MS).is_err()));
            bounded("inspect", &|| assert!(lock.inspect().unwrap().is_foreign()));
            bounded("force_release", &|| assert!(lock.force_release().is_err()));
            bounded("held", &|| {
                assert_eq!(locks.held("").unwrap().iter().count(), 0);
            });
            let () = conn.rename(&key, large).unwrap();
            for (name, call) in CALLS {
                bounded(name, &|| {
                    let mut conn = server.connection().unwrap();
                    let lease = lock.acquire(LONG).unwrap();
                    let () = conn.rename(large, &key).unwrap();
                    assert!(call(lease).is_err());
                    let () = conn.rename(&key, large).unwrap();
                });
            }
        }
    }
    assert_eq!(conn.zcard::<_, u64>("sorted").unwrap(), MANY);
    assert_eq!(conn.hlen::<_, u64>("hash").unwrap(), MANY);
}

/// Also one that stands in the companion's place.
#[test]
fn no_call_reads_all_of_a_foreign_companion() {
    let server = Server::start().unwrap();
    let mut conn = server.connection().unwrap();
    let locks = crate::connect(&server.url());
    let fill = "for n = 1, ARGV[1] do redis.call('HSET', KEYS[1], n, n) end";
    let fill = redis::Script::new(fill);
    let () = fill.key("hash").arg(MANY).invoke(&mut conn).unwrap();
    for (kind, lock) in all_kinds(&locks) {
        if ["read", "bare"].contains(&kind) {
            continue; // without a companion
        }
        let companion = format!("{{lock:{}}}:lease", lock.name());
        let () = conn.rename("hash", &companion).unwrap();
        let mut admin = server.connection().unwrap();
        let took = cost(&mut admin, || is_wrong_kind(lock.try_acquire(), kind));
        assert!(took < 20, "{kind}: {took} ms");
        let () = conn.rename(&companion, "hash").unwrap();
    }
    assert_eq!(conn.hlen::<_, u64>("hash").unwrap(), MANY);
}
