//! Every recipe on real servers: mutex, reentrant, `read_write`, semaphore and the article's
//! editions.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "../common/mod.rs"]
mod common;

mod acl;
mod article;
mod faults;
mod fencing_token;
mod histories;
mod hostile;
mod leases;
mod mutex;
mod read_write;
mod reentrant;
mod scripts;
mod semaphore;
