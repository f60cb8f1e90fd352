//! `Locks`, `Lock` and `Lease` on real servers.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "../common/mod.rs"]
mod common;

mod crowds;
mod faults;
mod hand_over;
mod holding;
mod inspecting;
mod late;
mod long;
mod loss;
mod processes;
mod waiting;
