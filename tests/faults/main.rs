//! A fault at every command of every function: the result is right or unknown, no change is
//! partial, and the next call works.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

mod between;
mod cuts;
mod half_written;
mod refusals;
mod server_states;
mod signals;
mod trial;
mod waiting;
