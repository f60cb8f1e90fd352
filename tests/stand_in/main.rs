//! The stand-in of `leasehold::testing`: it behaves like a real server, and has features of its
//! own.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "../common/mod.rs"]
mod common;

mod adopting;
mod alone;
mod both;
mod commits;
mod data;
mod random;
mod run;
mod set_guards;
mod sets;
mod steps;
mod unanswered;
mod world;
