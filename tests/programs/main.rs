//! Programs as a user runs them: lockrun, the long examples, and other languages' programs on the
//! same locks. `cargo test` builds the examples first; before `cargo test --test programs`, run
//! `cargo build --examples`.
#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "../common/mod.rs"]
mod common;

mod interop;
mod lockrun;
mod market;
mod pictures;
mod problems;
mod traps;
