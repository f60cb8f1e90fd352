//! `Pool` on real servers.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "../common/mod.rs"]
mod common;

mod faults;
mod finished;
#[cfg(unix)]
mod fork;
mod lending;
mod no_threads;
mod restart;
mod texts;
