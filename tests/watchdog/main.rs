//! The watchdog on real servers: what it keeps, what it tells, what it survives.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "../common/mod.rs"]
mod common;

mod callbacks;
mod faults;
mod how_far;
mod keeping;
mod kinds;
mod outage;
mod scale;
mod stop;
