//! Programs as a user runs them: lockrun, the examples, and other languages' programs on the same
//! locks. `cargo test` builds the examples first; before `cargo test --test programs`, run `cargo
//! build --examples`.
#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "../common/mod.rs"]
mod common;

mod delayed_tasks;
mod interop;
mod leader;
// Absent only from the packaged crate.
#[cfg(feature = "lockrun")]
mod lockrun;
mod market;
mod metrics;
mod once_a_night;
mod others;
mod partner_api;
mod pictures;
mod problems;
#[cfg(feature = "tracing")]
mod tracing_events;
mod transfer;
mod traps;
mod wallet;
