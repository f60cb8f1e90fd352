//! Shared by the tests: private servers, and a proxy that counts commands and injects faults.
#![allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "each test file uses a part of it"
)]

pub mod access_list;
pub mod article;
pub mod bench;
pub mod book;
pub mod book_semaphore;
#[cfg(unix)]
pub mod child;
pub mod clients;
pub mod clock;
pub mod cluster;
pub mod document;
pub mod examples;
pub mod fake;
pub mod faults;
pub mod gate;
pub mod hash_world;
pub mod hold;
pub mod kinds;
pub mod locks;
pub mod market;
pub mod monitor;
pub mod proxy;
pub mod resharding;
pub mod sentinels;
pub mod server;
pub mod state;
pub mod wait;
pub mod world;

pub use bench::{LONG, MS, start, tell};
pub use cluster::Cluster;
pub use document::Document;
pub use examples::example;
pub use fake::Fake;
pub use gate::Gate;
pub use proxy::Proxy;
pub use resharding::Resharding;
pub use sentinels::Sentinels;
pub use server::Server;
pub use state::State;
pub use wait::SLACK;
