//! Locks on more than one server: Sentinel, replicas, Redis Cluster.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says how long it took"
)]

#[path = "../common/mod.rs"]
mod common;

mod clusters;
mod documents;
mod failovers;
mod following;
mod groups;
mod history;
mod logins;
mod long;
mod lost_renewals;
mod lying;
mod lying_nodes;
mod nodes;
mod open_slots;
mod plain_on_nodes;
mod plain_url;
mod probing;
mod replicas;
mod sentinels;
mod silent_nodes;
mod watchdogs;

use std::time::Duration;

use leasehold::Locks;

fn connect(url: &str) -> Locks {
    Locks::connect(url).unwrap()
}

/// A lease longer than a failover.
const LEASE: Duration = Duration::from_secs(10);
