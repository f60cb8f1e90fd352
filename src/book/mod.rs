//! The functions of *Redis in Action*, and of the articles about it, in the order of the book.
//!
//! | section | listing | module | file |
//! |---|---|---|---|
//! | 4.4.2 | `list_item` | [`market`] | `list_item.rs` |
//! | 4.4.3, 6.2.3 | `purchase_item`, `purchase_item_with_lock` | [`market`] | `purchase_item.rs` |
//! | 6.2.3, 6.2.5 | `acquire_lock`, `acquire_lock_with_timeout` | [`lock`] | `acquire_lock.rs` |
//! | 6.2.3 | `release_lock` | [`lock`] | `release_lock.rs` |
//! | 6.3.1 | `acquire_semaphore`, … | [`semaphore`] | `acquire_semaphore.rs` |
//! | 6.3.2–6.3.4 | `acquire_fair_semaphore`, … | [`semaphore`] | `acquire_fair_semaphore.rs` |
//! | the article | its read-write locks | [`article`] | `one_hash/`, `two_key/` |
//!
//! The crate's root has the functions of the book too. `docs/book.md` compares them line by line.

// Called by users only. It stands on `wire`, the transactions of `recipes` and values: no other
// room imports it, and it imports no kind of lock that `Locks` has. No locks of its own.

pub mod article;
pub mod lock;
pub mod market;
pub mod semaphore;
