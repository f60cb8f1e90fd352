//! Redis locks for threaded Rust programs: when several hosts start the same job, only one at a
//! time runs it. Every call blocks; there is no async runtime.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use leasehold::Locks;
//!
//! fn main() -> leasehold::Result<()> {
//!     let locks = Locks::connect("redis://127.0.0.1/")?;
//!     let lease = locks.lock("report:daily").acquire(Duration::from_secs(30))?;
//!     for chapter in 1..=3 {
//!         lease.check()?; // fails if the lock was lost: stop, someone else may hold it
//!         println!("writing chapter {chapter}; no one else can, however long it takes");
//!     }
//!     lease.release()
//! }
//! ```
//!
//! The lease renews itself while it is held, and ends at most 10 s after its process dies. A
//! process that was paused for longer may still believe that it holds the lock: write with
//! [`Lease::commit`] or [`Lease::transaction`], or let the resource check the [`FencingToken`]. A
//! wait is longer than a lease, so that it outlasts a holder that has died.
//!
//! Pages: [what each lock promises, and what breaks it](docs::guarantees), [how to use
//! it](docs::guide), [each kind of lock](docs::recipes), [what to do with an error](docs::errors),
//! [servers](docs::servers), [the program `lockrun`](docs::lockrun), [a course](docs::course).
//!
//! # Running jobs
//!
//! | you want to | use |
//! |---|---|
//! | keep a job from running twice at once | [`Locks`], [`Lock`], [`Lease`]; [`Lock::run`] |
//! | run it once a night, on any one of several hosts | [`Lock::run_once`], [`Lock::last_run`] |
//! | allow at most N holders | [`Locks::semaphore`] |
//! | acquire several locks, all or none | [`Locks::all_of`], [`LockSet`] |
//! | allow many readers or one writer | [`Locks::read`], [`Locks::write`] |
//! | acquire a lock that you already hold | [`Locks::reentrant`] |
//! | write only while you hold the lock | [`Lease::commit`], [`Lease::commit_and_release`] |
//! | read, decide and write | [`Lease::transaction`] |
//! | retry a write that got no reply, without doing it twice | [`Lease::commit_once`] |
//! | detect the loss of a lock | [`Lease::check`], [`LostSignal`] |
//! | elect a leader, and tell its address | [`Lock::acquire`]: [how](docs::guide#leader) |
//! | cancel a wait, at Ctrl-C or from another thread | [`Cancel`] |
//! | stop the renewal after a time | [`Options::max_hold`] |
//! | set the lease, the prefix, replicas, hooks | [`Options`] |
//! | pass a lock to another process | [`Lease::detach`], [`Lock::adopt`] |
//! | test without a server | the feature `testing`: [how](docs::guide#testing-without-a-server) |
//!
//! # The functions of *Redis in Action*
//!
//! | you want | use |
//! |---|---|
//! | the book's lock | [`acquire_lock`], [`acquire_lock_with_timeout`], [`release_lock`] |
//! | its semaphores | [`acquire_semaphore`], [`acquire_fair_semaphore`] and related functions |
//! | its market, shared with its programs | [`purchase_item_with_market_lock`], [`MarketLock`] |
//! | a market of your own | [`purchase_item_with_lock`]; [`market`] has the alternatives |
//! | more functions in its style | [`with_lock`], [`with_locks`], [`transaction_with_lock`] |
//! | other kinds of lock as plain functions | [`recipes`] |
//! | renewal of what these functions acquire | [`Watchdog`] |
//!
//! The functions take a `&mut redis::Connection`: from [`Pool::get`], from your own
//! `r2d2::Pool<redis::Client>`, or a plain one. [The page on the book](docs::book) compares them
//! with it, call by call.
//!
//! # Operating it
//!
//! | you want to | use |
//! |---|---|
//! | see who holds a lock, or release it by force | [`Lock::inspect`], [`Lock::force_release`] |
//! | list the locks that are held | [`Locks::held`] |
//! | check what a server offers | [`Probe`] |
//! | count or log what happens | [`Events`]; for `tracing` the feature `tracing` |
//! | handle an error | [`Error`]: [what to do with each](docs::errors) |
//! | run a command under a lock | [the program `lockrun`](docs::lockrun) |
//! | choose and configure servers | [servers](docs::servers) |
//!
//! # Features
//!
//! | feature | what it adds |
//! |---|---|
//! | `cluster` | Redis Cluster: `redis+cluster://`, `Nodes` |
//! | `tls-rustls` | `rediss://`, with *ring* unless the process has installed another provider |
//! | `testing` | a stand-in for the server, for tests |
//! | `tracing` | `TracingEvents`: events and spans of locks |
//! | `lockrun` | the program `lockrun` and its dependencies |
//!
//! None is on by default. [`redis`], [`r2d2`] and [`anyhow`] are re-exported. Of redis, only the
//! features `r2d2` and `script` are enabled. To enable others, add redis 1 to your own dependencies
//! with those features: Cargo builds one crate with all of them.
//!
//! # Good to know
//!
//! - **Async code**: acquire, work and release inside one `tokio::task::spawn_blocking`. Dropping a
//!   lease elsewhere blocks a thread of the runtime.
//! - **Platforms**: tested on Linux. `lockrun` needs Unix.
//! - **Rust 1.95** or later. A minor version may require a later Rust, but never a later one than
//!   its dependencies require. The crate is 0.x: an incompatible change raises the minor version,
//!   and so does a new major version of redis or r2d2.
// To change the crate, read docs/design.md, "Where things are": it describes each folder. The
// header of a folder's first file lists its callers, its files and the order of its locks.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

pub mod book;
mod cancel;
#[cfg(feature = "cluster")]
mod cluster;
#[cfg(all(doc, not(doctest)))]
pub mod docs;
mod error;
pub mod event;
mod locks;
mod name;
mod options;
mod pool;
mod probe;
mod ran;
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

pub use book::market;
#[doc(inline)]
pub use book::{
    lock::{
        acquire_lock, acquire_lock_with_timeout, commit_while_held, release_lock,
        transaction_while_held, transaction_with_lock, with_lock, with_locks,
    },
    market::{
        Listing, MarketLock, Purchase, list_item, list_item_with_lock, list_item_with_market_lock,
        purchase_item, purchase_item_with_lock, purchase_item_with_market_lock,
    },
    semaphore::{
        acquire_fair_semaphore, acquire_semaphore, acquire_semaphore_with_lock,
        refresh_fair_semaphore, release_fair_semaphore, release_semaphore,
    },
};
pub use cancel::Cancel;
#[cfg(feature = "cluster")]
pub use cluster::Nodes;
pub use error::{Error, ErrorContext, LostReason, Result};
pub use event::Events;
#[cfg(feature = "tracing")]
pub use event::TracingEvents;
pub use locks::{Committed, HeldLocks, Inspection, Lease, Leases, Lock, LockSet, Locks, Once};
pub use name::Owner;
pub use options::Options;
pub use pool::{Pool, PoolBuilder, PooledConnection};
pub use probe::{Finding, Probe, Severity};
pub use ran::Ran;
pub use recipes::{Holder, LastRun, WatchedConnection};
pub use renewing::{lease_state::RenewalState, signal::LostSignal};
pub use token::{FencingToken, Token};
pub use watchdog::{Keep, Renewal, Watchdog};
pub use {anyhow, r2d2, redis};
