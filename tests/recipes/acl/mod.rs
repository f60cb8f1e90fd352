//! The access list in docs/guarantees.md is enough for each recipe, and every entry is needed.

mod probing;
mod waiting;

use std::{thread, time::Duration};

use crate::common::{Server, access_list::rules};
use leasehold::{
    Owner, Pool, Result, Token, Watchdog, acquire_fair_semaphore, acquire_semaphore,
    acquire_semaphore_with_lock,
    book::article::{one_hash, two_key},
    recipes::{
        Hold,
        mutex::{self, End},
        read_write,
        reentrant::{self, Release},
        semaphore,
    },
    refresh_fair_semaphore, release_fair_semaphore, release_semaphore,
};
use redis::Connection;

const NAME: &str = "app:a";
const LEASE: Duration = Duration::from_secs(10);
const LONGER: Duration = Duration::from_secs(20);

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
            redis::cmd("SCRIPT")
                .arg("FLUSH")
                .exec(&mut self.operator)
                .unwrap();
            matches!(run(&mut client.get_connection().unwrap()), Ok(true))
        })
    }

    /// The rules allow all of it; without any one command or key, something fails.
    #[track_caller]
    fn assert_exact(&mut self, rules: &[String], scenes: &[Scene<'_>]) {
        assert!(self.all_work(rules, scenes), "{rules:?} are not enough");
        for (at, rule) in rules.iter().enumerate() {
            let mut others = rules.to_vec();
            others.remove(at);
            assert!(!self.all_work(&others, scenes), "{rule} is not needed");
        }
    }
}

fn nothing(_: &mut Connection) {}

#[test]
fn what_the_table_names_for_mutex() {
    let mut bench = Bench::start();
    let [token, other] = [Token::random(), Token::random()];
    let end = End::After(LEASE);
    let lock = |conn: &mut Connection| {
        mutex::try_acquire(conn, NAME, &token, end).unwrap();
    };

    let acquire = |conn: &mut Connection| {
        let first = mutex::acquire(conn, NAME, &token, Duration::ZERO, end)?;
        let again = mutex::try_acquire(conn, NAME, &token, End::After(LONGER))?;
        let others = mutex::acquire(conn, NAME, &other, Duration::ZERO, end)?;
        Ok(first.is_some() && again == first && others.is_none())
    };
    bench.assert_exact(&rules("`mutex::try_acquire`,"), &[(&nothing, &acquire)]);
    let unfenced = |conn: &mut Connection| mutex::try_acquire_unfenced(conn, NAME, &token, LEASE);
    let row = rules("`mutex::try_acquire_unfenced`");
    bench.assert_exact(&row, &[(&nothing, &unfenced)]);
    let renew = |conn: &mut Connection| mutex::renew(conn, NAME, &token, LONGER);
    bench.assert_exact(&rules("`mutex::renew`"), &[(&lock, &renew)]);
    let release = |conn: &mut Connection| mutex::release(conn, NAME, &token);
    bench.assert_exact(&rules("`mutex::release`"), &[(&lock, &release)]);
}

#[test]
fn what_the_table_names_for_reentrant() {
    let mut bench = Bench::start();
    let [token, other] = [Token::random(), Token::random()];
    let owner = Owner::current_thread();
    let enter = |conn: &mut Connection| {
        reentrant::try_acquire(conn, NAME, &owner, &token, LEASE).unwrap();
    };
    // Acquired twice by a program that writes no companion.
    let bare = |conn: &mut Connection| {
        redis::cmd("HSET")
            .arg(&["lock:app:a", owner.as_str(), "2"])
            .exec(conn)
            .unwrap();
    };

    // The next acquisition removes the level of one that has ended.
    let acquire = |conn: &mut Connection| {
        let (over, short) = (Token::random(), Duration::from_millis(1));
        let mut counts = Vec::new();
        for token in [&token, &other, &token] {
            let granted = reentrant::acquire(conn, NAME, &owner, token, Duration::ZERO, LEASE)?;
            counts.extend(granted.map(|granted| granted.count()));
        }
        reentrant::try_acquire(conn, NAME, &owner, &over, short)?;
        thread::sleep(Duration::from_millis(110));
        let granted = reentrant::try_acquire(conn, NAME, &owner, &token, LEASE)?;
        counts.extend(granted.map(|granted| granted.count()));
        Ok(counts == [1, 2, 2, 2])
    };
    bench.assert_exact(&rules("`reentrant::try_acquire`"), &[(&nothing, &acquire)]);
    let renew = |conn: &mut Connection| reentrant::renew(conn, NAME, &owner, &token, LONGER);
    bench.assert_exact(&rules("`reentrant::renew`"), &[(&enter, &renew)]);
    let release = |conn: &mut Connection| {
        let unknown = reentrant::release(conn, NAME, &owner, &other)?;
        let ours = reentrant::release(conn, NAME, &owner, &token)?;
        Ok([unknown, ours] == [Release::NotHeld, Release::Freed])
    };
    let release_bare = |conn: &mut Connection| {
        let released = reentrant::release(conn, NAME, &owner, &token)?;
        Ok(released == Release::StillHeld { count: 1 })
    };
    let scenes: [Scene<'_>; 2] = [(&enter, &release), (&bare, &release_bare)];
    bench.assert_exact(&rules("`reentrant::release`"), &scenes);
    let holds = |conn: &mut Connection| Ok(reentrant::holds(conn, NAME, &owner)? == 1);
    bench.assert_exact(&rules("`reentrant::holds`"), &[(&enter, &holds)]);
}

#[test]
fn what_the_table_names_for_read_write() {
    let mut bench = Bench::start();
    let [token, other] = [Token::random(), Token::random()];
    let short = Duration::from_millis(20);

    let reads = |conn: &mut Connection| {
        Ok(read_write::try_acquire_read(conn, NAME, &token, LEASE)?
            && read_write::try_acquire_read(conn, NAME, &other, LONGER)?
            && read_write::release_read(conn, NAME, &token)?
            && read_write::release_read(conn, NAME, &other)?)
    };
    let reader = rules("a reader of `read_write`");
    bench.assert_exact(&reader, &[(&nothing, &reads)]);
    let writes = |conn: &mut Connection| {
        Ok(
            read_write::try_acquire_write(conn, NAME, &token, LEASE)?.is_some()
                && read_write::acquire_write(conn, NAME, &other, short, LEASE)?.is_none()
                && read_write::release_write(conn, NAME, &token)?,
        )
    };
    let mut row = [reader, rules("a writer of `read_write`")].concat();
    row.sort_unstable();
    row.dedup();
    bench.assert_exact(&row, &[(&nothing, &writes)]);

    let reads = |conn: &mut Connection| {
        assert!(read_write::try_acquire_read(conn, NAME, &token, LEASE).unwrap());
    };
    let renew_read = |conn: &mut Connection| read_write::renew_read(conn, NAME, &token, LONGER);
    let too_late = |conn: &mut Connection| Ok(!renew_read(conn)?);
    let for_readers = rules("`renew_read`");
    bench.assert_exact(
        &for_readers,
        &[(&reads, &renew_read), (&nothing, &too_late)],
    );
    let writes = |conn: &mut Connection| {
        let granted = read_write::try_acquire_write(conn, NAME, &token, LEASE).unwrap();
        assert!(granted.is_some());
    };
    let renew_write = |conn: &mut Connection| read_write::renew_write(conn, NAME, &token, LONGER);
    let too_late = |conn: &mut Connection| Ok(!renew_write(conn)?);
    let row = [for_readers, vec!["~{lock:app:*}:lease".into()]].concat();
    bench.assert_exact(&row, &[(&writes, &renew_write), (&nothing, &too_late)]);
}

#[test]
fn what_the_table_names_for_semaphore() {
    let mut bench = Bench::start();
    let [token, other] = [Token::random(), Token::random()];
    let take = |conn: &mut Connection| {
        assert!(semaphore::try_acquire(conn, NAME, 2, &token, LEASE).unwrap());
    };
    // The next acquire removes it, or the release of the last permit.
    let with_one_that_ended = |conn: &mut Connection| {
        take(conn);
        let short = Duration::from_millis(1);
        assert!(semaphore::try_acquire(conn, NAME, 2, &other, short).unwrap());
        thread::sleep(Duration::from_millis(5));
    };

    let acquire = |conn: &mut Connection| {
        let third = Token::random();
        Ok(semaphore::try_acquire(conn, NAME, 2, &other, LEASE)?
            && !semaphore::acquire(conn, NAME, 2, &third, Duration::ZERO, LEASE)?)
    };
    let row = rules("`semaphore::try_acquire`,");
    let the_first = |conn: &mut Connection| semaphore::try_acquire(conn, NAME, 2, &token, LEASE);
    // The companion has the fencing token of a mutex, and its end.
    let with_another_kind = |conn: &mut Connection| {
        let fence = ["{lock:app:a}:lease", "fence", "7"];
        redis::cmd("HSET").arg(&fence).exec(conn).unwrap();
    };
    let scenes: [Scene<'_>; 3] = [
        (&with_one_that_ended, &acquire),
        (&nothing, &the_first),
        (&with_another_kind, &the_first),
    ];
    bench.assert_exact(&row, &scenes);
    let renew = |conn: &mut Connection| semaphore::renew(conn, NAME, &token, LONGER);
    bench.assert_exact(&rules("`semaphore::renew`"), &[(&take, &renew)]);
    let release = |conn: &mut Connection| semaphore::release(conn, NAME, &token);
    // The keys end with the other permit from then on.
    let before_a_shorter_one = |conn: &mut Connection| {
        assert!(semaphore::try_acquire(conn, NAME, 2, &token, LONGER).unwrap());
        assert!(semaphore::try_acquire(conn, NAME, 2, &other, LEASE).unwrap());
    };
    let row = rules("`semaphore::release`");
    let scenes: [Scene<'_>; 2] = [
        (&with_one_that_ended, &release),
        (&before_a_shorter_one, &release),
    ];
    bench.assert_exact(&row, &scenes);
    let holders = |conn: &mut Connection| Ok(semaphore::holders(conn, NAME)?.len() == 1);
    bench.assert_exact(&rules("`semaphore::holders`"), &[(&take, &holders)]);
}

#[test]
fn what_the_table_names_for_the_editions() {
    let mut bench = Bench::start();
    let [token, other] = [Token::random(), Token::random()];
    let keys = two_key::Keys::new("readKey", "writeKey").unwrap();
    let leases = one_hash::Lifetimes::default();

    let reads = |conn: &mut Connection| {
        Ok(
            two_key::acquire_read(conn, &keys, &token, Duration::ZERO, LEASE)?
                && two_key::acquire_read(conn, &keys, &other, Duration::ZERO, LEASE)?
                && two_key::release_read(conn, &keys, &token)?
                && two_key::release_read(conn, &keys, &other)?,
        )
    };
    bench.assert_exact(&rules("a reader of `two_key`"), &[(&nothing, &reads)]);
    let writes = |conn: &mut Connection| {
        Ok(
            two_key::acquire_write(conn, &keys, &token, Duration::ZERO, LEASE)?
                && two_key::acquire_write(conn, &keys, &token, Duration::ZERO, LONGER)?
                && two_key::release_write(conn, &keys, &token)?,
        )
    };
    bench.assert_exact(&rules("a writer of `two_key`"), &[(&nothing, &writes)]);
    let both = |conn: &mut Connection| {
        let key = "hashKey";
        Ok(
            one_hash::acquire_read(conn, key, &token, Duration::ZERO, &leases)?
                && one_hash::release_read(conn, key, &token, &leases)?
                && one_hash::acquire_write(conn, key, &token, Duration::ZERO, &leases)?
                && one_hash::release_write(conn, key, &token, &leases)?,
        )
    };
    bench.assert_exact(&rules("`one_hash`"), &[(&nothing, &both)]);
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
        bench.assert_exact(&row, &[(&nothing, &asks(acquire))]);
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
