//! A timer renews the lock of a holder that hangs.
//!
//! The renewing thread lives on while the work is stuck in an endless loop, so the lease never
//! ends.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread::scope,
};

use leasehold::{Locks, Options};

use crate::prelude::*;

pub(crate) const TRAP: Trap = Trap {
    name: "hung-holder",
    title: "a timer renews the lock of a hung holder forever",
    source: "the notes, automatic renewal by a timer",
    classic,
    ours,
    ..Trap::OF_A_AND_B
};

fn classic(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let (mut a, mut b, mut timer) = (redis.client()?, redis.client()?, redis.client()?);
    scene.send("A", &mut a, "SET lock:trap A NX PX 2000")?;
    scene.tell(
        "A",
        "hangs; its timer sends PEXPIRE lock:trap 2000 every 50 ms",
    )?;
    let over = AtomicBool::new(false);
    let got = scope(|threads| {
        threads.spawn(|| {
            let mut renew = redis::cmd("PEXPIRE");
            renew.arg("lock:trap").arg(2_000);
            while !over.load(Ordering::Relaxed) && renew.exec(&mut timer).is_ok() {
                sleep(millis(50));
            }
        });
        scene.wait_until(4_000);
        let got = scene.send("B", &mut b, "SET lock:trap B NX PX 2000");
        over.store(true, Ordering::Relaxed);
        got
    })?;
    scene.goes_wrong(
        got.is_nil(),
        "Two leases later A still has the lock, and does nothing.",
    )
}

fn ours(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let options = Options::new().lease(millis(300)).max_hold(millis(600));
    let locks = Locks::new(&redis.pool)?;
    let hung = locks.lock(NAME).with(options).acquire(secs(1))?;
    scene.knows(hung.token(), "A");
    scene.tell(
        "A",
        "Lock::acquire\n(lease 300 ms, max_hold 600 ms)\nhangs; the lease is renewed",
    )?;
    let next = locks.lock(NAME).acquire(secs(5))?;
    scene.knows(next.token(), "B");
    scene.tell("B", "Lock::acquire\ngranted")?;
    let told = hung.check().is_err();
    next.release()?;
    scene.goes_right(told, "No hold lasts longer than max_hold, and A is told.")
}
