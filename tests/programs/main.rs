//! Whole programs: the examples as a user runs them, and programs of other languages on the same locks. `cargo test` builds
//! the examples first; before `cargo test --test programs`, `cargo build --examples` does.
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
mod problems;
