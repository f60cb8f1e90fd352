//! Waiters ask the server all the time.
//!
//! The book tries again every millisecond: one waiter sends a thousand commands a second, and a
//! hundred waiters saturate a server. And the first to ask after a release gets the lock, not the
//! one that has waited longest.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread::scope,
    time::Instant,
};

use leasehold::{Events, Lock, Locks, Options, event::Acquired};

use crate::{prelude::*, shared::history::Recorder};

pub(crate) const TRAP: Trap = Trap {
    name: "polling",
    title: "a waiter asks the server up to a thousand times a second",
    source: "the book, 6.2.3: time.sleep(.001)",
    classic,
    ours,
    ..Trap::OF_A_AND_B
};

fn classic(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let (mut a, mut b) = (redis.client()?, redis.client()?);
    scene.send("A", &mut a, "SET lock:trap A NX PX 1000")?;
    let (began, mut attempts) = (Instant::now(), 0_u32);
    while began.elapsed() < secs(5) {
        attempts += 1;
        let mut set = redis::cmd("SET");
        if set
            .arg("lock:trap")
            .arg("B")
            .arg(&["NX", "PX", "10000"])
            .query(&mut b)?
        {
            break;
        }
        sleep(millis(1));
    }
    scene.tell(
        "B",
        &format!("SET lock:trap B NX PX 10000\nOK, at attempt {attempts}"),
    )?;
    scene.goes_wrong(
        attempts > 5,
        "B sends command after command, and all but the last are refused.",
    )
}

/// The attempts that all acquisitions needed.
#[derive(Default)]
struct Attempts(AtomicU32);

impl Events for Attempts {
    fn acquired(&self, acquired: &Acquired<'_>) {
        self.0.fetch_add(acquired.attempts(), Ordering::Relaxed);
    }
}

fn ours(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let attempts = Arc::new(Attempts::default());
    let locks = Locks::new(&redis.pool)?.with(Options::new().events(attempts.clone()));
    let lock = locks.lock(NAME);
    let recorder = scene.recorder().cloned();
    let held = hold(&lock, "A", recorder.as_ref())?;
    scene.knows(held.token(), "A");
    scene.tell("A", "Lock::acquire\ngranted")?;
    let done = scope(|threads| -> Result<()> {
        let waiters = ["B1", "B2", "B3"].map(|name| {
            let (lock, recorder) = (&lock, recorder.as_ref());
            let waiter = threads.spawn(move || -> Result<()> {
                let held = hold(lock, name, recorder)?;
                sleep(millis(100));
                give_back(held, name, recorder)
            });
            // The waiters must arrive in this order.
            while lock.inspect().is_ok_and(|found| found.waiting_here() == 0)
                && !waiter.is_finished()
            {}
            sleep(millis(40));
            waiter
        });
        scene.tell("A", "Lease::release")?;
        give_back(held, "A", recorder.as_ref())?;
        for waiter in waiters {
            waiter.join().ok().context("a waiter fails")??;
        }
        Ok(())
    });
    done?;
    let asked = attempts.0.load(Ordering::Relaxed);
    scene.tell(
        "B",
        &format!("three threads held it in turn; {asked} attempts, A's included"),
    )?;
    scene.goes_right(
        asked <= 16,
        "A waiter asks once; the server tells it when to ask again.",
    )
}

fn hold(lock: &Lock, name: &str, recorder: Option<&Recorder>) -> Result<leasehold::Lease> {
    let tell = |happened| recorder.map_or(Ok(()), |recorder| recorder.record(name, happened));
    tell(Happened::Waits)?;
    let lease = lock.acquire(secs(10))?;
    tell(Happened::acquired(10_000))?;
    Ok(lease)
}

fn give_back(lease: leasehold::Lease, name: &str, recorder: Option<&Recorder>) -> Result<()> {
    if let Some(recorder) = recorder {
        recorder.record(name, Happened::Released)?;
    }
    Ok(lease.release()?)
}
