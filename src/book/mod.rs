//! The functions of *Redis in Action*, and of the articles about it, in the order of the book.
//!
//! | section | listing | here |
//! |---|---|---|
//! | 4.4 | `list_item`, `purchase_item` | [`market`] |
//! | 6.2 | `acquire_lock`, `release_lock`, `acquire_lock_with_timeout` | [`lock`] |
//! | 6.2 | `purchase_item_with_lock` | [`market`] |
//! | 6.3 | the six functions of semaphores | [`semaphore`] |
//! | article | the read-write locks in two editions | [`article`] |
//!
//! The crate's root has the functions of the book too.

// Called by users only. It stands on `wire`, the transactions of `recipes` and values: no other
// room imports it, and it imports no kind of lock that `Locks` has. No locks of its own.

pub mod article;
pub mod lock;
pub mod market;
pub mod semaphore;
