//! The example `lockrun` as a user runs it. `cargo test` builds it first; before `cargo test --test lockrun`,
//! `cargo build --example lockrun` does.
#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "../common/mod.rs"]
mod common;

mod causes;
mod ending;
mod interrupted;
mod operator;
mod outage;
mod tool;
mod turns;
