//! Connections that must not be lent again.

use std::{thread, time::Duration};

use crate::common::{
    Proxy, Server, clients,
    wait::{TOO_SLOW, comes_true, tracked_keys, unless_halted},
};
use leasehold::{Error, Locks, Pool, Token, acquire_lock_with_timeout, recipes::mutex, redis};
use redis::{Client, Commands};

const MS: Duration = Duration::from_millis(1);
const LONG: Duration = Duration::from_secs(20);

fn pool_of_one(url: &str) -> Pool {
    let client = Client::open(url).unwrap();
    let builder = Pool::builder().max_size(1).io_timeout(5_000 * MS);
    builder.build(&client).unwrap()
}

/// redis-rs keeps bytes that it could not parse, and finds them again instead of every
/// later answer.
#[test]
fn after_an_unreadable_answer_the_next_borrower_gets_another_connection() {
    let server = Server::start().unwrap();
    let proxy = Proxy::in_front_of(&server).unwrap();
    // A busy server takes its time to close a connection.
    proxy.at("QUIT").run_each_time(|| thread::sleep(500 * MS));
    for (n, command) in ["SET", "EVALSHA", "WATCH", "HMGET"].into_iter().enumerate() {
        let pool = pool_of_one(&proxy.url());
        let (token, end) = (Token::random(), mutex::End::After(LONG));
        let mut conn = pool.get().unwrap();
        let before = clients::id(&mut conn);
        proxy.at(command).pretend("?what\r\n");
        let name = format!("a{n}");
        let failed = match command {
            "SET" => acquire_lock_with_timeout(&mut conn, &name, Duration::ZERO, LONG).err(),
            "EVALSHA" => mutex::try_acquire(&mut conn, &name, &token, end).err(),
            "WATCH" => leasehold::release_lock(&mut conn, &name, &token).err(),
            _ => {
                let owner = leasehold::Owner::new("me").unwrap();
                leasehold::recipes::reentrant::holds(&mut conn, &name, &owner).err()
            }
        };
        assert!(
            matches!(failed, Some(Error::Unknown { .. } | Error::Redis { .. })),
            "{command} {failed:?}"
        );
        assert!(proxy.happened());
        drop(conn);
        let mut conn = pool.get().unwrap();
        assert_ne!(clients::id(&mut conn), before, "{command}");
        assert!(
            acquire_lock_with_timeout(&mut conn, &name, MS, LONG)
                .unwrap()
                .is_some()
        );
    }
}

#[test]
fn a_guard_does_not_reuse_a_connection_with_unreadable_bytes() {
    let server = Server::start().unwrap();
    let proxy = Proxy::in_front_of(&server).unwrap();
    let pool = pool_of_one(&proxy.url());
    let locks = Locks::new(&pool).unwrap();
    drop(locks.lock("warm").acquire(LONG).unwrap());
    proxy.at("EVALSHA").pretend("?what\r\n");
    assert!(matches!(
        locks.lock("a").try_acquire(),
        Err(Error::Unknown { .. })
    ));
    let lease = locks.lock("b").try_acquire().unwrap().unwrap();
    lease.release().unwrap();
}

/// A server without the script truncates its echo in the middle of a character.
#[test]
fn a_refusal_cut_within_a_character_spoils_no_connection() {
    for pad in 0..3 {
        let renamed = [
            "--rename-command",
            "EVALSHA",
            "",
            "--rename-command",
            "EVAL",
            "",
        ];
        let server = Server::start_with(&renamed).unwrap();
        let pool = pool_of_one(&server.url());
        let name = format!("{}{}", "x".repeat(pad), "名".repeat(60));
        let mut conn = pool.get().unwrap();
        let end = mutex::End::After(LONG);
        assert!(mutex::try_acquire(&mut conn, &name, &Token::random(), end).is_err());
        drop(conn);
        let mut conn = pool.get().unwrap();
        let token = leasehold::acquire_lock(&mut conn, "endless", Duration::ZERO).unwrap();
        assert!(leasehold::release_lock(&mut conn, "endless", &token.unwrap()).unwrap());
    }
}

/// redis-rs skips a late reply, but only after it has waited for it.
#[test]
fn a_guards_connection_with_a_pending_reply_is_not_lent_again() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let proxy = Proxy::in_front_of(&server).unwrap();
        let pool = pool_of_one(&proxy.url());
        let locks = Locks::new(&pool).unwrap();
        drop(locks.lock("warm").acquire(LONG).unwrap());
        let before = clients::id(&mut pool.get().unwrap());
        // The release may wait for less than the pool's time-out, so the loan is short.
        let options = leasehold::Options::new().drop_timeout(100 * MS);
        let lease = locks.lock("a").with(options).acquire(LONG).unwrap();
        let mut conn = server.connection().unwrap();
        // The watchdog has read it on its own connection: the next other `EVALSHA` is the release.
        assert!(comes_true(|| tracked_keys(&mut conn).unwrap() > 0));
        proxy.leave_alone(&clients::told_of_changes(&mut conn));
        proxy.at("EVALSHA").swallow();
        drop(lease);
        assert!(proxy.happened(), "{TOO_SLOW}");
        assert_ne!(clients::id(&mut pool.get().unwrap()), before);
        assert!(comes_true(|| !conn.exists::<_, bool>("lock:a").unwrap()));
    });
}
