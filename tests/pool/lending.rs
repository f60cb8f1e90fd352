//! The pool with a healthy server: its connections, commands, loans, refusals and texts.

use std::{
    collections::BTreeMap,
    sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use crate::common::{Server, clients, wait};
use leasehold::{
    Pool, Token, acquire_lock, acquire_lock_with_timeout, commit_while_held, r2d2, redis,
    release_lock,
};
use redis::{Client, Connection};

const WAIT: Duration = Duration::from_secs(2);
const LEASE: Duration = Duration::from_secs(10);
/// A wait over this has failed.
const LIMIT: Duration = Duration::from_secs(20);

fn pool_of(server: &Server, size: u32) -> Pool {
    let client = Client::open(server.url()).unwrap();
    let builder = Pool::builder().max_size(size).get_timeout(LIMIT);
    builder.build(&client).unwrap()
}

/// Number of calls of each command, without those of the asking connection.
fn calls(admin: &mut Connection) -> BTreeMap<String, String> {
    let info: String = redis::cmd("INFO").arg("commandstats").query(admin).unwrap();
    let calls = info.lines().filter_map(|line| {
        let (command, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let count = rest.split_once(',')?.0;
        (!command.starts_with("config")).then(|| (command.to_owned(), count.to_owned()))
    });
    calls.collect()
}

fn forget_calls(admin: &mut Connection) {
    redis::cmd("CONFIG").arg("RESETSTAT").exec(admin).unwrap();
}

#[test]
fn a_connection_asks_the_version_once_and_lending_sends_nothing() {
    let server = Server::start().unwrap();
    let mut admin = server.connection().unwrap();
    let pool = Pool::connect(&server.url()).unwrap();
    forget_calls(&mut admin);
    drop(pool.get().unwrap());
    let once = BTreeMap::from([("info".to_owned(), "1".to_owned())]);
    assert_eq!(calls(&mut admin), once);

    forget_calls(&mut admin);
    for _ in 0..100 {
        drop(pool.get().unwrap());
    }
    assert_eq!(calls(&mut admin), BTreeMap::new());
}

/// After one has broken, each other one is sent one `PING`.
#[test]
fn a_connection_is_asked_once_after_another_broke() {
    let server = Server::start().unwrap();
    let mut admin = server.connection().unwrap();
    let pool = Pool::connect(&server.url()).unwrap();
    let (mut broken, other) = (pool.get().unwrap(), pool.get().unwrap());
    drop(other);
    clients::kill(&mut admin, clients::id(&mut broken));
    release_lock(&mut broken, "a", &Token::random()).unwrap_err();
    drop(broken);
    forget_calls(&mut admin);
    for _ in 0..10 {
        drop(pool.get().unwrap());
    }
    let once = BTreeMap::from([("ping".to_owned(), "1".to_owned())]);
    assert_eq!(calls(&mut admin), once);
}

#[test]
fn connections_are_opened_on_demand() {
    let server = Server::start().unwrap();
    let mut admin = server.connection().unwrap();
    let pool = pool_of(&server, 10);
    // The server may not have noticed yet that its starter has disconnected.
    assert!(wait::comes_true(|| clients::count(&mut admin) == 0));

    let first = pool.get().unwrap();
    assert_eq!(clients::count(&mut admin), 1);
    let second = pool.get().unwrap();
    assert_eq!(clients::count(&mut admin), 2);
    drop((first, second));
    for _ in 0..20 {
        drop(pool.get().unwrap());
    }
    assert_eq!(clients::count(&mut admin), 2);
}

#[test]
fn sixty_four_threads_share_eight_connections() {
    let server = Server::start().unwrap();
    let mut admin = server.connection().unwrap();
    assert!(wait::comes_true(|| clients::count(&mut admin) == 0));
    let pool = pool_of(&server, 8);
    let working = AtomicUsize::new(64);
    let most = thread::scope(|scope| {
        for worker in 0..64 {
            let (pool, working) = (&pool, &working);
            scope.spawn(move || {
                lock_and_release(pool, &format!("lock{worker}"), 30);
                working.fetch_sub(1, Ordering::Relaxed);
            });
        }
        let mut most = 0;
        let started = Instant::now();
        while working.load(Ordering::Relaxed) > 0 && started.elapsed() < LIMIT {
            most = most.max(clients::count(&mut admin));
        }
        most.max(clients::count(&mut admin))
    });
    assert_eq!(working.into_inner(), 0);
    assert!((1..=8).contains(&most), "{most}");
}

fn lock_and_release(pool: &Pool, name: &str, times: u32) {
    for _ in 0..times {
        let mut conn = pool.get().unwrap();
        let token = acquire_lock_with_timeout(&mut conn, name, WAIT, LEASE)
            .unwrap()
            .unwrap();
        assert!(release_lock(&mut conn, name, &token).unwrap());
    }
}

#[test]
fn an_exhausted_pool_says_so_in_time() {
    let server = Server::start().unwrap();
    let pool = Pool::builder()
        .max_size(2)
        .get_timeout(Duration::from_secs(2))
        .build(&Client::open(server.url()).unwrap())
        .unwrap();
    let _lent = (pool.get().unwrap(), pool.get().unwrap());
    let asked = Instant::now();
    let error = pool.get().unwrap_err();
    assert!(asked.elapsed() >= Duration::from_secs(2));
    assert!(asked.elapsed() < LIMIT);
    assert_eq!(
        error.to_string(),
        "no connection: all 2 of the pool are lent, and none came back within 2s; all were lent by \
         `Pool::get`: give a connection back before you acquire a lock, or enlarge the pool"
    );
}

#[test]
fn a_waiter_is_served_when_a_broken_connection_comes_back() {
    let server = Server::start().unwrap();
    let mut admin = server.connection().unwrap();
    let pool = Pool::builder()
        .max_size(1)
        .get_timeout(Duration::from_mins(1))
        .build(&Client::open(server.url()).unwrap())
        .unwrap();
    // The test cannot see that a thread waits; a thread that does not yet only has a shorter wait.
    for _ in 0..20 {
        give_a_broken_one_back_while_somebody_waits(&pool, &mut admin);
    }
}

fn give_a_broken_one_back_while_somebody_waits(pool: &Pool, admin: &mut Connection) {
    let mut broken = pool.get().unwrap();
    let broken_id = clients::id(&mut broken);
    thread::scope(|scope| {
        let (waits, waiting) = mpsc::channel();
        let (answers, answered) = mpsc::channel();
        scope.spawn(move || {
            waits.send(()).unwrap();
            answers.send(clients::id(&mut pool.get().unwrap())).unwrap();
        });
        waiting.recv().unwrap();
        // Meanwhile the other thread starts to wait.
        clients::kill(admin, broken_id);
        assert!(wait::comes_true(|| !clients::exists(admin, broken_id)));
        release_lock(&mut broken, "a", &Token::random()).unwrap_err();
        drop(broken);
        assert_ne!(answered.recv_timeout(LIMIT).unwrap(), broken_id);
    });
}

#[test]
fn timeouts_changed_by_a_borrower_are_reset() {
    let server = Server::start().unwrap();
    let pool = Pool::builder()
        .max_size(1)
        .io_timeout(Duration::from_millis(500))
        .build(&Client::open(server.url()).unwrap())
        .unwrap();
    let conn = pool.get().unwrap();
    conn.set_read_timeout(None).unwrap();
    drop(conn);

    let mut conn = pool.get().unwrap();
    let asked = Instant::now();
    let blocked = redis::cmd("BLPOP").arg("nothing").arg(30).exec(&mut conn);
    let error = blocked.unwrap_err();
    assert!(error.is_timeout(), "{error}");
    assert!(asked.elapsed() < LIMIT);
}

#[test]
fn the_callers_own_pool_or_connection_works() {
    let server = Server::start().unwrap();
    let client = Client::open(server.url()).unwrap();
    let pool: r2d2::Pool<Client> = r2d2::Pool::builder()
        .max_size(2)
        .build(client.clone())
        .unwrap();
    let mut bare = client.get_connection().unwrap();

    let mut pooled = pool.get().unwrap();
    let token = acquire_lock_with_timeout(&mut pooled, "a", WAIT, LEASE)
        .unwrap()
        .unwrap();
    let refused = acquire_lock(&mut bare, "a", Duration::ZERO).unwrap();
    assert_eq!(refused, None);
    let (set,): (bool,) = commit_while_held(&mut pooled, "a", &token, |pipe| {
        pipe.set("x", 1);
    })
    .unwrap();
    assert!(set);
    assert!(release_lock(&mut bare, "a", &token).unwrap());
    let token = acquire_lock(&mut bare, "a", WAIT).unwrap().unwrap();
    assert!(release_lock(&mut pooled, "a", &token).unwrap());
}

#[test]
fn connections_are_lent_in_order_of_arrival() {
    wait::unless_halted(|| {
        const THREADS: usize = 10;
        let server = Server::start().unwrap();
        let pool = pool_of(&server, 1);
        let only = pool.get().unwrap();
        let (lent, order) = mpsc::channel();
        thread::scope(|scope| {
            for number in 0..THREADS {
                let (pool, lent) = (pool.clone(), lent.clone());
                scope.spawn(move || {
                    let conn = pool.get().unwrap();
                    lent.send(number).unwrap();
                    // Longer than a waiting call sleeps at a time.
                    thread::sleep(Duration::from_millis(25));
                    drop(conn);
                });
                // By now it waits.
                thread::sleep(Duration::from_millis(50));
            }
            drop(only);
        });
        let order: Vec<_> = order.try_iter().collect();
        let overtaken = order.windows(2).filter(|two| two[0] > two[1]).count();
        // A thread that was not scheduled may have started to wait late. Without an order it is four or
        // five.
        assert!(overtaken <= 2, "{order:?}");
    });
}
