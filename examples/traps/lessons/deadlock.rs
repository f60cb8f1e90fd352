//! Two transfers wait for each other.
//!
//! A moves money from account 1 to account 2, and B from 2 to 1. Each has locked the account that
//! it takes money from and waits for the other account. Each renews its lock, so no lease ends.

use std::thread::scope;

use leasehold::{LockSet, Locks};

use crate::prelude::*;

pub(crate) const TRAP: Trap = Trap {
    name: "deadlock",
    title: "two transfers lock two accounts in opposite orders, and wait for each other",
    source: "transfers that lock the payer, then the payee, and renew their locks",
    actors: &["A, from 1 to 2", "B, from 2 to 1"],
    keys: &[ONE, TWO],
    classic,
    ours,
};

const ONE: &str = "lock:account:1";
const TWO: &str = "lock:account:2";
/// The time limit of both in milliseconds: longer than their leases of 1,000 ms.
const PATIENCE: u64 = 1_200;

fn classic(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let (mut a, mut b) = (redis.client()?, redis.client()?);
    let [of_a, of_b] = TRAP.actors else {
        anyhow::bail!("two actors");
    };
    scene.send(of_a, &mut a, "SET lock:account:1 A NX PX 1000")?;
    scene.send(of_b, &mut b, "SET lock:account:2 B NX PX 1000")?;
    let mut refused = 0;
    for moment in (0..=PATIENCE).step_by(400) {
        scene.wait_until(moment);
        if moment > 0 {
            scene.send(of_a, &mut a, "PEXPIRE lock:account:1 1000")?;
            scene.send(of_b, &mut b, "PEXPIRE lock:account:2 1000")?;
        }
        let to_2 = scene.send(of_a, &mut a, "SET lock:account:2 A NX PX 1000")?;
        let to_1 = scene.send(of_b, &mut b, "SET lock:account:1 B NX PX 1000")?;
        refused += u32::from(to_2.is_nil() && to_1.is_nil());
    }
    scene.goes_wrong(
        refused == 4,
        "Each keeps what the other wants, until both give up.",
    )
}

fn ours(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let (mut conn, locks) = (redis.client()?, Locks::new(&redis.pool)?);
    let [of_a, of_b] = TRAP.actors else {
        anyhow::bail!("two actors");
    };
    let single = locks.lock("account:1").acquire(secs(5))?;
    scene.knows(single.token(), "A");
    scene.tell(of_a, "another thread: lock(1)\ngranted")?;
    let [a, b] = [
        locks.all_of(["account:1", "account:2"]),
        Locks::new(&redis.pool)?.all_of(["account:2", "account:1"]),
    ];
    let has_nothing = scope(|threads| -> Result<_> {
        let transfers = [&a, &b].map(|set| threads.spawn(|| transfer(set)));
        scene.wait_until(300);
        let wait = transfers.iter().all(|transfer| !transfer.is_finished());
        scene.tell(of_a, "all_of([1, 2])\nwaits for 1")?;
        scene.tell(of_b, "all_of([2, 1])\nwaits for 1, holds nothing")?;
        let has_one = redis::cmd("EXISTS").arg(TWO).query::<bool>(&mut conn)?;
        single.release()?;
        for transfer in transfers {
            transfer.join().ok().context("a transfer fails")??;
        }
        Ok(wait && !has_one)
    })?;
    scene.tell(of_a, "granted, and released")?;
    scene.tell(of_b, "granted, and released")?;
    scene.goes_right(
        has_nothing,
        "Both lock in key order, so the waiting one holds nothing that the other wants.",
    )
}

fn transfer(set: &LockSet) -> leasehold::Result<()> {
    let leases = set.acquire(secs(5))?;
    sleep(millis(20));
    leases.release()
}
