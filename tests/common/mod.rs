//! What the tests share: real servers of their own.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test file uses a part of it"
)]

pub mod server;

pub use server::Server;
