//! The functions of *Redis in Action* and of the articles about it, in the order of the book.
//!
//! | section | listing | module | file |
//! |---|---|---|---|
//! | 4.4.2 | `list_item` | [`market`] | `list_item.rs` |
//! | 4.4.3, 6.2.3 | `purchase_item`, `purchase_item_with_lock` | [`market`] | `purchase_item.rs` |
//! | 6.2.3, 6.2.5 | `acquire_lock`, `acquire_lock_with_timeout` | [`lock`] | `acquire_lock.rs` |
//! | 6.2.3 | `release_lock` | [`lock`] | `release_lock.rs` |
//! | 6.3.1 | `acquire_semaphore`, `release_semaphore` | [`semaphore`] | `acquire_semaphore.rs` |
//! | 6.3.2 | `acquire_fair_semaphore` | [`semaphore`] | `acquire_fair_semaphore.rs` |
//! | 6.3.2 | `release_fair_semaphore` | [`semaphore`] | the same |
//! | 6.3.3 | `refresh_fair_semaphore` | [`semaphore`] | the same |
//! | 6.3.4 | `acquire_semaphore_with_lock` | [`semaphore`] | the same |
//! | the article | its read-write locks | [`article`] | `one_hash/`, `two_key/` |
//!
//! The crate's root re-exports the functions of the book. [A page](crate::docs::book) compares them
//! line by line. [`lock`] also has functions that the book does not have, such as
//! [`with_locks`](crate::with_locks).
//!
//! They do not accept a `redis::Client`, which opens a connection for each command, so a `WATCH`
//! would protect nothing:
//!
//! ```compile_fail
//! # use std::time::Duration;
//! let mut client = leasehold::redis::Client::open("redis://127.0.0.1/").unwrap();
//! leasehold::acquire_lock(&mut client, "report", Duration::from_secs(1));
//! ```

// Called by users only: no other room imports it. It imports `wire`, the transactions of `recipes`,
// and rooms of plain values, but none of the kinds of lock in `recipes`. It has no mutex.

pub mod article;
pub mod lock;
pub mod market;
pub mod semaphore;
