//! `Locks`, `Lock` and `Lease` on real servers.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "../common/mod.rs"]
mod common;

mod asking;
mod asking_together;
mod attacks;
mod cancelling;
mod commits;
mod connections;
mod costs;
mod crowds;
mod early_clock;
mod errors;
mod events;
mod failover;
mod faults;
mod foreign_keys;
mod given_back;
mod hand_over;
mod holding;
mod inspecting;
mod intents;
mod late;
mod long;
mod loss;
mod lost_answers;
mod merging;
mod once;
mod outstanding;
mod probing;
mod processes;
mod refused;
mod remains;
mod running;
mod semaphores;
mod set_failures;
mod sets;
mod shared_keys;
mod too_late;
#[cfg(feature = "tracing")]
mod tracing;
mod transactions;
mod trickles;
mod unfenced;
mod untold;
mod verdicts;
mod wait_hooks;
mod waiting;
mod wake_ups;

use std::{env, time::Duration};

use leasehold::{Locks, Options, Pool};

/// The defaults. `LEASEHOLD_HAND_OVER=4` adds hand-over, four times for 20 ms: every test must pass
/// with it too.
fn options() -> Options {
    match env::var("LEASEHOLD_HAND_OVER") {
        Ok(turns) => {
            let longest = Duration::from_millis(20);
            Options::new().hand_over(turns.parse().unwrap(), longest)
        }
        Err(_) => Options::new(),
    }
}

fn plain(pool: &Pool) -> Locks {
    Locks::new(pool).unwrap()
}

fn plainly(url: &str) -> Locks {
    plain(&Pool::connect(url).unwrap())
}

fn connect(url: &str) -> Locks {
    plainly(url).with(options())
}

fn sharing(pool: &Pool) -> Locks {
    plain(pool).with(options())
}
