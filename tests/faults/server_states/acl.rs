//! A user with exactly the commands that the functions need, and users who lack one.

use std::time::Duration;

use leasehold::{Error, Token, acquire_lock_with_timeout, release_lock};
use redis::{Commands, Connection};

use crate::common::{
    Server, tell,
    world::{self, Function, Kind, LEASE, PASSWORD, WAIT},
};

/// The commands of the book's lock.
const LOCK_COMMANDS: [&str; 11] = [
    "set", "get", "watch", "unwatch", "multi", "del", "exec", "evalsha", "eval", "pexpire", "pttl",
];
/// The market's additional commands, and those that this test passes to `commit_while_held`.
const MARKET_COMMANDS: [&str; 9] = [
    "sismember",
    "zscore",
    "hget",
    "zadd",
    "srem",
    "hincrby",
    "sadd",
    "zrem",
    "incr",
];
const KEYS: &str = "~lock:* ~market: ~users:* ~inventory:* ~count";

struct Bench {
    server: Server,
    operator: Connection,
}

impl Bench {
    fn start() -> Self {
        let server = Server::start().unwrap();
        let operator = server.connection().unwrap();
        Self { server, operator }
    }

    fn allow(&mut self, rules: &str) {
        let user = format!("app reset on >{PASSWORD}");
        tell(&mut self.operator, &format!("ACL SETUSER {user} {rules}"));
    }

    /// Allows everything except this command.
    fn allow_all_without(&mut self, missing: &str) {
        let commands: Vec<String> = LOCK_COMMANDS
            .iter()
            .chain(&MARKET_COMMANDS)
            .filter(|command| **command != missing)
            .map(|command| format!("+{command}"))
            .collect();
        self.allow(&format!("{KEYS} -@all {}", commands.join(" ")));
    }

    /// A connection of the user, with the world restored.
    fn anew(&mut self) -> Connection {
        redis::cmd("FLUSHALL").exec(&mut self.operator).unwrap();
        tell(&mut self.operator, "SCRIPT FLUSH");
        world::seed(&mut self.operator);
        let _: bool = self.operator.persist("lock:spare").unwrap();
        let port = self.server.port();
        let url = format!("redis://app:{PASSWORD}@127.0.0.1:{port}/");
        redis::Client::open(url).unwrap().get_connection().unwrap()
    }

    /// Restores all rights, and asserts that nothing was left open on the connection.
    fn assert_clean(&mut self, conn: &mut Connection, what: &str) {
        self.allow("~* +@all");
        world::assert_nothing_is_watched(conn, &mut self.operator, what);
    }
}

/// A failed wait for a lock that has no end yet, and a release of another holder's lock.
fn contended() -> [Function; 2] {
    let acquire = Function {
        name: "acquire_lock_with_timeout",
        lock: "spare",
        kind: Kind::Acquire,
        call: |conn| Ok(acquire_lock_with_timeout(conn, "spare", Duration::ZERO, LEASE)?.is_none()),
        is_done: |_| Ok(false),
    };
    let release = Function {
        name: "release_lock",
        lock: "held",
        kind: Kind::Transaction,
        call: |conn| Ok(!release_lock(conn, "held", &Token::random())?),
        ..acquire
    };
    [acquire, release]
}

#[test]
fn the_listed_commands_are_enough() {
    let mut bench = Bench::start();
    for function in world::functions().into_iter().chain(contended()) {
        bench.allow_all_without("");
        let mut conn = bench.anew();
        assert!((function.call)(&mut conn).unwrap(), "{}", function.name);
        bench.assert_clean(&mut conn, function.name);
    }
}

#[test]
fn each_listed_command_is_needed_and_named_when_missing() {
    let mut bench = Bench::start();
    for missing in LOCK_COMMANDS.into_iter().chain(MARKET_COMMANDS) {
        let mut missed = 0;
        for function in world::functions().into_iter().chain(contended()) {
            let what = format!("{} without {missing}", function.name);
            bench.allow_all_without(missing);
            let mut conn = bench.anew();
            match (function.call)(&mut conn) {
                Ok(done) => assert!(done, "{what}"),
                Err(error) => {
                    missed += 1;
                    judge(&mut bench, &function, missing, &error);
                }
            }
            bench.assert_clean(&mut conn, &what);
        }
        // An empty transaction has the effect of UNWATCH.
        assert!(
            missed > 0 || missing == "unwatch",
            "{missing} is not needed"
        );
    }
}

fn judge(bench: &mut Bench, function: &Function, missing: &str, error: &anyhow::Error) {
    let what = format!("{} without {missing}", function.name);
    world::assert_names(error, function);
    world::assert_tells_no_secret(error);
    world::assert_conserved(&mut bench.operator, &what);
    world::assert_locks_end(&mut bench.operator, &what);
    let text = format!("{error:#}");
    match error.downcast_ref() {
        // Without its MULTI, the rest is executed nevertheless.
        Some(Error::Partial { .. }) => assert_eq!(missing, "multi", "{text}"),
        Some(Error::Redis { .. }) => {
            let done = (function.is_done)(&mut bench.operator).unwrap();
            assert!(!done, "{what}: happened, but returned an error");
        }
        other => unreachable!("{what}: {other:?}"),
    }
    let forbidden = ["permissions", "can't run this command"];
    assert!(forbidden.iter().any(|words| text.contains(words)), "{text}");
    if !LOCK_COMMANDS.contains(&missing) {
        assert_eq!(world::new_locks(&mut bench.operator), [""; 0], "{what}");
    }
}

#[test]
fn keys_without_access() {
    let mut bench = Bench::start();
    for function in world::functions() {
        bench.allow("~elsewhere:* -@all +@all");
        let mut conn = bench.anew();
        let error = (function.call)(&mut conn).unwrap_err();
        judge(&mut bench, &function, "access to its keys", &error);
        bench.assert_clean(&mut conn, function.name);
    }
}

#[test]
fn a_user_locked_out_for_a_while_recovers() {
    let mut bench = Bench::start();
    bench.allow_all_without("");
    let mut conn = bench.anew();
    let token = acquire_lock_with_timeout(&mut conn, "free", WAIT, LEASE)
        .unwrap()
        .unwrap();
    bench.allow_all_without("get");
    release_lock(&mut conn, "free", &token).unwrap_err();
    bench.allow_all_without("");
    assert!(release_lock(&mut conn, "free", &token).unwrap());
}
