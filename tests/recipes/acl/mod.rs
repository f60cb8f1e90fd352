//! The access list in docs/guarantees.md is enough for each recipe, and every entry is needed.

mod probing;
mod waiting;

use std::{thread, time::Duration};

use crate::common::{
    Server,
    access_list::rules,
    kinds::{
        BARE, Kind, LEASE, LEVEL, LONGER, MUTEX, ONE_OF_TWO_PERMITS, PERMIT, READ_WRITE, READER,
        SHARED, WRITER,
    },
    tell,
    wait::at_once,
};
use leasehold::{
    Owner, Pool, Result, Token, Watchdog, acquire_fair_semaphore, acquire_semaphore,
    acquire_semaphore_with_lock,
    recipes::{Hold, read_write, reentrant, semaphore},
    refresh_fair_semaphore, release_fair_semaphore, release_semaphore,
};
use redis::Connection;

const NAME: &str = "app:a";

type AcquireSemaphore = fn(&mut Connection, &str, u32, Duration) -> Result<Option<Token>>;

struct Bench {
    server: Server,
    operator: Connection,
}

/// The setup on the server, and the calls that then have to work.
type Scene<'s> = (
    &'s dyn Fn(&mut Connection),
    &'s dyn Fn(&mut Connection) -> Result<bool>,
);

impl Bench {
    fn start() -> Self {
        let server = Server::start().unwrap();
        let operator = server.connection().unwrap();
        Self { server, operator }
    }

    fn url(&mut self, rules: &[String]) -> String {
        redis::cmd("ACL")
            .arg(&["SETUSER", "app", "reset", "on", ">secret"])
            .arg(rules)
            .exec(&mut self.operator)
            .unwrap();
        format!("redis://app:secret@127.0.0.1:{}/", self.server.port())
    }

    /// True if a user with these rules may do all of it, on a server without cached scripts.
    fn all_work(&mut self, rules: &[String], scenes: &[Scene<'_>]) -> bool {
        let client = redis::Client::open(self.url(rules)).unwrap();
        scenes.iter().all(|(prepare, run)| {
            redis::cmd("FLUSHALL").exec(&mut self.operator).unwrap();
            prepare(&mut self.operator);
            tell(&mut self.operator, "SCRIPT FLUSH");
            matches!(run(&mut client.get_connection().unwrap()), Ok(true))
        })
    }

    /// The rules allow all of it; without any one command or key, something fails.
    #[track_caller]
    fn assert_exact(&mut self, rules: &[String], scenes: &[Scene<'_>]) {
        assert!(self.all_work(rules, scenes), "{rules:?} are not enough");
        let is_needed = |rule: &&String| {
            let others = rules.iter().filter(|other| other != rule);
            let others: Vec<_> = others.cloned().collect();
            !self.all_work(&others, scenes)
        };
        let (_, others): (Vec<_>, Vec<_>) = rules.iter().partition(is_needed);
        assert!(others.is_empty(), "{others:?} of {rules:?} are not needed");
    }
}

/// The rules in these rows, for the keys of the lock [`NAME`].
fn of(rows: &[&str]) -> Vec<String> {
    let rules = rows.iter().flat_map(|row| rules(row));
    let mut rules: Vec<_> = rules
        .map(|rule| match &*rule {
            "~readKey" => format!("~{{{NAME}}}:read"),
            "~writeKey" => format!("~{{{NAME}}}:write"),
            "~hashKey" => format!("~{NAME}"),
            _ => rule,
        })
        .collect();
    rules.sort_unstable();
    rules.dedup();
    rules
}

/// The tokens of the user, and of others.
struct Tokens {
    ours: Token,
    theirs: Token,
    over: Token,
}

/// What the operator does before, and the call of the user.
type Step = (
    fn(Kind, &Tokens, &mut Connection),
    fn(Kind, &Tokens, &mut Connection) -> Result<bool>,
);

const ACQUIRES: &[Step] = &[
    (free, |kind, all, conn| {
        let first = kind.try_acquire(conn, NAME, &all.ours)?;
        // The bare command does not know its own.
        let again = (kind.grant)(conn, NAME, &all.ours, LONGER)?;
        Ok(first && again != kind.is_bare())
    }),
    (by_a_rival, |kind, all, conn| {
        let wait = Some(Duration::from_millis(20));
        Ok(!kind.take(wait, conn, NAME, &all.ours)?)
    }),
    (beside_one_that_ended, take),
    (beside_the_fence_of_another_kind, take),
];
const RENEWS: &[Step] = &[
    (ours, renew),
    (free, |kind, all, conn| Ok(!renew(kind, all, conn)?)),
];
const RELEASES: &[Step] = &[
    (ours, release),
    (free, |kind, all, conn| Ok(!release(kind, all, conn)?)),
    (before_a_shorter_one, release),
    (beside_one_that_ended, |kind, all, conn| {
        Ok(shared(kind).is_none() || (kind.release)(conn, NAME, &all.theirs)?)
    }),
    (of_the_notes, |kind, all, conn| {
        Ok(kind.name != LEVEL.name || release(kind, all, conn)?)
    }),
];
const LISTS: &[Step] = &[(ours, |kind, _, conn| {
    if kind.name == LEVEL.name {
        let owner = Owner::new("ours").unwrap();
        return Ok(reentrant::holds(conn, NAME, &owner)? == 1);
    }
    Ok(semaphore::holders(conn, NAME)?.len() == 1)
})];

fn take(kind: Kind, all: &Tokens, conn: &mut Connection) -> Result<bool> {
    let kind = shared(kind).unwrap_or(kind);
    kind.try_acquire(conn, NAME, &all.ours)
}

fn renew(kind: Kind, all: &Tokens, conn: &mut Connection) -> Result<bool> {
    kind.renew.unwrap()(conn, NAME, &all.ours, LONGER)
}

fn release(kind: Kind, all: &Tokens, conn: &mut Connection) -> Result<bool> {
    (kind.release)(conn, NAME, &all.ours)
}

fn free(_: Kind, _: &Tokens, _: &mut Connection) {}

fn ours(kind: Kind, all: &Tokens, conn: &mut Connection) {
    assert!(take(kind, all, conn).unwrap());
}

fn by_a_rival(kind: Kind, all: &Tokens, conn: &mut Connection) {
    assert!(kind.rival().try_acquire(conn, NAME, &all.theirs).unwrap());
}

/// The same kind, if two may hold it.
fn shared(kind: Kind) -> Option<Kind> {
    if kind.name == PERMIT.name {
        return Some(ONE_OF_TWO_PERMITS);
    }
    SHARED.into_iter().find(|it| it.name == kind.name)
}

/// Only kinds that several may hold have these.
fn beside_one_that_ended(kind: Kind, all: &Tokens, conn: &mut Connection) {
    let Some(shared) = shared(kind) else {
        return;
    };
    assert!(shared.try_acquire(conn, NAME, &all.theirs).unwrap());
    let short = Duration::from_millis(1);
    assert!((shared.grant)(conn, NAME, &all.over, short).unwrap());
    // A level counts for 100 ms after its end.
    thread::sleep(Duration::from_millis(110));
}

/// The keys end with the other one from then on.
fn before_a_shorter_one(kind: Kind, all: &Tokens, conn: &mut Connection) {
    let shared = shared(kind).unwrap_or(kind);
    assert!((shared.grant)(conn, NAME, &all.ours, LONGER).unwrap());
    let _ = shared.try_acquire(conn, NAME, &all.theirs).unwrap();
}

fn beside_the_fence_of_another_kind(_: Kind, _: &Tokens, conn: &mut Connection) {
    let fence = ["{lock:app:a}:lease", "fence", "7"];
    redis::cmd("HSET").arg(&fence).exec(conn).unwrap();
}

/// Entered twice by a program that writes no companion.
fn of_the_notes(kind: Kind, _: &Tokens, conn: &mut Connection) {
    if kind.name == LEVEL.name {
        let entered = ["lock:app:a", "ours", "2"];
        redis::cmd("HSET").arg(&entered).exec(conn).unwrap();
    }
}

/// The rules, and what they are for.
type Row<'r> = (Vec<String>, &'r [(Kind, &'r [Step])]);

#[test]
fn what_the_table_names_for_every_kind() {
    let [_, two_key, [hash_reader, hash_writer]] = READ_WRITE;
    let reader = "a reader of `read_write`";
    let of_the_companion = "~{lock:app:*}:lease".to_owned();
    let renew_write = [of(&["`renew_read`"]), vec![of_the_companion]].concat();
    let table: [Row<'_>; 18] = [
        (of(&["`mutex::try_acquire`,"]), &[(MUTEX, ACQUIRES)]),
        (of(&["`mutex::try_acquire_unfenced`"]), &[(BARE, ACQUIRES)]),
        (of(&["`mutex::renew`"]), &[(MUTEX, RENEWS)]),
        (of(&["`mutex::release`"]), &[(MUTEX, RELEASES)]),
        (of(&["`reentrant::try_acquire`"]), &[(LEVEL, ACQUIRES)]),
        (of(&["`reentrant::renew`"]), &[(LEVEL, RENEWS)]),
        (of(&["`reentrant::release`"]), &[(LEVEL, RELEASES)]),
        (of(&["`reentrant::holds`"]), &[(LEVEL, LISTS)]),
        (of(&[reader]), &[(READER, ACQUIRES), (READER, RELEASES)]),
        // Its list adds to a reader's.
        (
            of(&[reader, "a writer of `read_write`"]),
            &[(READER, RELEASES), (WRITER, ACQUIRES), (WRITER, RELEASES)],
        ),
        (of(&["`renew_read`"]), &[(READER, RENEWS)]),
        (renew_write, &[(WRITER, RENEWS)]),
        (of(&["`semaphore::try_acquire`,"]), &[(PERMIT, ACQUIRES)]),
        (of(&["`semaphore::renew`"]), &[(PERMIT, RENEWS)]),
        (of(&["`semaphore::release`"]), &[(PERMIT, RELEASES)]),
        (of(&["`semaphore::holders`"]), &[(PERMIT, LISTS)]),
        (
            of(&["a reader of `two_key`"]),
            &[(two_key[0], ACQUIRES), (two_key[0], RELEASES)],
        ),
        (
            of(&["a writer of `two_key`"]),
            &[(two_key[1], ACQUIRES), (two_key[1], RELEASES)],
        ),
    ];
    let one_hash = [
        (hash_reader, ACQUIRES),
        (hash_reader, RELEASES),
        (hash_writer, ACQUIRES),
        (hash_writer, RELEASES),
    ];
    let table = table
        .into_iter()
        .chain([(of(&["`one_hash`"]), &one_hash[..])]);
    let tokens = Tokens {
        ours: Token::random(),
        theirs: Token::random(),
        over: Token::random(),
    };
    at_once(table, |(rules, scenes)| {
        let steps = scenes.iter().flat_map(|(kind, steps)| {
            let steps = steps.iter().map(|step| (*kind, step));
            steps.collect::<Vec<_>>()
        });
        let closures: Vec<_> = steps
            .map(|(kind, (prepare, run))| {
                let tokens = &tokens;
                let prepare = move |conn: &mut Connection| prepare(kind, tokens, conn);
                let run = move |conn: &mut Connection| run(kind, tokens, conn);
                (prepare, run)
            })
            .collect();
        let scenes: Vec<Scene<'_>> = closures
            .iter()
            .map(|(prepare, run)| (prepare as &dyn Fn(&mut Connection), run as _))
            .collect();
        Bench::start().assert_exact(&rules, &scenes);
    });
}

#[test]
fn what_the_table_names_for_the_books_semaphores() {
    let mut bench = Bench::start();
    let token: Token = "a".parse().unwrap();
    let asks = |acquire: AcquireSemaphore| {
        move |conn: &mut Connection| {
            let first = acquire(conn, NAME, 1, LEASE)?;
            let second = acquire(conn, NAME, 1, LEASE)?;
            Ok(first.is_some() && second.is_none())
        }
    };
    for (name, acquire) in [
        ("`acquire_semaphore`", acquire_semaphore as AcquireSemaphore),
        ("`acquire_fair_semaphore`", acquire_fair_semaphore),
        ("`acquire_semaphore_with_lock`", acquire_semaphore_with_lock),
    ] {
        let row = rules(name);
        bench.assert_exact(&row, &[(&|_| {}, &asks(acquire))]);
    }

    let held = |conn: &mut Connection| {
        let time: (String, String) = redis::cmd("TIME").query(conn).unwrap();
        let mut add = redis::pipe();
        add.zadd(NAME, "a", time.0);
        add.zadd("app:a:owner", "a", 0).exec(conn).unwrap();
    };
    let release = |conn: &mut Connection| release_semaphore(conn, NAME, &token);
    let row = rules("`release_semaphore`");
    bench.assert_exact(&row, &[(&held, &release)]);
    let refresh = |conn: &mut Connection| refresh_fair_semaphore(conn, NAME, &token);
    let row = rules("`refresh_fair_semaphore`");
    bench.assert_exact(&row, &[(&held, &refresh)]);
    let release = |conn: &mut Connection| release_fair_semaphore(conn, NAME, &token);
    let row = rules("`release_fair_semaphore`");
    bench.assert_exact(&row, &[(&held, &release)]);
}

/// It sends the same commands as the recipe's own renew.
#[test]
fn what_renewing_needs_is_enough_for_the_watchdog() {
    let mut bench = Bench::start();
    let token = Token::random();
    let needs = [rules("`renew_read`"), vec!["~{lock:app:*}:lease".into()]].concat();
    let pool = Pool::connect(&bench.url(&needs)).unwrap();
    let watchdog = Watchdog::new(&pool).unwrap();
    let conn = &mut bench.operator;
    assert!(read_write::try_acquire_read(conn, NAME, &token, LEASE).unwrap());
    let hold = Hold::read(NAME, &token).unwrap();
    assert!(watchdog.keep(&hold, LONGER).unwrap().is_held());
    assert!(read_write::release_read(conn, NAME, &token).unwrap());
    let granted = read_write::try_acquire_write(conn, NAME, &token, LEASE).unwrap();
    assert!(granted.is_some());
    let hold = Hold::write(NAME, &token).unwrap();
    assert!(watchdog.keep(&hold, LONGER).unwrap().is_held());
}
