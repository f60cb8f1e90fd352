//! Blocking Redis locks after *Redis in Action*: the book's functions, made correct, on a pooled
//! connection.
//!
//! A Redis lock is a **lease**: it ends at a fixed time, whatever its holder believes.
//! `docs/guarantees.md` in the repository lists the guarantees of each lock, their assumptions, and
//! the failures that break them.
//!
//! # A job that must not run twice
//!
//! ```no_run
#![doc = include_str!("../examples/quick_start.rs")]
//! ```
//!
//! # Contents
//!
//! Locks:
//!
//! - Keep a job from running twice: [`Locks`]. Acquire a [`Lock`], hold a [`Lease`].
//! - Run a job once a night, on any one of several hosts: [`Lock::run_once`], [`Lock::last_run`].
//! - Run a closure under a lock that renews itself: [`Lock::run`].
//! - Acquire a lock again that you already hold: [`Locks::reentrant`].
//! - Let in many readers or one writer: [`Locks::read`], [`Locks::write`].
//! - Let in at most N holders: [`Locks::semaphore`].
//! - Acquire several locks, all or none: [`Locks::all_of`], [`LockSet`].
//! - Detect that a lock is lost: [`Lease::check`], [`LostSignal`].
//! - Change the lease, the renewal and other settings: [`Options`].
//! - Cancel a wait, at Ctrl-C or from another thread: [`Cancel`].
//! - Pass a lock that you hold to another process: [`Lease::detach`].
//! - See who holds a lock, and take it away: [`Lock::inspect`], [`Lock::force_release`]. See which
//!   locks are held: [`Locks::held`].
//! - Get a connection that times out and comes back clean: [`Pool`]; on a Redis Cluster `Nodes`,
//!   with the feature `cluster`.
//! - Find out what went wrong, and what to do about it: [`Error`].
//! - See what a server offers for locks, when a program starts: [`Locks::probe`].
//! - Count or log events: [`Events`]. The example `tracing_events` sends them to `tracing`.
//! - Run a command under a lock: the program `lockrun`, see `docs/lockrun.md`.
//! - Test code that takes locks, without a server: the feature `testing`, whose stand-in provides
//!   [`Locks`].
//!
//! Writes:
//!
//! - Write only while the lock is still yours: [`Lease::commit`], [`Lease::commit_and_release`].
//! - Read, decide and write while the lock is yours: [`Lease::transaction`].
//! - Repeat a write that got no reply, without doubling it: [`Lease::commit_once`].
//! - Have the resource refuse a holder that is late: [`FencingToken`], from a lease or a grant.
//!
//! Plain functions:
//!
//! - The book's lock: [`acquire_lock_with_timeout`], [`release_lock`]. [`acquire_lock`] is its
//!   first version, whose lock has no TTL.
//! - The book's semaphores, at most N at once: [`acquire_semaphore`], [`release_semaphore`];
//!   [`acquire_fair_semaphore`], [`acquire_semaphore_with_lock`], [`refresh_fair_semaphore`],
//!   [`release_fair_semaphore`].
//! - In the book's style: [`with_lock`], [`with_locks`], [`commit_while_held`],
//!   [`transaction_while_held`]; [`transaction_with_lock`] takes a lock of its own.
//! - Take a lock with one script or one `SET`, for a duration or until a moment:
//!   [`recipes::mutex`], [`End::At`](recipes::mutex::End::At).
//! - The other kinds of lock: [`recipes::reentrant`], [`recipes::read_write`],
//!   [`recipes::semaphore`].
//! - Renew a lock that a plain function has acquired: [`Watchdog`].
//! - The book's market, beside its Python or Java programs: [`list_item_with_market_lock`],
//!   [`purchase_item_with_market_lock`], with their [`MarketLock`].
//! - A market of your own: [`list_item_with_lock`], [`purchase_item_with_lock`]; the alternatives
//!   are in [`market`].
//!
//! To read:
//!
//! - Why locks are hard, in eleven lessons: `docs/course.md`.
//! - How a lock works on the server: [`recipes`], `docs/recipes.md`, the scripts in `src/recipes/`.
//! - The terms: `docs/glossary.md`.
//!
//! # Connections
//!
//! The functions take a `&mut redis::Connection`: a connection from [`Pool::get`], from your own
//! `r2d2::Pool<redis::Client>`, or a plain one. They refuse a bare [`redis::Client`], which opens a
//! connection for each command, so a `WATCH` would protect nothing:
//!
//! ```compile_fail
//! # use std::time::Duration;
//! let mut client = leasehold::redis::Client::open("redis://127.0.0.1/").unwrap();
//! leasehold::acquire_lock(&mut client, "report", Duration::from_secs(1));
//! ```
//!
//! # Good to know
//!
//! - **Async code**: every call blocks. Acquire, work and release inside one
//!   `tokio::task::spawn_blocking`; dropping a lease anywhere else blocks a thread of the runtime.
//! - **Platforms**: tested on Linux. The library uses nothing specific to it; the program `lockrun`
//!   needs Unix.
//! - **Features of redis**: [`redis`] and [`r2d2`] are re-exported; redis has only its features
//!   `r2d2` and `script`. For others (`json`, `streams`, `acl`, …) add redis 1 to your own
//!   dependencies with these features: Cargo builds one crate with all of them.
// To change the crate, read docs/design.md, "Where things are": it describes each folder. The
// header of a folder's first file lists its callers, its files and the order of its locks.
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
pub use locks::{
    Committed, HeldLocks, Holder, Inspection, LastRun, Lease, Leases, Lock, LockSet, Locks, Once,
    Options, Ran,
};
pub use market::{
    Listing, MarketLock, Purchase, list_item, list_item_with_lock, list_item_with_market_lock,
    purchase_item, purchase_item_with_lock, purchase_item_with_market_lock,
};
pub use name::Owner;
pub use pool::{Pool, PoolBuilder, PooledConnection};
pub use probe::{Finding, Probe, Severity};
pub use recipes::book_semaphore::{
    acquire_fair_semaphore, acquire_semaphore, acquire_semaphore_with_lock, refresh_fair_semaphore,
    release_fair_semaphore, release_semaphore,
};
pub use recipes::simple::{
    acquire_lock, acquire_lock_with_timeout, commit_while_held, release_lock,
    transaction_while_held, transaction_with_lock, with_lock, with_locks,
};
pub use recipes::transaction::WatchedConnection;
pub use renewing::{lease_state::RenewalState, signal::LostSignal};
pub use token::{FencingToken, Token};
pub use watchdog::{Keep, Renewal, Watchdog};
pub use {r2d2, redis};
