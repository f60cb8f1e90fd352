//! The rules in `docs/guarantees.md` for a lease that waits and is notified are enough, and each is
//! needed.

use std::{
    collections::BTreeSet,
    thread,
    time::{Duration, Instant},
};

use leasehold::{Committed, Error, Lock, Locks, Options, Owner};
use redis::Commands;

use crate::common::{
    LONG, MS, Server,
    access_list::rules,
    hold::comes_true,
    wait::{at_once, calls},
};

/// The row of what a commit needs in addition under other locks.
pub(super) const NOT_A_MUTEX: &str = "a commit, unless under a mutex";

type Kind = fn(&Locks, &str) -> Lock;

/// A lock's name, its kind, the kind of the other holder, and the rows of the table that it needs.
type Row = (&'static str, Kind, Kind, &'static [&'static str]);

const MUTEX: &[&str] = &[
    "`mutex::try_acquire`,",
    "`mutex::renew`",
    "`mutex::release`",
];
const UNFENCED: &[&str] = &[
    "a `Lease` of a mutex with `Options::fencing(false)`",
    "`mutex::release`",
];
const REENTRANT: &[&str] = &[
    "`reentrant::try_acquire`",
    "`reentrant::renew`",
    "`reentrant::release`",
];
const READER: &[&str] = &["a reader of `read_write`", "`renew_read`"];
const WRITER: &[&str] = &[
    "a writer of `read_write`",
    "a reader of `read_write`",
    "`renew_read`",
];
const SEMAPHORE: &[&str] = &[
    "`semaphore::try_acquire`,",
    "`semaphore::renew`",
    "`semaphore::release`",
];
const ROWS: [Row; 6] = [
    ("app:m", Locks::lock, Locks::lock, MUTEX),
    ("app:u", unfenced, Locks::lock, UNFENCED),
    ("app:e", Locks::reentrant, Locks::reentrant, REENTRANT),
    ("app:r", Locks::read, Locks::write, READER),
    ("app:w", Locks::write, Locks::read, WRITER),
    ("app:s", one_permit, one_permit, SEMAPHORE),
];

fn one_permit(locks: &Locks, name: &str) -> Lock {
    locks.semaphore(name, 1)
}

fn unfenced(locks: &Locks, name: &str) -> Lock {
    locks.lock(name).with(Options::new().fencing(false))
}

/// The locks of a user with these rules and no other channels, whatever the server's default.
fn user(server: &Server, lock: &str, rules: &[String]) -> Locks {
    let name = &lock.replace(':', "-");
    redis::cmd("ACL")
        .arg(&["SETUSER", name, "reset", "resetchannels", "on", ">secret"])
        .arg(rules)
        .exec(&mut server.connection().unwrap())
        .unwrap();
    Locks::connect(&format!(
        "redis://{name}:secret@127.0.0.1:{}/",
        server.port()
    ))
    .unwrap()
}

/// This user's lines in `CLIENT LIST`.
fn connections(server: &Server, lock: &str) -> Vec<String> {
    let mut list = redis::cmd("CLIENT");
    let list: String = list
        .arg("LIST")
        .query(&mut server.connection().unwrap())
        .unwrap();
    let user = format!("user={} ", lock.replace(':', "-"));
    let of_user = list.lines().filter(|line| line.contains(&user));
    of_user.map(str::to_owned).collect()
}

/// The connection on which this user listens.
fn listener(server: &Server, lock: &str) -> Option<String> {
    let connections = connections(server, lock);
    let listens = connections.iter().find(|line| line.contains(" sub=1 "));
    listens?.split(' ').next().map(str::to_owned)
}

/// Waits until this user has asked for the lock and then sent nothing for a quarter of a second: it
/// is in line, and the listener had time to connect.
fn has_come_to_rest(server: &Server, lock: &str) {
    let last_commands = || -> BTreeSet<String> {
        let named = |line: &String| {
            let words = line.split(' ');
            let lasting = words.filter(|word| word.starts_with("id=") || word.starts_with("cmd="));
            lasting.collect()
        };
        connections(server, lock).iter().map(named).collect()
    };
    assert!(comes_true(|| {
        let before = last_commands();
        thread::sleep(250 * MS);
        let asks = |line: &String| line.contains("cmd=eval") || line.contains("cmd=set");
        let has_asked = before.iter().any(asks);
        has_asked && last_commands() == before
    }));
}

/// True if a release wakes a waiting thread within this time; otherwise it would ask again after
/// [`LONG`] or more.
fn is_woken(server: &Server, lock: &Lock, other: &Lock, within: Duration) -> bool {
    // Each pause may be shortened by half.
    let pauses = Options::new().backoff(2 * LONG, 2 * LONG);
    // A lock with hand-over is woken by the listener, which needs all of the rules.
    let pauses = if lock.name() == "app:s" {
        pauses
    } else {
        pauses.hand_over(2, 20 * MS)
    };
    let held = other.acquire(LONG).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| match lock.clone().with(pauses).acquire(within) {
            Ok(lease) => lease.release().map(|()| true),
            Err(Error::Contended { .. }) => Ok(false),
            Err(error) => Err(error),
        });
        has_come_to_rest(server, lock.name());
        held.release().unwrap();
        waiter.join().unwrap().unwrap()
    })
}

/// True if a holder is notified of a deletion within this time; otherwise it would find out at its
/// next renewal.
fn is_told(
    server: &Server,
    lock: &Lock,
    has_been_looked_at: impl FnMut() -> bool,
    within: Duration,
) -> bool {
    let lease = lock.acquire(LONG).unwrap();
    assert!(comes_true(has_been_looked_at));
    let key = format!("lock:{}", lock.name());
    let () = server.connection().unwrap().del(key).unwrap();
    lease.lost().wait_for(within)
}

/// With the default pauses it still has the lock soon after its release.
fn asks_again(lock: &Lock, other: &Lock) {
    let held = other.acquire(LONG).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| lock.acquire(LONG).unwrap().release());
        thread::sleep(50 * MS);
        held.release().unwrap();
        assert!(comes_true(|| waiter.is_finished()), "{lock:?}");
        waiter.join().unwrap().unwrap();
    });
}

/// Runs concurrently: each mostly waits.
#[test]
fn a_lease_needs_what_the_table_names() {
    let cases: [fn(); 2] = [
        what_the_table_names_for_a_lease_is_enough,
        without_any_part_of_it_a_lease_asks_again_after_a_pause,
    ];
    at_once(cases, |case| case());
}

fn what_the_table_names_for_a_lease_is_enough() {
    let server = Server::start().unwrap();
    let admin = Locks::connect(&server.url()).unwrap();
    let for_waiting = rules("a `Lease`");
    assert_eq!(for_waiting.len(), 4, "{for_waiting:?}");
    at_once(ROWS, |(name, kind, other, rows)| {
        let mut needs: Vec<_> = rows.iter().flat_map(|row| rules(row)).collect();
        needs.extend(for_waiting.clone());
        let locks = user(&server, name, &needs);
        let (lock, other) = (kind(&locks, name), other(&admin, name));
        assert!(is_woken(&server, &lock, &other, 15_000 * MS), "{name}");
        // Set when the lock is held.
        let mut since = None;
        let is_soon = || since.get_or_insert_with(Instant::now).elapsed() > 300 * MS;
        // A renewal must not find the loss first.
        let rarely_renewed = lock.clone().with(Options::new().lease(3 * LONG));
        assert!(
            is_told(&server, &rarely_renewed, is_soon, 10_000 * MS),
            "{name}"
        );
        // The rules do not include `PING`: a refused heartbeat is an answer too.
        let (held, listening) = (other.acquire(LONG).unwrap(), listener(&server, name));
        assert!(listening.is_some());
        let waits = || assert!(lock.acquire(1_300 * MS).is_err());
        thread::scope(|scope| scope.spawn(waits).join().unwrap());
        assert_eq!(listener(&server, name), listening, "{name}");
        drop(held);
    });
}

fn without_any_part_of_it_a_lease_asks_again_after_a_pause() {
    let for_waiting = rules("a `Lease`");
    let mutex: Vec<_> = MUTEX.iter().flat_map(|row| rules(row)).collect();
    at_once(0..for_waiting.len(), |left_out| {
        let mut needs = for_waiting.clone();
        let rule = needs.remove(left_out);
        needs.extend(mutex.clone());
        let server = Server::start().unwrap();
        let admin = Locks::connect(&server.url()).unwrap();
        let locks = user(&server, "app:m", &needs);
        let (lock, other) = (locks.lock("app:m"), admin.lock("app:m"));
        assert!(
            !is_woken(&server, &lock, &other, 1_500 * MS),
            "{rule} is not needed to wait"
        );
        let mut conn = server.connection().unwrap();
        let mut scripts = || calls(&mut conn, "evalsha").unwrap();
        let before = scripts();
        // One is the acquire, the other the watchdog's read: the next is a renewal, in some
        // seconds.
        let has_been_looked_at = || scripts() >= before + 2;
        let is_told = is_told(&server, &lock, has_been_looked_at, 1_000 * MS);
        assert!(!is_told, "{rule} is not needed to hold");
        asks_again(&lock, &other);
    });
}

#[test]
fn what_the_table_names_for_commits_is_enough() {
    let server = Server::start().unwrap();
    for (name, kind, _, rows) in ROWS {
        let done = |needs: &[String]| {
            let lease = kind(&user(&server, name, needs), name).acquire(LONG)?;
            let once = || lease.commit_once("id", LONG, |pipe| _ = pipe.incr("count", 1));
            let both = (once()?, once()?);
            lease.commit_and_release(|pipe| _ = pipe.incr("count", 1))?;
            Ok::<_, Error>(both)
        };
        let mut needs: Vec<_> = rows.iter().flat_map(|row| rules(row)).collect();
        needs.extend(["~count", "+incrby"].map(str::to_owned));
        assert!(matches!(done(&needs), Err(Error::Redis { .. })), "{name}");
        needs.extend(rules("`Lease::commit`"));
        if !matches!(name, "app:m" | "app:u") {
            assert!(matches!(done(&needs), Err(Error::Redis { .. })), "{name}");
            needs.extend(rules(NOT_A_MUTEX));
        }
        let (first, second) = done(&needs).unwrap();
        assert_eq!(first, Committed::Now);
        assert!(matches!(second, Committed::Before(_)), "{second:?}");
    }
}

#[test]
fn what_the_table_names_for_an_adoption_is_enough() {
    let server = Server::start().unwrap();
    let owner = Options::new().owner(Owner::new("we").unwrap());
    for (name, kind, _, rows) in ROWS {
        let needs: Vec<_> = rows.iter().flat_map(|row| rules(row)).collect();
        let all = [needs.clone(), rules("`Lock::adopt`")].concat();
        let adopted = |needs: &[String]| {
            let locks = user(&server, name, needs).with(owner.clone());
            let (token, _) = kind(&locks, name).acquire(LONG)?.detach();
            let adopted = kind(&locks, name).adopt(&token);
            let has_a_fence = adopted
                .as_ref()
                .is_ok_and(|it| it.fencing_token().is_some());
            let _ = kind(&user(&server, name, &all), name).force_release();
            adopted.map(|_| has_a_fence)
        };
        let is_fenced = adopted(&all).unwrap();
        let without = adopted(&needs);
        assert_eq!(without.is_ok(), !is_fenced, "{name}: {without:?}");
    }
}

#[test]
fn what_the_table_names_for_run_once_is_enough() {
    let server = Server::start().unwrap();
    let mut needs: Vec<_> = MUTEX.iter().flat_map(|row| rules(row)).collect();
    let period = LONG;
    let done = |needs: &[String]| {
        let lock = user(&server, "app:once", needs).lock("app:once");
        let ran = lock.run_once(period, LONG, |_| Ok::<_, Error>(()))?;
        let found = lock.run_once(period, LONG, |_| Ok::<_, Error>(()))?;
        Ok::<_, Error>((ran.done()?, found.done()?, lock.last_run()?.is_some()))
    };
    assert!(matches!(done(&needs), Err(Error::Redis { .. })));
    needs.extend(rules("`Lock::run_once`"));
    assert_eq!(done(&needs).unwrap(), (Some(()), None, true));
}
