//! A Sentinel group without faults, or with one sentinel that is silent, dead or needs a password.

use std::{
    thread,
    time::{Duration, Instant},
};

use leasehold::{
    Error, Locks, Options, Owner, Pool, Token, Watchdog, acquire_lock_with_timeout,
    commit_while_held, list_item, purchase_item, recipes::mutex, release_lock,
};
use redis::{Client, Commands};

use crate::common::{
    LONG, MS, SLACK, Sentinels,
    hold::{comes_true, every_kind, take},
    sentinels::{MASTER, Plan},
    tell,
    wait::calls,
};

/// A group in which a busy machine causes no failover.
fn steady() -> Plan {
    Plan {
        down_after: Duration::from_secs(30),
        ..Plan::default()
    }
}

#[test]
fn everything_works_through_a_url_of_sentinels() {
    let group = Sentinels::planned(steady()).unwrap();
    let pool = Pool::connect(&group.url()).unwrap();
    let mut conn = pool.get().unwrap();
    // The plain functions.
    let token = acquire_lock_with_timeout(&mut conn, "a", MS, LONG)
        .unwrap()
        .unwrap();
    let (count,): (u64,) = commit_while_held(&mut conn, "a", &token, |pipe| {
        pipe.cmd("INCR").arg("count");
    })
    .unwrap();
    assert!(count == 1 && release_lock(&mut conn, "a", &token).unwrap());
    // The market.
    let _: () = conn.sadd("inventory:17", "item").unwrap();
    let _: () = conn.hset("users:17", "funds", 0).unwrap();
    let _: () = conn.hset("users:27", "funds", 10).unwrap();
    assert!(list_item(&mut conn, "item", "17", 5).unwrap().is_listed());
    assert!(
        purchase_item(&mut conn, "27", "item", "17", 5)
            .unwrap()
            .is_bought()
    );
    // A recipe, renewed by a watchdog.
    let watchdog = Watchdog::new(&pool).unwrap();
    let lease = 6_000 * MS;
    let hold = take(&mut conn, "kept", lease).unwrap();
    let renewal = watchdog.keep(&hold, lease).unwrap();
    // A later end than now, and not from an immediate renewal.
    let later = Instant::now() + lease + 1_000 * MS;
    assert!(comes_true(|| Instant::now() + renewal.remaining() > later));
    assert!(renewal.is_held());
    // Guards, one of them after a wait.
    let owner = Options::new().owner(Owner::new("we").unwrap());
    let locks = Locks::new(&pool).unwrap().with(owner);
    for lock in every_kind(&locks) {
        let lease = lock.acquire(LONG).unwrap();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                Locks::connect(&group.url())
                    .unwrap()
                    .lock("other")
                    .acquire(LONG)
                    .map(drop)
            });
            waiter.join().unwrap().unwrap();
        });
        let (token, _) = lease.detach();
        lock.adopt(&token).unwrap().release().unwrap();
    }
    #[cfg(feature = "lockrun")]
    {
        let mut lockrun = std::process::Command::new(env!("CARGO_BIN_EXE_lockrun"));
        lockrun.args(["--url", &group.url(), "--name", "a", "--", "true"]);
        assert!(lockrun.status().unwrap().success());
    }
    let mut master = group.servers[0].connection().unwrap();
    assert!(calls(&mut master, "role").unwrap() > 0);
    assert!(group.servers[0].is_master());
}

#[test]
fn the_url_gives_the_servers_database_and_password() {
    let group = Sentinels::planned(steady()).unwrap();
    for server in &group.servers {
        let mut conn = server.connection().unwrap();
        tell(&mut conn, "CONFIG SET requirepass s3cr:t");
    }
    let url = group.url().replace("://", "://:s3cr%3At@") + "/7";
    let lease = Locks::connect(&url)
        .unwrap()
        .lock("a")
        .acquire(LONG)
        .unwrap();
    let mut conn = Client::open(format!(
        "redis://:s3cr%3At@127.0.0.1:{}/7",
        group.announced(0)
    ))
    .unwrap()
    .get_connection()
    .unwrap();
    assert!(conn.exists::<_, bool>("lock:a").unwrap());
    lease.release().unwrap();
    let refused = Locks::connect(&group.url())
        .unwrap()
        .lock("a")
        .try_acquire();
    let text = format!("{:#}", anyhow::Error::from(refused.unwrap_err()));
    assert!(
        text.contains("requires a password (NOAUTH)") && !text.contains("s3cr"),
        "{text}"
    );
}

/// None of these can become right, so no wait continues.
#[test]
fn a_url_for_the_wrong_kind_of_server_ends_a_wait_at_once_with_advice() {
    let group = Sentinels::planned(steady()).unwrap();
    let server = format!("127.0.0.1:{}", group.announced(0));
    let sentinel = format!("127.0.0.1:{}", group.watching[0].port());
    let mut admin = group.servers[0].connection().unwrap();
    let wrong_password = group.url().replace("://", "://:wr0ng@");
    for (url, said) in [
        (
            format!("redis://{sentinel}/"),
            [&*sentinel, "is a sentinel: use `redis+sentinel://"],
        ),
        (
            format!("redis+cluster://{sentinel}/"),
            [&*sentinel, "of a sentinel `redis+sentinel://"],
        ),
        (
            format!("redis+cluster://{server}/"),
            [&*server, "the URL of one server is `redis://"],
        ),
        (
            format!("redis+sentinel://{server}/{MASTER}"),
            [
                &*server,
                "is not a sentinel; the URL of a server is `redis://",
            ],
        ),
        (
            format!("{}x", group.url()),
            ["127.0.0.1:", "knows no master of this name"],
        ),
        (
            wrong_password,
            [&*server, "rejects the user or the password (WRONGPASS)"],
        ),
    ] {
        if url.contains("wr0ng") {
            tell(&mut admin, "CONFIG SET requirepass r1ght");
        }
        let asked = Instant::now();
        let locks = Locks::connect(&url).unwrap();
        let error = locks.lock("a").acquire(10_000 * MS).unwrap_err();
        assert!(asked.elapsed() < 5_000 * MS, "{url}: {error}");
        let text = format!("{:#}", anyhow::Error::from(error));
        let all = said.iter().all(|words| text.contains(words));
        assert!(all && !text.contains("wr0ng"), "{url}: {text}");
    }
}

#[test]
fn the_url_or_the_builder_gives_the_sentinels_password() {
    let plan = Plan {
        password: Some("0f-the-sentinels"),
        ..steady()
    };
    let group = Sentinels::planned(plan).unwrap();
    let refused = Pool::connect(&group.url()).unwrap().get();
    let text = format!("{:#}", anyhow::Error::from(refused.unwrap_err()));
    let named = (group.watching.iter())
        .any(|sentinel| text.contains(&format!("127.0.0.1:{} refuses", sentinel.port())));
    assert!(
        text.contains("no sentinel of 3") && text.contains("?sentinel_password=") && named,
        "{text}"
    );
    let url = format!("{}?sentinel_password=0f-the-sentinels", group.url());
    assert!(Pool::connect(&url).unwrap().get().is_ok());
    let clients: Vec<_> = (group.watching.iter())
        .map(|sentinel| format!("redis://:0f-the-sentinels@127.0.0.1:{}/", sentinel.port()))
        .map(|url| Client::open(url).unwrap())
        .collect();
    let server = Client::open("redis://the.master/").unwrap();
    let pool = Pool::builder()
        .build_on_sentinels(&clients, MASTER, &server)
        .unwrap();
    let granted = mutex::try_acquire(
        &mut pool.get().unwrap(),
        "a",
        &Token::random(),
        mutex::End::After(LONG),
    );
    assert!(granted.unwrap().is_some());
    let none = Pool::builder().build_on_sentinels(&[], MASTER, &server);
    assert!(matches!(
        none,
        Err(Error::Invalid {
            argument: "sentinels",
            ..
        })
    ));
    let unnamed = Pool::builder().build_on_sentinels(&clients, "my master", &server);
    assert!(matches!(
        unnamed,
        Err(Error::Invalid {
            argument: "master",
            ..
        })
    ));
}

/// The silent one is asked first: it costs its share of the connect limit, once.
#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn a_frozen_sentinel_costs_one_limit_and_no_deadline() {
    let group = Sentinels::start().unwrap();
    group.watching[0].freeze().unwrap();
    let locks = Locks::connect(&group.url()).unwrap();
    let asked = Instant::now();
    let lease = locks.lock("a").acquire(2_000 * MS).unwrap();
    // A quarter of the two seconds for a connect.
    let first = asked.elapsed();
    assert!(first >= 400 * MS && first < 500 * MS + SLACK, "{first:?}");
    lease.release().unwrap();
    // Now the silent one is known; connections are opened, and the sentinels asked each second.
    let mut slowest = Duration::ZERO;
    let started = Instant::now();
    while started.elapsed() < 2_500 * MS {
        let asked = Instant::now();
        let _held = locks.lock("b").acquire(LONG).unwrap();
        slowest = slowest.max(asked.elapsed());
        thread::sleep(20 * MS);
    }
    // Asking the silent sentinel would cost half a second each time.
    assert!(slowest < 400 * MS, "{slowest:?}");
    group.watching[0].thaw().unwrap();
}

#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn without_sentinels_locks_continue_on_open_connections_only() {
    let mut group = Sentinels::start().unwrap();
    let locks = Locks::connect(&group.url())
        .unwrap()
        .with(Options::new().lease(1_500 * MS));
    let lease = locks.lock("held").acquire(LONG).unwrap();
    for sentinel in &mut group.watching {
        sentinel.kill().unwrap();
    }
    thread::sleep(2_500 * MS);
    assert!(lease.is_held() && lease.verify().is_ok());
    assert!(comes_true(|| locks.lock("another").try_acquire().is_ok()));
    let refused = Locks::connect(&group.url())
        .unwrap()
        .lock("a")
        .acquire(300 * MS);
    let text = format!("{:#}", anyhow::Error::from(refused.unwrap_err()));
    assert!(
        text.contains("no sentinel of 3 has named the master `mymaster`"),
        "{text}"
    );
}
