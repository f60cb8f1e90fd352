//! The commands of `mutex` and `reentrant`, and those in their scripts: round trips, keys, and what
//! a refusal touches.

use std::time::Duration;

use crate::common::{Proxy, Server, State, monitor::Monitor, start};
use leasehold::{
    Owner, Token,
    recipes::{
        mutex::{self, End},
        reentrant,
    },
};
use redis::{Connection, cmd};

const LEASE: Duration = Duration::from_secs(10);
const NAMES: [&str; 3] = ["a", "{shop}:report", "a{b}c"];

/// The commands sent, and a call that sends them.
type Function = (&'static str, fn(&mut Connection, &Who));

/// The caller's identity.
struct Who {
    name: &'static str,
    token: Token,
    owner: Owner,
}

impl Who {
    fn new(name: &'static str, owner: &str) -> Self {
        Self {
            name,
            token: Token::random(),
            owner: Owner::new(owner).unwrap(),
        }
    }

    /// The keys that a call may touch.
    fn keys(&self) -> [String; 2] {
        let lock = format!("lock:{}", self.name);
        let companion = if self.name.contains('{') {
            format!("{lock}:lease")
        } else {
            format!("{{{lock}}}:lease")
        };
        [lock, companion]
    }
}

/// In an order in which each of them succeeds.
const MUTEX: [Function; 5] = [
    ("EVALSHA", |conn, who| {
        mutex::try_acquire(conn, who.name, &who.token, End::After(LEASE)).unwrap();
    }),
    ("SET", |conn, who| {
        mutex::try_acquire_unfenced(conn, who.name, &who.token, LEASE).unwrap();
    }),
    ("EVALSHA", |conn, who| {
        mutex::acquire(
            conn,
            who.name,
            &who.token,
            Duration::ZERO,
            End::After(LEASE),
        )
        .unwrap();
    }),
    ("EVALSHA", |conn, who| {
        mutex::renew(conn, who.name, &who.token, 2 * LEASE).unwrap();
    }),
    ("EVALSHA", |conn, who| {
        mutex::release(conn, who.name, &who.token).unwrap();
    }),
];
const REENTRANT: [Function; 5] = [
    ("EVALSHA", |conn, who| {
        // A token is for one acquisition, and this runs again after the release.
        let token = Token::random();
        reentrant::try_acquire(conn, who.name, &who.owner, &token, LEASE).unwrap();
    }),
    ("EVALSHA", |conn, who| {
        let token = Token::random();
        reentrant::acquire(conn, who.name, &who.owner, &token, Duration::ZERO, LEASE).unwrap();
    }),
    ("EVALSHA", |conn, who| {
        reentrant::renew(conn, who.name, &who.owner, &Token::random(), 2 * LEASE).unwrap();
    }),
    ("HMGET", |conn, who| {
        reentrant::holds(conn, who.name, &who.owner).unwrap();
    }),
    ("EVALSHA", |conn, who| {
        reentrant::release(conn, who.name, &who.owner, &who.token).unwrap();
    }),
];

fn call_all(functions: [Function; 5], conn: &mut Connection, who: &Who) {
    for (_, call) in functions {
        call(conn, who);
    }
}

/// The commands executed inside and outside scripts, each with its key.
fn touched(commands: &[String]) -> Vec<(&str, &str)> {
    let words = commands.iter().map(|command| {
        let mut words = command.split(' ');
        (words.next().unwrap(), words.next().unwrap_or_default())
    });
    words
        .filter(|(command, _)| !["EVALSHA", "EVAL", "TIME"].contains(command))
        .collect()
}

#[test]
fn every_function_is_one_round_trip() {
    for functions in [MUTEX, REENTRANT] {
        let server = Server::start().unwrap();
        let proxy = Proxy::in_front_of(&server).unwrap();
        let mut conn = proxy.connection().unwrap();
        let (ours, theirs) = (Who::new("a", "ours"), Who::new("a", "theirs"));
        call_all(functions, &mut conn, &ours);
        for (command, call) in functions {
            let ((), traffic) = proxy.traffic_of(|| call(&mut conn, &ours));
            assert_eq!(
                (traffic.round_trips, &*traffic.commands),
                (1, &[command.into()][..])
            );
            let ((), traffic) = proxy.traffic_of(|| call(&mut conn, &theirs));
            assert_eq!(
                (traffic.round_trips, &*traffic.commands),
                (1, &[command.into()][..])
            );
        }
    }
}

#[test]
fn a_forgotten_script_costs_one_more_round_trip() {
    let server = Server::start().unwrap();
    let proxy = Proxy::in_front_of(&server).unwrap();
    let mut conn = proxy.connection().unwrap();
    let who = Who::new("a", "ours");
    for (command, call) in MUTEX.into_iter().chain(REENTRANT) {
        cmd("FLUSHALL").exec(&mut conn).unwrap();
        cmd("SCRIPT").arg("FLUSH").exec(&mut conn).unwrap();
        let ((), traffic) = proxy.traffic_of(|| call(&mut conn, &who));
        if command == "EVALSHA" {
            assert_eq!(traffic.round_trips, 2);
            assert_eq!(traffic.commands, ["EVALSHA", "EVAL"]);
        } else {
            assert_eq!(traffic.round_trips, 1);
        }
    }
}

#[test]
fn every_key_that_a_script_touches_is_declared() {
    let (server, mut conn) = start();
    let mut monitor = Monitor::start(&server).unwrap();
    for (name, functions) in NAMES
        .into_iter()
        .flat_map(|name| [(name, MUTEX), (name, REENTRANT)])
    {
        let who = Who::new(name, "ours");
        call_all(functions, &mut conn, &who);
        cmd("FLUSHALL").exec(&mut conn).unwrap();
        monitor.commands().unwrap();

        call_all(functions, &mut conn, &who);
        let commands = monitor.commands().unwrap();
        let mut declared = Vec::new();
        for command in &commands {
            let words: Vec<&str> = command.split(' ').collect();
            if words[0] == "EVALSHA" {
                declared = words[3..3 + words[2].parse::<usize>().unwrap()].to_vec();
                assert!(
                    declared
                        .iter()
                        .all(|key| who.keys().contains(&(*key).to_owned()))
                );
            } else if words[0] != "TIME" {
                assert!(
                    declared.contains(&words[1]),
                    "{command} uses a key not in {declared:?}"
                );
            }
        }
    }
}

#[test]
fn all_keys_of_a_lock_are_in_one_slot() {
    let server = Server::start_with(&["--cluster-enabled", "yes"]).unwrap();
    let mut conn = server.connection().unwrap();
    for name in NAMES {
        let slots = Who::new(name, "ours").keys().map(|key| -> u16 {
            cmd("CLUSTER")
                .arg("KEYSLOT")
                .arg(key)
                .query(&mut conn)
                .unwrap()
        });
        assert_eq!(slots[0], slots[1], "{name}");
    }
}

#[test]
fn a_refused_attempt_writes_nothing_and_reads_only_the_lock() {
    for [acquire, wait] in [[MUTEX[0], MUTEX[2]], [REENTRANT[0], REENTRANT[1]]] {
        let (server, mut conn) = start();
        acquire.1(&mut conn, &Who::new("a", "theirs"));
        let before = State::of(&mut conn).unwrap();
        let mut monitor = Monitor::start(&server).unwrap();
        acquire.1(&mut conn, &Who::new("a", "ours"));
        wait.1(&mut conn, &Who::new("a", "ours"));
        let commands = monitor.commands().unwrap();
        let touched = touched(&commands);
        assert!(!touched.is_empty());
        for (command, key) in touched {
            assert_eq!(key, "lock:a");
            assert!(
                ["GET", "HLEN", "HGETALL", "RENAMENX"].contains(&command),
                "{command}"
            );
        }
        assert_eq!(State::of(&mut conn).unwrap(), before);
    }
}

#[test]
fn a_free_mutex_costs_five_commands_in_its_script_and_a_refusal_two() {
    let (server, mut conn) = start();
    let (ours, theirs) = (Who::new("a", "ours"), Who::new("a", "theirs"));
    let [take, .., release] = MUTEX;
    // The first hold also sets the companion's expiry.
    take.1(&mut conn, &ours);
    release.1(&mut conn, &ours);
    let mut monitor = Monitor::start(&server).unwrap();
    take.1(&mut conn, &ours);
    take.1(&mut conn, &theirs);
    let commands = monitor.commands().unwrap();
    let of_scripts = commands
        .iter()
        .filter(|command| !command.starts_with("EVAL"));
    let names: Vec<_> = of_scripts
        .map(|command| command.split(' ').next().unwrap())
        .collect();
    assert_eq!(
        names,
        ["GET", "TIME", "HGET", "HSET", "SET", "GET", "RENAMENX"]
    );
}

/// A plain mutex is acquired without a read; tests/locks/untold.rs covers a mutex with waiting
/// threads.
#[test]
fn acquires_and_renewals_read_the_lock_after_their_last_write_to_it() {
    let renew: Function = ("EVALSHA", |conn, who| {
        let token = Token::random();
        reentrant::try_acquire(conn, who.name, &who.owner, &token, LEASE).unwrap();
        assert!(reentrant::renew(conn, who.name, &who.owner, &token, 2 * LEASE).unwrap());
    });
    let calls = [MUTEX[3], REENTRANT[0], REENTRANT[1], renew];
    let (server, mut conn) = start();
    let who = [Who::new("m", "ours"), Who::new("r", "ours")];
    MUTEX[0].1(&mut conn, &who[0]);
    let mut monitor = Monitor::start(&server).unwrap();
    for (at, (_, call)) in calls.into_iter().enumerate() {
        let who = &who[usize::from(at > 0)];
        for _ in 0..2 {
            call(&mut conn, who);
            let commands = monitor.commands().unwrap();
            let [lock, _] = who.keys();
            let mut of_lock = touched(&commands)
                .into_iter()
                .filter(|(_, key)| *key == lock);
            let last = of_lock.next_back().unwrap().0;
            assert!(
                ["GET", "HGET"].contains(&last),
                "{last} is the last of {commands:?}"
            );
        }
    }
}
