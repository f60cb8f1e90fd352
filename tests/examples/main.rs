//! The examples of the package `examples/short`. `cargo test` builds them first; before `cargo test
//! --test examples`, run `cargo build --examples`.
#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "../common/mod.rs"]
mod common;

mod at_hand;
mod delayed_tasks;
mod leader;
mod metrics;
mod once_a_night;
mod others;
mod partner_api;
mod quick_start;
#[cfg(feature = "tracing")]
mod tracing_events;
mod transfer;
mod wallet;
