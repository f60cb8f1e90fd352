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
mod contexts;
mod costs;
mod crowds;
mod early_clock;
mod errors;
mod events;
mod failover;
mod faults;
mod foreign_keys;
mod freed_together;
mod given_back;
mod hand_over;
mod holding;
mod inspecting;
mod intents;
mod late;
mod long;
mod loss;
mod merging;
mod once;
mod outstanding;
mod probing;
mod processes;
mod refused;
mod remains;
mod running;
mod second_events;
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

use common::locks::{connect, connect_with, options};

/// A server, locks on it, and another client's connection.
fn bench() -> (common::Server, leasehold::Locks, redis::Connection) {
    let server = common::Server::start().unwrap();
    let locks = connect(&server.url());
    let conn = server.connection().unwrap();
    (server, locks, conn)
}
