//! `PoolBuilder::login`: the password changes while locks are held, waited for, acquired and
//! released, and the servers close connections.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use leasehold::{Error, Lease, Lock, Locks, Options, Pool, PoolBuilder};
use parking_lot::Mutex;
use redis::{Client, Connection};

use crate::common::{
    Cluster, LONG, MS, Sentinels, Server,
    hold::{comes_true, every_kind},
    sentinels::Plan,
};

const LEASE: Duration = Duration::from_secs(3);

/// The password that the caller's function currently returns.
#[derive(Clone, Default)]
struct Vault {
    password: Arc<Mutex<String>>,
    asked: Arc<AtomicUsize>,
}

impl Vault {
    fn with(password: &str) -> Self {
        let vault = Self::default();
        vault.keep(password);
        vault
    }

    fn keep(&self, password: &str) {
        password.clone_into(&mut self.password.lock());
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    /// A pool with this user's login.
    fn settings(&self, user: &'static str) -> PoolBuilder {
        let vault = self.clone();
        Pool::builder().login(move || {
            vault.asked.fetch_add(1, Ordering::SeqCst);
            Ok((user.into(), vault.password.lock().clone()))
        })
    }
}

fn ask(conn: &mut Connection, words: &str) -> redis::Value {
    let mut words = words.split(' ');
    let mut command = redis::cmd(words.next().unwrap());
    command.arg(words.collect::<Vec<_>>()).query(conn).unwrap()
}

/// Servers with a password for the user `app`.
struct App(Vec<Connection>);

impl App {
    fn on(servers: &[&Server]) -> Self {
        let admin = |server: &Server| server.connection().unwrap();
        let mut app = Self(servers.iter().copied().map(admin).collect());
        app.each("ACL SETUSER app on >0 ~* &* +@all");
        app
    }

    fn each(&mut self, words: &str) {
        for conn in &mut self.0 {
            ask(conn, words);
        }
    }

    fn replace(&mut self, old: &str, new: &str, vault: &Vault) {
        self.each(&format!("ACL SETUSER app >{new}"));
        vault.keep(new);
        self.each(&format!("ACL SETUSER app <{old}"));
        self.each("CLIENT KILL USER app");
    }
}

/// True once it was renewed after this call.
fn is_renewed(lease: &Lease) -> bool {
    let end = Instant::now() + lease.remaining() + 100 * MS;
    comes_true(|| Instant::now() + lease.remaining() > end) && lease.is_held()
}

/// Replaces the password under load. No lock is lost, and no login is refused.
fn no_lock_is_lost(locks: &Locks, mut replace: impl FnMut(&str, &str)) {
    let locks = locks.with(Options::new().lease(LEASE));
    let held = every_kind(&locks).map(|lock| lock.acquire(LONG).unwrap());
    let (is_over, inside) = (AtomicBool::new(false), AtomicUsize::new(0));
    let take_in_turn = |lock: &Lock| {
        let mut turns = 0;
        while !is_over.load(Ordering::SeqCst) {
            match lock.acquire(LONG) {
                Ok(lease) => {
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    thread::sleep(MS);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    may_be_left_to_the_watchdog(&lease.release());
                }
                error => may_be_unknown(&error.map(drop)),
            }
            turns += 1;
        }
        turns
    };
    thread::scope(|scope| {
        let load: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| take_in_turn(&locks.lock("busy"))))
            .collect();
        for n in 0..3 {
            replace(&n.to_string(), &(n + 1).to_string());
            thread::sleep(100 * MS);
        }
        let are_held = held.iter().all(is_renewed);
        is_over.store(true, Ordering::SeqCst);
        let turns: Vec<usize> = load.into_iter().map(|it| it.join().unwrap()).collect();
        assert!(are_held, "{:?}", held.each_ref().map(Lease::state));
        assert!(turns.iter().all(|turns| *turns > 0), "{turns:?}");
    });
    for lease in held {
        lease.verify().unwrap();
        lease.release().unwrap();
    }
}

/// Allows for a connection that the server closed during a call.
#[track_caller]
fn may_be_unknown(outcome: &leasehold::Result<()>) {
    let is_fine = outcome.as_ref().err().is_none_or(Error::may_have_happened);
    assert!(is_fine, "{outcome:?}");
}

/// Also allows for a connection that the server closed during its login: a release, unlike a wait,
/// does not try again before it returns. A refused login is an error.
#[track_caller]
fn may_be_left_to_the_watchdog(outcome: &leasehold::Result<()>) {
    match outcome {
        Err(Error::Pool { source, .. }) => {
            let was_closed = source.as_ref().is_some_and(redis::RedisError::is_io_error);
            assert!(was_closed, "{outcome:?}");
        }
        outcome => may_be_unknown(outcome),
    }
}

#[test]
fn a_users_password_is_replaced_under_load_on_one_server() {
    let server = Server::start().unwrap();
    let (mut app, vault) = (App::on(&[&server]), Vault::with("0"));
    let locks = Locks::connect_with(&server.url(), vault.settings("app")).unwrap();
    no_lock_is_lost(&locks, |old, new| app.replace(old, new, &vault));
    // The locks' own connections log in too, but an open one does not log in again.
    let redis::Value::BulkString(list) = ask(&mut app.0[0], "CLIENT LIST") else {
        unreachable!();
    };
    let list = String::from_utf8(list).unwrap();
    let others = list.lines().filter(|line| !line.contains("user=app"));
    assert_eq!(others.count(), 1, "{list}");
}

#[test]
fn the_password_of_the_default_user_is_replaced_under_load() {
    let server = Server::start_with(&["--requirepass", "0"]).unwrap();
    let url = format!("redis://:0@127.0.0.1:{}/", server.port());
    let mut admin = Client::open(url).unwrap().get_connection().unwrap();
    let vault = Vault::with("0");
    let url = server.url() + "1?protocol=resp3";
    let locks = Locks::connect_with(&url, vault.settings("")).unwrap();
    no_lock_is_lost(&locks, |_, new| {
        {
            // Only one is valid at a time: a connection opened meanwhile waits for the new one.
            let mut password = vault.password.lock();
            ask(&mut admin, &format!("CONFIG SET requirepass {new}"));
            new.clone_into(&mut password);
        }
        ask(&mut admin, "CLIENT KILL TYPE normal SKIPME yes");
        ask(&mut admin, "CLIENT KILL TYPE pubsub SKIPME yes");
    });
}

/// The sentinels have no password, and would refuse the servers' one.
#[test]
fn the_password_of_servers_with_sentinels_is_replaced_under_load() {
    let group = Sentinels::planned(Plan {
        down_after: 10 * LEASE,
        ..Plan::default()
    });
    let group = group.unwrap();
    let (mut app, vault) = (
        App::on(&group.servers.iter().collect::<Vec<_>>()),
        Vault::with("0"),
    );
    let locks = Locks::connect_with(&group.url(), vault.settings("app")).unwrap();
    no_lock_is_lost(&locks, |old, new| app.replace(old, new, &vault));
}

#[test]
fn the_password_of_a_cluster_is_replaced_under_load() {
    let cluster = Cluster::patient().unwrap();
    let (mut app, vault) = (
        App::on(&cluster.nodes.iter().collect::<Vec<_>>()),
        Vault::with("0"),
    );
    // Now the nodes answer `CLUSTER` only after a login.
    app.each("ACL SETUSER default -cluster");
    let locks = Locks::connect_with(&cluster.url(), vault.settings("app")).unwrap();
    no_lock_is_lost(&locks, |old, new| app.replace(old, new, &vault));
}

/// The server rejects the old password before the function returns the new one.
#[test]
fn a_lock_survives_a_late_password() {
    let server = Server::start().unwrap();
    let (mut app, vault) = (App::on(&[&server]), Vault::with("0"));
    let settings = vault.settings("app");
    let locks = Locks::connect_with(&server.url(), settings).unwrap();
    let lock = locks.lock("a").with(Options::new().lease(2 * LEASE));
    let lease = lock.acquire(LONG).unwrap();
    app.each("ACL SETUSER app <0 >1");
    app.each("CLIENT KILL USER app");
    let asked = vault.asked();
    assert!(comes_true(|| vault.asked() > asked + 2));
    let is_refused = || {
        let error = locks.lock("b").try_acquire().unwrap_err();
        format!("{:#}", anyhow::Error::from(error)).contains("WRONGPASS")
    };
    // The first call may use a connection that the server has closed.
    assert!(comes_true(is_refused));
    vault.keep("1");
    assert!(is_renewed(&lease));
    drop(locks.lock("b").acquire(LONG).unwrap());
    lease.release().unwrap();
}

fn why_not(pool: &Pool) -> String {
    let Error::Pool { reason, .. } = pool.get().unwrap_err() else {
        unreachable!();
    };
    reason
}

#[test]
fn a_failed_or_panicked_login_function_is_the_reason_in_the_error() {
    let server = Server::start().unwrap();
    let fails = || Err(anyhow::anyhow!("no route").context("no token").into());
    let pool = Pool::builder().login(fails).connect(&server.url());
    let failed = "the login function failed: no token: no route";
    assert_eq!(why_not(&pool.unwrap()), failed);
    // Printing a panic's location takes seconds on a busy machine.
    let panics = || panic!("a mistake");
    let patient = Pool::builder().get_timeout(LONG).connect_timeout(LONG);
    let pool = patient.login(panics).connect(&server.url());
    let panicked = "the login function panicked";
    assert_eq!(why_not(&pool.unwrap()), panicked);
}

#[test]
fn a_wait_continues_while_the_login_function_fails() {
    let server = Server::start().unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let fails_at_first = move || match counted.fetch_add(1, Ordering::SeqCst) {
        0..5 => Err("no token".into()),
        _ => Ok((String::new(), String::new())),
    };
    let settings = Pool::builder().login(fails_at_first);
    let locks = Locks::connect_with(&server.url(), settings).unwrap();
    locks.lock("a").acquire(LONG).unwrap().release().unwrap();
    assert!(calls.load(Ordering::SeqCst) > 5);
}

/// The password changes between the function's reply and the login.
#[test]
fn a_password_that_changes_during_the_login_is_tried() {
    let server = Server::start().unwrap();
    let mut set = redis::cmd("CONFIG");
    let set = set.arg("SET").arg("requirepass").arg("new");
    set.exec(&mut server.connection().unwrap()).unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let changes = move || match counted.fetch_add(1, Ordering::SeqCst) {
        0 => Ok((String::new(), "old".to_owned())),
        _ => Ok((String::new(), "new".to_owned())),
    };
    let settings = Pool::builder().login(changes).max_size(1);
    let pool = settings.get_timeout(LONG).connect_timeout(LONG);
    let conn = pool.connect(&server.url()).unwrap().get();
    assert!(conn.is_ok(), "{:?}", conn.map(drop));
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

#[test]
fn a_slow_login_function_is_an_error_within_the_deadline() {
    let server = Server::start().unwrap();
    let slow = || {
        thread::sleep(200 * MS);
        Ok((String::new(), String::new()))
    };
    let settings = Pool::builder().login(slow).connect_timeout(100 * MS);
    let reason = why_not(&settings.connect(&server.url()).unwrap());
    assert!(reason.contains("no time to connect"), "{reason}");
    let hung = || {
        thread::sleep(LONG);
        Ok((String::new(), String::new()))
    };
    let settings = Pool::builder().login(hung).get_timeout(100 * MS);
    let (pool, asked) = (settings.connect(&server.url()).unwrap(), Instant::now());
    why_not(&pool);
    assert!(asked.elapsed() < LONG / 2, "{:?}", asked.elapsed());
}

#[test]
fn the_password_of_a_login_function_is_never_printed() {
    let server = Server::start_with(&["--requirepass", "another"]).unwrap();
    let vault = Vault::with("secret");
    let settings = vault.settings("app");
    let shown = format!("{settings:?}");
    let pool = settings.connect(&server.url()).unwrap();
    let error = pool.get().unwrap_err();
    let shown = format!(
        "{shown} {pool:?} {error:?} {:#}",
        anyhow::Error::from(error.clone())
    );
    assert!(shown.contains("WRONGPASS"), "{shown}");
    assert!(!shown.contains("secret"), "{shown}");
}
