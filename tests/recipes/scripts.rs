//! The scripts of every kind: round trips and keys, and a server that forgets them, stops them half
//! way, or is part of a cluster.

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use crate::common::{
    Proxy, SLACK, Server, State,
    clock::millis,
    kinds::{
        BARE, COMPANION, Kind, LEASE, LEVEL, LONGER, MUTEX, PERMIT, READ_WRITE, READER, WRITER,
        kinds,
    },
    monitor::Monitor,
    wait::{at_once, calls, comes_true},
};
use leasehold::{
    Error, Owner, Token,
    book::article::two_key::{self, Keys},
    recipes::reentrant,
};
use redis::{Commands, Connection};

fn put(conn: &mut Connection, command: &[&str]) {
    redis::cmd(command[0])
        .arg(&command[1..])
        .exec(conn)
        .unwrap();
}

#[test]
fn each_call_is_one_round_trip_and_one_more_if_its_script_is_forgotten() {
    let server = Server::start().unwrap();
    let proxy = Proxy::in_front_of(&server).unwrap();
    let mut conn = proxy.connection().unwrap();
    let token = Token::random();
    for kind in kinds() {
        for known in [false, true] {
            assert!(kind.use_once(&mut conn));
            for (_, call) in kind.others() {
                assert!(!call(&mut conn, "a", &token).unwrap());
            }
            let mut sends_only = |what: &str, call: &dyn Fn(&mut Connection) -> bool| {
                if !known {
                    put(&mut conn, &["SCRIPT", "FLUSH"]);
                }
                let (answer, traffic) = proxy.traffic_of(|| call(&mut conn));
                assert!(answer, "{what}");
                let sent: &[&str] = match known {
                    _ if kind.is_bare() && what == "acquire" => &["SET"],
                    true => &["EVALSHA"],
                    false => &["EVALSHA", "EVAL"],
                };
                assert_eq!(traffic.commands, sent, "{what} of a {}", kind.name);
                assert_eq!(traffic.round_trips, sent.len(), "{what}");
            };
            for wait in [None, Some(LEASE)] {
                sends_only("acquire", &|conn| {
                    kind.take(wait, conn, "a", &token).unwrap()
                });
                for (what, call) in kind.others().into_iter().rev() {
                    sends_only(&what, &|conn| call(conn, "a", &token).unwrap());
                }
                // A token is for one level.
                put(&mut server.connection().unwrap(), &["FLUSHALL"]);
            }
        }
    }
    let owner = Owner::current_thread();
    let (count, traffic) = proxy.traffic_of(|| reentrant::holds(&mut conn, "a", &owner));
    assert_eq!(
        (count.unwrap(), traffic.commands),
        (0, vec!["HMGET".to_owned()])
    );
}

#[test]
fn a_hold_excludes_until_its_release_and_is_never_regained() {
    let server = Server::start().unwrap();
    let mut conn = server.connection().unwrap();
    for kind in kinds() {
        let (what, rival, token) = (kind.name, kind.rival(), Token::random());
        for wait in [None, Some(Duration::ZERO)] {
            assert!(kind.take(wait, &mut conn, "a", &token).unwrap(), "{what}");
            let theirs = Token::random();
            let refused = rival.take(wait, &mut conn, "a", &theirs);
            assert!(!refused.unwrap(), "{what}");
            for (name, call) in kind.others().into_iter().rev() {
                assert!(call(&mut conn, "a", &token).unwrap(), "{name}");
            }
            for (name, call) in kind.others() {
                assert!(!call(&mut conn, "a", &token).unwrap(), "{name}");
                assert!(!conn.exists::<_, bool>(kind.key).unwrap(), "{name}");
            }
            assert!(rival.use_once(&mut conn), "{what}");
            // A released level is not granted again.
            if kind.name == "level" {
                break;
            }
        }
    }
}

#[test]
fn a_wait_ends_with_the_others_release_or_at_its_limit() {
    let wait = Duration::from_millis(300);
    at_once(kinds(), |kind| {
        let server = Server::start().unwrap();
        let mut conn = server.connection().unwrap();
        let (what, rival) = (kind.name, kind.rival());
        let [ours, theirs] = [(); 2].map(|()| Token::random());
        let Some(acquire) = kind.acquire else {
            return;
        };
        assert!(rival.try_acquire(&mut conn, "a", &theirs).unwrap());
        let asked = Instant::now();
        assert!(!acquire(&mut conn, "a", &ours, wait).unwrap(), "{what}");
        let took = asked.elapsed();
        assert!(took >= wait && took < wait + SLACK, "{what}: {took:?}");
        let mut waiting = server.connection().unwrap();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| acquire(&mut waiting, "a", &ours, LEASE));
            let seen = calls(&mut conn, "evalsha").unwrap();
            let asks = || calls(&mut conn, "evalsha").unwrap() > seen + 3;
            assert!(comes_true(asks), "{what}");
            assert!((rival.release)(&mut conn, "a", &theirs).unwrap(), "{what}");
            let released = Instant::now();
            assert!(waiter.join().unwrap().unwrap(), "{what}");
            assert!(
                released.elapsed() < Duration::from_millis(250) + SLACK,
                "{what}"
            );
        });
    });
}

#[test]
fn a_refused_attempt_writes_nothing_and_reads_only_the_lock() {
    let server = Server::start().unwrap();
    let mut conn = server.connection().unwrap();
    for kind in kinds() {
        put(&mut conn, &["FLUSHALL"]);
        assert!(
            kind.rival()
                .try_acquire(&mut conn, "a", &Token::random())
                .unwrap()
        );
        let before = State::of(&mut conn).unwrap();
        let mut monitor = Monitor::start(&server).unwrap();
        let token = Token::random();
        for wait in [None, Some(Duration::ZERO)] {
            assert!(
                !kind.take(wait, &mut conn, "a", &token).unwrap(),
                "{}",
                kind.name
            );
        }
        let commands = monitor.commands().unwrap();
        for (_, call) in kind.others() {
            assert!(!call(&mut conn, "a", &token).unwrap(), "{}", kind.name);
        }
        assert_eq!(State::of(&mut conn).unwrap(), before, "{}", kind.name);
        let is_wrapper = |command: &str| ["EVAL", "EVALSHA", "TIME"].contains(&command);
        let own = commands
            .iter()
            .map(|command| command.split(' ').collect::<Vec<_>>());
        let own: Vec<_> = own.filter(|words| !is_wrapper(words[0])).collect();
        // A permit's mark is in the companion.
        let beside = if kind.name == "permit" {
            COMPANION
        } else {
            kind.key
        };
        let keys = [kind.key, kind.rival().key, beside];
        assert!(
            !own.is_empty() && own.iter().all(|words| keys.contains(&words[1])),
            "{own:?}"
        );
    }
}

/// The data before the call: none, or expired holders.
const BEFORE: [&[&[&str]]; 2] = [
    &[],
    &[
        &["HSET", "lock:a", "kind", "rw", "r:dead", "1", "i:dead", "1"],
        &["PEXPIRE", "lock:a", "60000"],
        &["HSET", "a", "read", "1", "read:dead", "1", "write", "1"],
        &["PEXPIRE", "a", "60000"],
    ],
];

/// Each kind, with the data before its call.
fn cases() -> impl Iterator<Item = (Kind, &'static [&'static [&'static str]])> {
    let cases = kinds()
        .into_iter()
        .flat_map(|kind| BEFORE.map(|before| (kind, before)));
    cases.filter(|(kind, before)| before.is_empty() || kind.is_read_write())
}

/// The commands that acquires and releases of all kinds send, as the server counts them.
fn commands_of_all(conn: &mut Connection) -> Vec<String> {
    put(conn, &["CONFIG", "RESETSTAT"]);
    for (kind, before) in cases() {
        put(conn, &["FLUSHALL"]);
        for command in before {
            put(conn, command);
        }
        let token = Token::random();
        for _ in 0..2 {
            let _ = kind.try_acquire(conn, "a", &token).unwrap();
        }
        assert!((kind.release)(conn, "a", &token).unwrap());
    }
    let stats: String = redis::cmd("INFO").arg("commandstats").query(conn).unwrap();
    let names = stats
        .lines()
        .filter_map(|line| Some(line.strip_prefix("cmdstat_")?.split_once(':')?.0));
    // A subcommand cannot be forbidden alone, and none of them is sent by a script.
    let names = names.filter(|name| !name.contains('|'));
    names.map(str::to_owned).collect()
}

/// Even if a script is stopped half-way: a refused lock is not held, every key expires, and the
/// remains admit no second attempt while the server is like this.
fn assert_true_to_the_state(conn: &mut Connection, spoil: &[&str], repair: &[&str]) {
    for (kind, before) in cases() {
        let [token, second] = [(); 2].map(|()| Token::random());
        let what = format!("{}, {spoil:?}, {before:?}", kind.name);
        put(conn, &["FLUSHALL"]);
        for command in before {
            put(conn, command);
        }
        put(conn, spoil);
        let answer = kind.try_acquire(conn, "a", &token);
        let again = answer
            .is_err()
            .then(|| kind.try_acquire(conn, "a", &second));
        put(conn, repair);
        assert!(
            matches!(answer, Ok(true) | Err(Error::Redis { .. })),
            "{what}: {answer:?}"
        );
        assert!(
            matches!(again, None | Some(Err(Error::Redis { .. }))),
            "{what}: {again:?}"
        );
        let mut keys: Vec<String> = conn.keys("*").unwrap();
        keys.retain(|key| !key.ends_with(":lease"));
        for key in keys {
            assert!(conn.pttl::<_, i64>(&key).unwrap() > 0, "{what}: {key}");
        }
        let was_held = (kind.release)(conn, "a", &token).unwrap();
        assert_eq!(was_held, answer.is_ok(), "{what}");
        assert!(kind.rival().use_once(conn), "{what}");
    }
}

#[test]
fn a_server_out_of_memory() {
    let server = Server::start().unwrap();
    let mut conn = server.connection().unwrap();
    let limit = |bytes| ["CONFIG", "SET", "maxmemory", bytes];
    assert_true_to_the_state(&mut conn, &limit("1"), &limit("0"));
    for kind in kinds() {
        put(&mut conn, &["FLUSHALL"]);
        let (what, token) = (kind.name, Token::random());
        assert!(kind.try_acquire(&mut conn, "a", &token).unwrap(), "{what}");
        put(&mut conn, &limit("1"));
        assert!((kind.release)(&mut conn, "a", &token).unwrap(), "{what}");
        put(&mut conn, &limit("0"));
    }
    put(&mut conn, &limit("1"));
    for kind in [MUTEX, BARE, READ_WRITE[1][1]] {
        let refused = kind.try_acquire(&mut conn, "b", &Token::random());
        assert!(matches!(refused, Err(Error::Redis { .. })), "{refused:?}");
    }
}

#[test]
fn a_forbidden_command_leaves_no_lock() {
    let server = Server::start().unwrap();
    let mut conn = server.connection().unwrap();
    let allow = ["ACL", "SETUSER", "default", "+@all"];
    let commands = commands_of_all(&mut conn);
    let known = ["exists", "hgetall", "hincrby", "pexpireat", "set", "zadd"];
    assert!(
        known
            .iter()
            .all(|it| commands.iter().any(|sent| sent == it))
    );
    for command in commands {
        let forbidden = format!("-{command}");
        let forbid = ["ACL", "SETUSER", "default", "+@all", &forbidden];
        assert_true_to_the_state(&mut conn, &forbid, &allow);
    }
}

/// A connection with tracking is notified when a lock that it acquired, renewed or was refused
/// ends: the last command of each script is a read. A mutex and a permit are acquired without one.
#[test]
fn the_server_tells_of_the_end_of_what_was_acquired_renewed_or_refused() {
    let server = Server::start().unwrap();
    let [mut conn, mut other, mut listener] = [(); 3].map(|()| server.connection().unwrap());
    listener
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    let listening: i64 = redis::cmd("CLIENT").arg("ID").query(&mut listener).unwrap();
    let mut pushes = listener.as_pubsub();
    pushes.subscribe("__redis__:invalidate").unwrap();
    let tracking = listening.to_string();
    put(
        &mut conn,
        &["CLIENT", "TRACKING", "ON", "REDIRECT", &tracking, "NOLOOP"],
    );
    let editions = [READ_WRITE[1], READ_WRITE[2]].concat();
    for kind in [MUTEX, LEVEL, PERMIT, READER, WRITER]
        .into_iter()
        .chain(editions)
    {
        let [token, inner, stranger] = [(); 3].map(|()| Token::random());
        let mut told = |what: &str| {
            put(&mut other, &["DEL", kind.key]);
            let mut next = || {
                let told = pushes.get_message();
                told.unwrap_or_else(|_| panic!("{}: {what}", kind.name))
                    .get_payload()
                    .unwrap()
            };
            let mut keys: Vec<String> = next();
            while keys[0].ends_with(":lease") {
                keys = next();
            }
            assert_eq!(keys, [kind.key], "{}: {what}", kind.name);
        };
        let another = &mut server.connection().unwrap();
        if !["mutex", "permit"].contains(&kind.name) {
            assert!(kind.try_acquire(&mut conn, "a", &token).unwrap());
            told("acquired");
        }
        if let Some(renew) = kind.renew {
            assert!(kind.try_acquire(another, "a", &inner).unwrap());
            assert!(renew(&mut conn, "a", &inner, LONGER).unwrap());
            told("renewed");
        }
        // The article's readers read the writer's key first.
        if kind.rival().key == kind.key {
            assert!(kind.rival().try_acquire(another, "a", &stranger).unwrap());
            let refused = kind.take(Some(Duration::ZERO), &mut conn, "a", &Token::random());
            assert!(!refused.unwrap());
            told("refused");
        }
    }
}

/// Since Redis 7.2 an expiry counts from the start of the script, but `TIME` in it returns a later
/// time: a key with the expiry of its last hold would expire before the hold.
#[test]
fn the_key_lasts_as_long_as_the_last_hold() {
    let server = Server::start().unwrap();
    let mut conn = server.connection().unwrap();
    let token = Token::random();
    let holds: [(Kind, String); 3] = [
        (READER, format!("r:{token}")),
        (WRITER, format!("w:{token}")),
        (READ_WRITE[1][0], String::new()),
    ];
    for (kind, field) in holds {
        let mut outlives = |what: &str| {
            let end: i64 = if field.is_empty() {
                let list: String = conn.get(kind.key).unwrap();
                let (_, end) = list.trim_end_matches('}').rsplit_once(':').unwrap();
                end.parse().unwrap()
            } else {
                conn.hget(kind.key, &field).unwrap()
            };
            // Time that passes between the two reads makes the expiry look too early, never too
            // late.
            let key = kind.key;
            let seen = comes_true(|| millis(&mut conn) + conn.pttl::<_, i64>(key).unwrap() > end);
            assert!(seen, "{}: {what}", kind.name);
        };
        let mut other = server.connection().unwrap();
        assert!(kind.try_acquire(&mut other, "a", &token).unwrap());
        outlives("acquired");
        if let Some(renew) = kind.renew {
            assert!(renew(&mut other, "a", &token, LONGER).unwrap());
            outlives("renewed");
        }
        assert!((kind.release)(&mut other, "a", &token).unwrap());
    }
}

/// A cluster refuses a script whose keys are in different slots, or that touches a key of another
/// slot.
#[test]
fn all_keys_are_in_one_slot() {
    let server = Server::start_with(&["--cluster-enabled", "yes"]).unwrap();
    let mut conn = server.connection().unwrap();
    let slots: Vec<u16> = (0..16_384).collect();
    redis::cmd("CLUSTER")
        .arg("ADDSLOTS")
        .arg(slots)
        .exec(&mut conn)
        .unwrap();
    assert!(comes_true(|| conn.exists::<_, bool>("a").is_ok()));
    for kind in kinds() {
        for name in ["a", "report.4", "名前", "{shop}:report", "a{b}c"] {
            // The article's editions are given keys, with tags of the caller's.
            if kind.name.contains("two_key") && name.contains('{') {
                continue;
            }
            let token = Token::random();
            assert!(kind.try_acquire(&mut conn, name, &token).unwrap());
            for (what, call) in kind.others().into_iter().rev() {
                assert!(call(&mut conn, name, &token).unwrap(), "{what}");
            }
        }
    }
    let (apart, token) = (Keys::new("readKey", "writeKey").unwrap(), Token::random());
    let refused = two_key::acquire_read(&mut conn, &apart, &token, Duration::ZERO, LEASE);
    let says = format!("{:#}", anyhow::Error::from(refused.unwrap_err()));
    assert!(says.to_uppercase().contains("SLOT"), "{says}");
}

/// Every script documents its arguments and its reply, and uses only the keys in `KEYS`.
#[test]
fn every_key_is_declared() {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    let mut scripts = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.extension() {
                None => folders.push(path),
                Some(extension) if extension == "lua" => scripts.push(path),
                Some(_) => {}
            }
        }
    }
    assert!(!scripts.is_empty());
    for path in scripts {
        let (script, name) = (fs::read_to_string(&path).unwrap(), path.display());
        assert!(script.starts_with("-- "), "{name} has no description");
        let code = script
            .lines()
            .filter(|line| !line.trim_start().starts_with("--"));
        for line in code {
            for call in line.replace("pcall(", "call(").split("redis.call(").skip(1) {
                let declared = call
                    .split_once(", ")
                    .is_some_and(|(_, key)| key.starts_with("KEYS["));
                assert!(declared || call.starts_with("'TIME')"), "{name}: {line}");
            }
        }
    }
}
