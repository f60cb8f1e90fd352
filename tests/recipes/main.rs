//! Every recipe on real servers: mutex, reentrant, `read_write` and the editions of the article.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "../common/mod.rs"]
mod common;

mod acl_table;
mod acl_waiting;
mod editions_hostile;
mod fencing_token;
mod mutex;
mod mutex_end;
mod mutex_faults;
mod mutex_hostile;
mod mutex_set_options;
mod one_hash;
mod one_hash_traps;
mod read_write;
mod read_write_faults;
mod read_write_hostile;
mod read_write_intent;
mod read_write_races;
mod read_write_server;
mod recipe_commands;
mod recipe_histories;
mod reentrant;
mod reentrant_document;
mod reentrant_faults;
mod reentrant_hostile;
mod two_key;
