//! Redis locks for programs with threads: of all hosts that start a job, one at a time runs it.
//! Every call blocks; there is no async runtime.
//!
//! ```no_run
//! use std::time::Duration;
//! use leasehold::Locks;
//!
//! let locks = Locks::connect("redis://127.0.0.1/")?;
//! let lease = locks.lock("report:daily").acquire(Duration::from_secs(5))?;
//! for chapter in 1..=3 {
//!     lease.check()?; // fails if the lock was lost: stop, someone else may hold it
//!     println!("writing chapter {chapter}; no one else can, however long it takes");
//! }
//! lease.release()?;
//! # Ok::<(), leasehold::Error>(())
//! ```
//!
//! The lease renews itself while it is held, and ends 10 s after its process dies. A process that
//! was halted for longer still believes that it holds the lock: write with [`Lease::commit`] or
//! [`Lease::transaction`], or let the resource check the [`FencingToken`]. The page
//! `docs/guarantees.md` of the repository has each promise and what breaks it.
//!
//! # A job
//!
//! | you want to | take |
//! |---|---|
//! | keep a job from running twice at a time | [`Locks`], [`Lock`], [`Lease`]; [`Lock::run`] |
//! | run it once a night, on any one of several hosts | [`Lock::run_once`], [`Lock::last_run`] |
//! | let in at most N holders | [`Locks::semaphore`] |
//! | acquire several locks, all or none | [`Locks::all_of`], [`LockSet`] |
//! | let in many readers or one writer | [`Locks::read`], [`Locks::write`] |
//! | acquire a lock again that you hold | [`Locks::reentrant`] |
//! | write only while the lock is yours | [`Lease::commit`], [`Lease::commit_and_release`] |
//! | read, decide and write | [`Lease::transaction`] |
//! | repeat a write without a reply, and not double it | [`Lease::commit_once`] |
//! | know that a lock is lost | [`Lease::check`], [`LostSignal`] |
//! | let one process of several lead | [`Lock::acquire`], as in `examples/leader.rs` |
//! | call off a wait, at Ctrl-C or from another thread | [`Cancel`] |
//! | set the lease, the prefix, replicas, hooks | [`Options`] |
//! | pass a lock to another process | [`Lease::detach`] |
//! | test it without a server | the feature `testing` |
//!
//! # The book
//!
//! | you want | take |
//! |---|---|
//! | the book's lock | [`acquire_lock`], [`acquire_lock_with_timeout`], [`release_lock`] |
//! | its semaphores | [`acquire_semaphore`], [`acquire_fair_semaphore`] and those beside them |
//! | its market, beside its programs | [`purchase_item_with_market_lock`], [`MarketLock`] |
//! | a market of your own | [`purchase_item_with_lock`]; [`market`] has the alternatives |
//! | more in its style | [`with_lock`], [`with_locks`], [`transaction_with_lock`] |
//! | other kinds of lock as plain functions | [`recipes`] |
//! | to renew what they acquired | [`Watchdog`] |
//!
//! The functions take a `&mut redis::Connection`: one of [`Pool::get`], of your own
//! `r2d2::Pool<redis::Client>`, or a plain one. They refuse a bare [`redis::Client`], which opens a
//! connection for each command, so that a `WATCH` would protect nothing:
//!
//! ```compile_fail
//! # use std::time::Duration;
//! let mut client = leasehold::redis::Client::open("redis://127.0.0.1/").unwrap();
//! leasehold::acquire_lock(&mut client, "report", Duration::from_secs(1));
//! ```
//!
//! # Operating it
//!
//! | you want to | take |
//! |---|---|
//! | see who holds a lock, or take it away | [`Lock::inspect`], [`Lock::force_release`] |
//! | list the locks that are held | [`Locks::held`] |
//! | know what a server offers | [`Probe`] |
//! | count or log what happens | [`Events`]; for `tracing` the feature `tracing` |
//! | know what to do about an error | [`Error`], `docs/errors.md` |
//! | run a command under a lock | the program `lockrun`, `docs/lockrun.md` |
//! | choose and set servers | `docs/servers.md` |
//!
//! To learn why locks are hard: `docs/course.md`, eleven lessons, and `docs/recipes.md`, lock by
//! lock.
//!
//! # Features
//!
//! | feature | what it adds |
//! |---|---|
//! | `cluster` | Redis Cluster: `redis+cluster://`, `Nodes` |
//! | `tls-rustls` | `rediss://`, with ring unless the process has another provider |
//! | `testing` | a stand-in for the server |
//! | `tracing` | `TracingEvents`: events and spans of locks |
//! | `lockrun` | the program, and what it needs |
//!
//! None is on by default. [`redis`] and [`r2d2`] are re-exported; redis has only its features
//! `r2d2` and `script`. For others name redis 1 among your own dependencies: Cargo builds one crate
//! with all of them.
//!
//! # Good to know
//!
//! - **Async code**: acquire, work and release inside one `tokio::task::spawn_blocking`. Dropping a
//!   lease anywhere else blocks a thread of the runtime.
//! - **Platforms**: tested on Linux. `lockrun` needs Unix.
//! - **Rust 1.88**, raised in a minor version and at most to what redis needs. The crate is 0.x: an
//!   incompatible change, a new major version of redis or of r2d2 among them, raises the minor
//!   version.
// To change the crate, read docs/design.md, "Where things are": it describes each folder. The
// header of a folder's first file lists its callers, its files and the order of its locks.
#![cfg_attr(docsrs, feature(doc_cfg))]
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
mod probe;
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
#[cfg(feature = "tracing")]
pub use event::TracingEvents;
pub use locks::{
    Committed, HeldLocks, Holder, Inspection, LastRun, Lease, Leases, Lock, LockSet, Locks, Once,
    Options, Ran,
};
#[doc(inline)]
pub use market::{
    Listing, MarketLock, Purchase, list_item, list_item_with_lock, list_item_with_market_lock,
    purchase_item, purchase_item_with_lock, purchase_item_with_market_lock,
};
pub use name::Owner;
pub use pool::{Pool, PoolBuilder, PooledConnection};
pub use probe::{Finding, Probe, Severity};
#[doc(inline)]
pub use recipes::book_semaphore::{
    acquire_fair_semaphore, acquire_semaphore, acquire_semaphore_with_lock, refresh_fair_semaphore,
    release_fair_semaphore, release_semaphore,
};
#[doc(inline)]
pub use recipes::simple::{
    acquire_lock, acquire_lock_with_timeout, commit_while_held, release_lock,
    transaction_while_held, transaction_with_lock, with_lock, with_locks,
};
pub use recipes::transaction::WatchedConnection;
pub use renewing::{lease_state::RenewalState, signal::LostSignal};
pub use token::{FencingToken, Token};
pub use watchdog::{Keep, Renewal, Watchdog};
pub use {r2d2, redis};
