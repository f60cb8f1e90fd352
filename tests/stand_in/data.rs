//! The reads and writes of jobs, on a real server and on the stand-in.

use std::{cell::Cell, time::Duration};

use leasehold::{
    Error, Options, Result, WatchedConnection, acquire_lock, acquire_lock_with_timeout,
    recipes::mutex::{self, End},
    testing::{Action, Failure, StandIn},
    transaction_with_lock,
};
use redis::{Commands, Connection, Value};

use crate::{
    common::{LONG, MS, hold::every_kind},
    world::{World, on_both, told},
};

/// Parts of commands on two keys; every combination is valid or refused.
const COMMANDS: [&str; 40] = [
    "GET k",
    "SET k 5",
    "SET k 7 EX 100",
    "SET k 8 NX",
    "SET k 9 XX",
    "SET k x",
    "SETNX k 1",
    "SETEX k 100 1",
    "PSETEX k 100000 1",
    "INCR k",
    "DECR k",
    "INCRBY k 5",
    "DECRBY k 2",
    "INCRBY k x",
    "INCRBY k 9223372036854775807",
    "EXISTS k",
    "EXISTS k h k",
    "DEL k",
    "DEL h k",
    "UNLINK h",
    "MGET k h none",
    "HGET h a",
    "HSET h a 1",
    "HSET h a 2 b 3",
    "HMSET h c 4",
    "HMGET h a b none",
    "HGETALL h",
    "HEXISTS h a",
    "HLEN h",
    "HINCRBY h a 5",
    "HINCRBY h b -1",
    "HDEL h a",
    "HDEL h a b none",
    "GET h",
    "HGET k a",
    "INCR h",
    "SET h 1",
    "EXPIRE k 100",
    "EXPIRE none 100",
    "HINCRBY k a 1",
];

fn ask(conn: &mut Connection, command: &str) -> String {
    let mut words = command.split(' ');
    let mut asked = redis::cmd(words.next().unwrap());
    words.for_each(|word| _ = asked.arg(word));
    match asked.query::<Value>(conn) {
        Ok(Value::Array(mut pairs)) if command.starts_with("HGETALL") => {
            pairs.sort_by_key(|value| format!("{value:?}"));
            format!("{pairs:?}")
        }
        Ok(value) => format!("{value:?}"),
        Err(error) => format!("{:?}", error.code()),
    }
}

#[test]
fn commands_answer_as_on_a_server() {
    let seed = fastrand::u64(..);
    on_both(|world| {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut conn = world.pool().get().unwrap();
        let steps = (0..500).map(|_| {
            let command = COMMANDS[random.usize(..COMMANDS.len())];
            format!("seed {seed}: {command}: {}", ask(&mut conn, command))
        });
        steps.collect::<Vec<_>>()
    });
}

#[test]
fn keys_with_an_expiry_disappear() {
    on_both(|world| {
        let mut conn = world.pool().get().unwrap();
        let mut asked: Vec<_> = [
            "SET k 1 PX 1000",
            "SET kept 1",
            "PEXPIRE kept 1000",
            "INCR k",
        ]
        .map(|command| ask(&mut conn, command))
        .into();
        asked.push(ask(&mut conn, "SET kept 1"));
        let ends = ["PTTL k", "TTL kept", "TTL none"].map(|command| ask(&mut conn, command));
        assert!(
            ends[0] != "int(-1)" && ends[1] == "int(-1)" && ends[2] == "int(-2)",
            "{ends:?}"
        );
        world.pass(1_100 * MS);
        asked.extend(["GET k", "GET kept"].map(|command| ask(&mut conn, command)));
        asked
    });
}

#[test]
fn a_lock_without_an_end_gets_one_from_an_attempt_of_another_alone() {
    on_both(|world| {
        let mut conn = world.pool().get().unwrap();
        let token = acquire_lock(&mut conn, "a", LONG).unwrap().unwrap();
        mutex::try_acquire(&mut conn, "a", &token, End::After(LONG)).unwrap();
        let without = ask(&mut conn, "PTTL lock:a");
        let other = acquire_lock_with_timeout(&mut conn, "a", Duration::ZERO, LONG).unwrap();
        let has_end = ask(&mut conn, "PTTL lock:a") != "int(-1)";
        (without, other.is_none(), has_end)
    });
}

/// Moves 5, if there is enough.
fn pay(conn: &mut WatchedConnection<'_>, pipe: &mut redis::Pipeline) -> Result<bool> {
    let funds: Option<i64> = conn.get("wallet:7")?;
    if funds.unwrap_or(0) < 5 {
        return Ok(false);
    }
    pipe.decr("wallet:7", 5).incr("wallet:8", 5);
    Ok(true)
}

fn wallets(world: &dyn World) -> [Option<i64>; 2] {
    let mut conn = world.pool().get().unwrap();
    conn.mget(&["wallet:7", "wallet:8"]).unwrap()
}

fn fill(world: &dyn World, funds: i64) {
    let mut conn = world.pool().get().unwrap();
    let () = conn.set("wallet:7", funds).unwrap();
}

#[test]
fn a_transaction_reads_and_writes_while_the_lock_is_held() {
    on_both(|world| {
        every_kind(&world.locks()).map(|lock| {
            fill(world, 7);
            let lease = lock.acquire(LONG).unwrap();
            let paid = [(); 2].map(|()| lease.transaction(&["wallet:7"], pay).unwrap());
            let failed = told(&lease.transaction(&[], |conn, pipe| {
                pay(conn, pipe)?;
                Err::<(), _>(Error::other(anyhow::anyhow!("no")))
            }));
            let refused =
                told(&lease.transaction(&[], |conn, _| Ok(redis::cmd("UNWATCH").exec(conn)?)));
            let of_a_kind = told(&lease.transaction(&[], |conn, _| {
                Ok(conn.hget::<_, _, Option<i64>>("wallet:7", "a")?)
            }));
            let partly = told(&lease.commit(|pipe| _ = pipe.set("a", 1).hset("wallet:7", "a", 1)));
            world.steal(&lock);
            let lost = told(&lease.transaction(&["wallet:7"], pay));
            (
                paid,
                failed,
                refused,
                of_a_kind,
                partly,
                lost,
                wallets(world),
            )
        })
    });
}

#[test]
fn a_changed_key_restarts_the_transaction() {
    on_both(|world| {
        fill(world, 7);
        let locks = world.locks();
        let lease = locks.lock("a").acquire(LONG).unwrap();
        let attempts = Cell::new(0);
        let changing = |keys: &[&str]| {
            attempts.set(0);
            fill(world, 7);
            let paid = lease.transaction(keys, |conn, pipe| {
                attempts.set(attempts.get() + 1);
                let paid = pay(conn, pipe)?;
                if attempts.get() == 1 {
                    fill(world, 3);
                }
                Ok(paid)
            });
            (paid.unwrap(), attempts.get(), wallets(world))
        };
        (changing(&["wallet:7"]), changing(&[]))
    });
}

#[test]
fn a_watched_key_that_expires_restarts_the_transaction() {
    let stand_in = StandIn::new();
    let lock = stand_in.locks().unwrap().lock("a");
    // A renewal would restart it too.
    let lock = lock.with(Options::new().renewal(false));
    let lease = lock.acquire(LONG).unwrap();
    let mut conn = stand_in.pool().unwrap().get().unwrap();
    let () = conn.pset_ex("offer", 1, 1_000).unwrap();
    let sold = lease.transaction(&["offer"], |conn, pipe| {
        let offer: Option<u32> = conn.get("offer")?;
        if offer.is_some() {
            stand_in.advance(2_000 * MS);
            pipe.set("sold", 1);
        }
        Ok(offer.is_some())
    });
    assert!(!sold.unwrap(), "sold although the offer had ended");
}

#[test]
fn the_functions_of_the_book_take_its_connections() {
    on_both(|world| {
        fill(world, 12);
        let (locks, pool) = (world.locks(), world.pool());
        let mut conn = pool.get().unwrap();
        let mut with_lock = |wait| {
            let keys = ["wallet:7"];
            transaction_with_lock(&mut conn, "a", wait, LONG, &keys, pay).unwrap()
        };
        let paid = with_lock(MS);
        let free = !locks.lock("a").inspect().unwrap().is_held();
        let held = locks.lock("a").acquire(LONG).unwrap();
        let busy = with_lock(20 * MS);
        held.release().unwrap();
        let token = acquire_lock_with_timeout(&mut conn, "a", MS, LONG).unwrap();
        let token = token.unwrap();
        let meanwhile = told(&locks.lock("a").acquire(MS));
        let released = [(); 2].map(|()| leasehold::release_lock(&mut conn, "a", &token).unwrap());
        // Another program's value is not a lock of ours.
        let () = conn.set("lock:other", "x").unwrap();
        let other = acquire_lock_with_timeout(&mut conn, "other", MS, LONG).unwrap();
        let seen = (free, busy, meanwhile, other);
        (paid, seen, released, wallets(world))
    });
}

#[test]
fn held_locks_are_found_beside_the_data() {
    on_both(|world| {
        fill(world, 7);
        let locks = world.locks();
        let names = ["a", "job:a", "job:b", "job*", "job:c"];
        let held = names.map(|name| locks.lock(name).acquire(LONG).unwrap());
        let [.., last] = held.each_ref();
        let _ = last
            .commit_once("id", LONG, |pipe| _ = pipe.set("job:data", 1))
            .unwrap();
        assert!(world.expire("job:b"));
        ["", "job", "job:", "job*", "none"].map(|begin| {
            let found = locks.held(begin).unwrap();
            let names = found.iter().map(|(name, _)| name.to_owned());
            names.collect::<Vec<_>>()
        })
    });
}

#[test]
fn a_read_is_retried_once_and_then_an_error() {
    let stand_in = StandIn::new();
    let lease = stand_in.locks().unwrap().lock("a").acquire(LONG).unwrap();
    let pay = || told(&lease.transaction(&[], pay));
    stand_in.fail_next(Action::Read, Failure::LostRequest);
    assert_eq!(pay(), "ok");
    stand_in.fail_next(Action::Read, Failure::Refused("NOPERM not you"));
    assert_eq!(pay(), "another error");
    stand_in.fail(|action, _| (action == Action::Read).then_some(Failure::LostReply));
    assert_eq!(pay(), "another error");
    stand_in.fail(|_, _| None);
    assert_eq!(pay(), "ok");
    lease.release().unwrap();
}

#[test]
fn every_request_for_a_lock_may_fail_and_no_other() {
    let stand_in = StandIn::new();
    let locks = stand_in.locks().unwrap();
    let leases = ["a", "b"].map(|name| locks.lock(name).acquire(LONG).unwrap());
    for (failure, verified) in [
        (Failure::Refused("NOPERM not you"), "another error"),
        (Failure::LostRequest, "unknown"),
        (Failure::LostReply, "unknown"),
    ] {
        stand_in.fail(move |_, lock| (lock == "a").then_some(failure));
        let found = leases.each_ref().map(|lease| told(&lease.verify()));
        assert_eq!(found, [verified, "ok"], "{failure:?}");
    }
    // Also renewals in the background.
    stand_in.fail(|_, lock| (lock == "a").then_some(Failure::LostRequest));
    (0..6).for_each(|_| stand_in.advance(LONG / 10));
    assert_eq!(
        leases.each_ref().map(leasehold::Lease::is_held),
        [false, true]
    );
}

#[test]
fn a_connection_breaks_with_the_server_and_a_new_one_finds_the_data() {
    let stand_in = StandIn::new();
    fill(&stand_in, 7);
    let lease = stand_in.locks().unwrap().lock("a").acquire(LONG).unwrap();
    let mut conn = stand_in.pool().unwrap().get().unwrap();
    stand_in.disconnect();
    assert!(conn.get::<_, i64>("wallet:7").is_err());
    drop(conn);
    assert!(stand_in.pool().unwrap().get().is_err());
    assert_eq!(told(&lease.transaction(&[], pay)), "no connection");
    stand_in.reconnect();
    assert!(lease.transaction(&[], pay).unwrap());
    assert_eq!(wallets(&stand_in), [Some(2), Some(5)]);
}
