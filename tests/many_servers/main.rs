//! Locks where there is more than one server: Sentinel, replicas, Redis Cluster.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "../common/mod.rs"]
mod common;

mod groups;
mod plain_url;
