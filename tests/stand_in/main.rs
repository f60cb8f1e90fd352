//! The stand-in of `leasehold::testing`: the same behaviours as a real server's, and what only it can do.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "../common/mod.rs"]
mod common;

mod alone;
mod both;
mod commits;
mod data;
mod random;
mod run;
mod sets;
mod steps;
mod world;
