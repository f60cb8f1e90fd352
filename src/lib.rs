//! leasehold
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]
mod connection;
mod error;
mod exchange;
pub mod market;
mod name;
pub mod recipes;
mod script;
mod time;
mod token;
mod transaction;

pub use connection::{Pool, PoolBuilder, PooledConnection};
pub use error::{Error, Result};
pub use market::{
    Listing, Purchase, list_item, list_item_with_lock, list_item_with_market_lock, purchase_item,
    purchase_item_with_lock, purchase_item_with_market_lock,
};
pub use recipes::simple::{
    acquire_lock, acquire_lock_with_timeout, commit_while_held, release_lock,
};
pub use token::Token;
pub use {r2d2, redis};
