//! Every function, at every command it sends: whatever goes wrong there, the answer is right or unknown, nothing is done by
//! half, and the next call works.
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
