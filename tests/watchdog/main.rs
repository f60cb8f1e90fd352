//! The watchdog on real servers: renewals, notifications, and faults.
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
