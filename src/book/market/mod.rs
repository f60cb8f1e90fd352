//! The book's market: users list items at a price and buy them from each other, without ever losing
//! money or an item.
//!
//! Sections 4.4 and 6.2 of *Redis in Action*. A purchase reads a price and the buyer's funds,
//! decides, and moves money and item. Those chapters show three ways to keep other clients from
//! changing the data between the read and the write, each a pair of functions here:
//!
//! - **Item lock**: one lock per item. [`list_item_with_lock`], [`purchase_item_with_lock`];
//!   section 6.2.4, which has no listing.
//! - **Market lock**: one lock for all items. [`list_item_with_market_lock`],
//!   [`purchase_item_with_market_lock`]; section 6.2.3, listing 6.9.
//! - **`WATCH`**: no lock; a transaction restarts if a key that it watches has changed.
//!   [`list_item`], [`purchase_item`]; section 4.4, listings 4.5 and 4.6.
//!
//! **Use the item lock** if all programs that trade use it. `WATCH` aborts a purchase whenever
//! anyone lists or buys anything, and sells next to nothing in a busy market. The market lock
//! allows one trade at a time. The item lock blocks only trades of the same item.
//!
//! ```no_run
//! use leasehold::{Listing, Pool, Purchase, list_item_with_lock, purchase_item_with_lock};
//!
//! let pool = Pool::connect("redis://127.0.0.1/")?;
//! let mut conn = pool.get()?;
//!
//! // User 17 owns ItemM and asks 97 for it.
//! match list_item_with_lock(&mut conn, "ItemM", "17", 97)? {
//!     Listing::Listed { .. } => {}
//!     other => anyhow::bail!("not listed: {other:?}"),
//! }
//! // User 27 pays exactly 97.
//! match purchase_item_with_lock(&mut conn, "27", "ItemM", "17", Some(97))? {
//!     Purchase::Bought { price, .. } => println!("sold for {price}"),
//!     Purchase::NotEnoughMoney { price, funds, .. } => println!("{funds} is less than {price}"),
//!     other => println!("not sold: {other:?}"),
//! }
//! # Ok::<(), anyhow::Error>(())
//! ```
//!
//! # Keys
//!
//! | key | type | holds |
//! |---|---|---|
//! | `market:` | ZSET | `ITEM.SELLER` → price |
//! | `users:ID` | HASH | `name`, `funds` |
//! | `inventory:ID` | SET | the items that a user owns |
//! | `lock:market` or `lock:market:` | STRING | the [`MarketLock`], while it is held |
//! | `lock:market:ITEM.SELLER` | STRING | an item lock, while it is held |
//!
//! The first three are the book's, so its programs in other languages can read and write the same
//! data. Create users and items as the book does, with `HSET users:17 funds 43` and
//! `SADD inventory:17 ItemM`.
//!
//! Prices are whole numbers from 0 to [`MAX_PRICE`]. Funds are whole numbers in the form that
//! `HINCRBY` accepts; missing funds count as 0. Items are unique: a user cannot own two items of
//! one name, nor offer two.
//!
//! # Guarantees
//!
//! These hold if everyone trades **in the same way** and no one else writes to these keys:
//! - The sum of all funds does not change, and no purchase takes a user's funds below zero.
//! - Each item is in one inventory, or once in the market.
//! - Money and item move together or not at all. A listing moves the item or does nothing.
//! - A buyer who agreed on a price pays that price.
//! - A trade whose lock expired or was taken away changes nothing: it watches the lock until it
//!   commits.
//!
//! **A market needs a single server.** On a Redis Cluster its keys would be in many slots, and a
//! trade changes several of them. There every function fails with an error that says so, and
//! changes nothing.
//!
//! The guarantees assume one server that loses no write that it has acknowledged. A trade whose
//! connection broke may have been executed ([`Error::Unknown`](crate::Error::Unknown)), but then as
//! a whole.
//!
//! # One way for one market
//!
//! **The ways do not exclude each other.** A lock stops only programs that try to acquire it.
//! Suppose that a market is traded in two ways, and an item is sold in one way while a purchase of
//! it in the other is between the read and the write (tested in `tests/market/mixed.rs`):
//!
//! - **The purchase uses `WATCH` or the market lock**: it detects the sale, restarts, and returns
//!   [`Purchase::NotForSale`].
//! - **The purchase uses the item lock**: it **does not detect the sale. The item is sold and paid
//!   for twice**, and the second buyer gets [`Error::Partial`](crate::Error::Partial).
//!
//! The item lock does not watch `market:`, which every trade changes; that is why it is fast.
//!
//! The same applies to programs in other languages, whose `purchase_item_with_lock` locks the
//! **market**. **Together with one of them use [`list_item_with_market_lock`] and
//! [`purchase_item_with_market_lock`]** with the lock of its edition: [`MarketLock::Book`] for the
//! book's Python, [`MarketLock::Article`] for the Jedis article's Java. With an item lock, or the
//! other edition's lock, an item can be sold twice. (The article's fine-grained lock is `lock:` and
//! the item without its seller; no function here uses it.)
//!
//! # Errors
//!
//! The expected results of a trade are a [`Listing`] or a [`Purchase`], not an error. A failure is
//! one of these variants of [`Error`](crate::Error):
//!
//! - **`Invalid`**: an id that is empty or too long (item and seller together must fit a lock's
//!   name), a dot in a seller's id, a buyer who is the seller, or a price above [`MAX_PRICE`].
//!   Nothing was sent.
//! - **`WrongKind`**: nothing has changed. A key, perhaps the lock's, has another type; a price in
//!   the market is not a whole number from 0 to [`MAX_PRICE`]; the funds of buyer or seller are not
//!   a whole number that `HINCRBY` accepts; or the price would raise the seller's funds above 2^62.
//! - **`Lost`**: the lock expired or was taken away before the item moved. Nothing has changed.
//! - **`Redis`**: the server refused or could not be reached. Nothing has changed.
//! - **`Unknown`**: there was no reply to the acquire or to the transaction. Either nothing has
//!   changed or the whole trade has happened: check where the item is. After an acquire, release
//!   the lock with [`Error::token`](crate::Error::token).
//! - **`Partial`**: part of the trade has happened. Between the read and the write, someone traded
//!   in another way, or changed the type of a key that is not watched.
//!
//! A lock that could not be released expires at most 10 s after it was acquired.
//!
//! ```no_run
//! # let mut conn = leasehold::Pool::connect("redis://127.0.0.1/")?.get()?;
//! use leasehold::{Error, purchase_item_with_lock};
//!
//! match purchase_item_with_lock(&mut conn, "27", "ItemM", "17", Some(97)) {
//!     Ok(purchase) => println!("{purchase:?}"),
//!     Err(Error::Lost { .. }) => println!("too slow for the lock: nothing happened"),
//!     Err(Error::Unknown { .. }) => println!("check whether 27 has ItemM now"),
//!     Err(error) => return Err(error),
//! }
//! # Ok::<(), Error>(())
//! ```
//!
//! # Differences from the book
//!
//! These apply to all three ways. Each function lists its own differences.
//!
//! - **Results.** [`Listing`] and [`Purchase`] name the outcome. The book returns true, false or
//!   nothing; its ports often do not distinguish "refused" from "gave up".
//! - **Funds are parsed.** The book's purchase under a lock compares a number with the text of the
//!   funds: in Python 2 the funds then always suffice, in Python 3 it raises an exception. Here
//!   funds that `HINCRBY` would not accept (`12.5`, `007`) are an error, and missing funds are 0.
//! - **Prices are whole.** Scores are floating-point, transfers are not: in the book an item listed
//!   at 9.99 sells for 9, one at 0.5 for nothing, and one at -5 pays the buyer. A listing accepts
//!   only whole prices up to 2^53, which a score holds exactly; a purchase refuses any other price
//!   that another program has stored.
//! - **Types are checked first.** Redis does not roll back: in the book's transaction a key of a
//!   wrong type loses the money or the item. Here each key is read before anything is written,
//!   which checks its type, and each reply of the transaction is checked. The Jedis article writes
//!   without a transaction.
//! - **Funds do not overflow.** A sale that would raise the seller's funds above 2^62 is an error;
//!   in the book `HINCRBY` could overflow in the middle of a transaction.
//! - **No duplicates.** An inventory is a set and the market has one place for `ITEM.SELLER`: in
//!   the book a second item of the same name vanishes, and a second listing overwrites the price.
//!   Here the results are [`Purchase::AlreadyOwned`] and [`Listing::AlreadyListed`].
//! - **Users cannot buy from themselves.** In the book that removes the item from the market for
//!   nothing.
//! - **No dots in a seller's id**, so that the last dot of `a.b.c` splits it. An item's id may have
//!   dots. A buyer's id may too, but that user cannot sell.
//! - **The connection keeps no `WATCH`**, whatever the outcome.

mod list_item;
mod offer;
mod purchase_item;
mod trade;

pub use list_item::{Listing, list_item, list_item_with_lock, list_item_with_market_lock};
pub use offer::{MARKET, MAX_PRICE, inventory_key, split_listing, user_key};
pub use purchase_item::{
    Purchase, purchase_item, purchase_item_with_lock, purchase_item_with_market_lock,
};
pub use trade::MarketLock;
