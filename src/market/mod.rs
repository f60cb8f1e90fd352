//! The market of section 4.4 of *Redis in Action*, on the book's data model.
//!
//! | key | type | holds |
//! |---|---|---|
//! | `market:` | ZSET | `ITEM.SELLER` → price |
//! | `users:ID` | HASH | `name`, `funds` |
//! | `inventory:ID` | SET | the items that a user has |
mod listing;
mod offer;
mod purchase;
mod trade;

pub use listing::{Listing, list_item, list_item_with_lock, list_item_with_market_lock};
pub use offer::{MARKET, MAX_PRICE, inventory_key, split_listing, user_key};
pub use purchase::{
    Purchase, purchase_item, purchase_item_with_lock, purchase_item_with_market_lock,
};
