//! Blocking Redis locks after *Redis in Action*: the book's functions, made correct, on a pooled
//! connection.
//!
//! A Redis lock is a **lease**: it ends at a time, whatever its holder believes. What each lock
//! promises, what that rests on and what breaks it stands in `docs/guarantees.md` in the
//! repository.
//!
//! # A job that must not run twice
//!
//! ```no_run
#![doc = include_str!("../examples/quick_start.rs")]
//! ```
//!
//! # Contents
//!
//! | you want to | take |
//! |---|---|
//! | keep a job from running twice | [`Locks`]: a [`Lock`] is acquired, a [`Lease`] held |
//! | do a job once a night, on whichever host | [`Lock::run_once`], [`Lock::last_run`] |
//! | enter a lock again, or let in many readers or one writer | [`Locks::reentrant`], [`Locks::read`], [`Locks::write`] |
//! | know that a lock is lost | [`Lease::check`], [`LostSignal`] |
//! | say how locks are held | [`Options`] |
//! | call off a wait, at Ctrl-C or from another thread | [`Cancel`] |
//! | hand a lock that is held to another process | [`Lease::detach`] |
//! | see who has a lock, and take it away | [`Lock::inspect`], [`Lock::force_release`] |
//! | count what happens, or log it | [`Events`]; to `tracing`: the example `tracing_events` |
//! | run a command under a lock | the program `lockrun`: `docs/lockrun.md` |
//! | test code that takes locks without a server | feature `testing`: a stand-in that gives [`Locks`] |
//! | use the book's functions | [`acquire_lock_with_timeout`], [`release_lock`] |
//! | write only while the lock is still yours | [`Lease::commit`], [`Lease::commit_and_release`]; in the book's style [`commit_while_held`] |
//! | read, decide and write while the lock is yours | [`Lease::transaction`]; in the book's style [`transaction_while_held`], and with a lock of its own [`transaction_with_lock`] |
//! | run something under a lock, in the book's style | [`with_lock`]; with a lease that renews itself [`Lock::run`] |
//! | repeat a write that got no answer, and not double it | [`Lease::commit_once`] |
//! | port the book's first lock, which has no end | [`acquire_lock`] |
//! | port the book's market, beside its Python or Java programs | [`list_item_with_market_lock`], [`purchase_item_with_market_lock`] with the [`MarketLock`] of theirs |
//! | trade in a market of your own | [`list_item_with_lock`], [`purchase_item_with_lock`]; the other ways in [`market`] |
//! | get a connection that times out and comes back clean | [`Pool`]; on a Redis Cluster, with the feature `cluster`, `Nodes` |
//! | know what went wrong, and what to do about it | [`Error`] |
//! | hold a lock by one script or one `SET`, for a length or until a moment | [`recipes::mutex`], [`End::At`](recipes::mutex::End::At) |
//! | the same for the other kinds, as plain functions | [`recipes::reentrant`], [`recipes::read_write`] |
//! | have the resource refuse a holder that is late | [`FencingToken`], from the grant of these three |
//! | keep alive what a plain function has acquired | [`Watchdog`] |
//! | learn why locks are hard, in ten lessons | `docs/course.md` |
//! | read how a lock works on the server | [`recipes`], `docs/recipes.md`, the scripts below `src/recipes/` |
//! | look up a word | `docs/glossary.md` |
//!
//! # Connections
//!
//! The functions take a `&mut redis::Connection`: a `&mut` of what [`Pool::get`] lends, of what a
//! `r2d2::Pool<redis::Client>` of your own lends, or a plain connection. They refuse a bare [`redis::Client`], which opens
//! a connection for each command, so that a `WATCH` would protect nothing:
//!
//! ```compile_fail
//! # use std::time::Duration;
//! let mut client = leasehold::redis::Client::open("redis://127.0.0.1/").unwrap();
//! leasehold::acquire_lock(&mut client, "report", Duration::from_secs(1));
//! ```
//!
//! # Good to know
//!
//! - **Async code**: every call blocks. Acquire, work and release inside one `tokio::task::spawn_blocking`; the end of a lease
//!   that is dropped elsewhere would block a thread of the runtime.
//! - **Platforms**: tested on Linux. Nothing in the library is particular to it; the program `lockrun` is for Unix.
//! - **Features of redis**: [`redis`] and [`r2d2`] are handed on whole, redis with its features `r2d2` and `script` only. For
//!   others (`json`, `streams`, `acl`, …) name redis 1 among your own dependencies with these features: it is the same crate.
// To change the crate: docs/design.md, "Where things are", says what each folder below is for. The header of a folder's first file says
// who calls it, which of its files does what, and in which order its locks are taken.
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

mod cancel;
#[cfg(feature = "cluster")]
mod cluster;
mod error;
pub mod event;
mod locks;
pub mod market;
mod name;
mod pool;
pub mod recipes;
mod renewing;
mod server;
#[cfg(feature = "testing")]
pub mod testing;
mod time;
mod token;
mod waiting;
mod watchdog;
mod wire;

// `cargo test --doc` compiles the example on this page.
#[cfg(doctest)]
#[doc = include_str!("../docs/recipes.md")]
struct Page;

pub use cancel::Cancel;
#[cfg(feature = "cluster")]
pub use cluster::{Nodes, NodesBuilder};
pub use error::{Error, ErrorContext, LostReason, Result};
pub use event::Events;
pub use locks::{Committed, Holder, Inspection, LastRun, Lease, Lock, Locks, Once, Options, Ran};
pub use market::{
    Listing, MarketLock, Purchase, list_item, list_item_with_lock, list_item_with_market_lock,
    purchase_item, purchase_item_with_lock, purchase_item_with_market_lock,
};
pub use name::Owner;
pub use pool::{Pool, PoolBuilder, PooledConnection};
pub use recipes::simple::{
    acquire_lock, acquire_lock_with_timeout, commit_while_held, release_lock,
    transaction_while_held, transaction_with_lock, with_lock,
};
pub use recipes::transaction::WatchedConnection;
pub use renewing::{lease_state::RenewalState, signal::LostSignal};
pub use token::{FencingToken, Token};
pub use watchdog::{Keep, Renewal, Watchdog};
pub use {r2d2, redis};
