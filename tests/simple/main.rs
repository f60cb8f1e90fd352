//! The book's plain functions on real servers: `acquire_lock`, `acquire_lock_with_timeout`,
//! `release_lock`, `commit_while_held`, and the semaphores.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "../common/mod.rs"]
mod common;

mod acquire;
mod bad_input;
mod commit;
mod end;
mod exclusion;
mod release;
mod replies;
mod semaphore;
mod several;
mod wait;
