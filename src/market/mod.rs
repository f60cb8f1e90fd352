//! The book's market: users list items at a price and buy them from each other, and no money or
//! item is ever lost.
//!
//! Sections 4.4 and 6.2 of *Redis in Action*. A purchase reads a price and the buyer's funds,
//! decides, and moves money and item. The question of those chapters is what keeps others from
//! coming between the reading and the moving. There are three answers, each a pair of functions:
//!
//! | way | functions | others are kept out by | in the book |
//! |---|---|---|---|
//! | item lock | [`list_item_with_lock`], [`purchase_item_with_lock`] | a lock per item | 6.2.4, no listing |
//! | market lock | [`list_item_with_market_lock`], [`purchase_item_with_market_lock`] | one lock for all | 6.2.3, listing 6.9 |
//! | `WATCH` | [`list_item`], [`purchase_item`] | nothing: a transaction that was disturbed starts again | 4.4, listings 4.5 and 4.6 |
//!
//! **Take the item lock** where all who trade do. `WATCH` aborts a purchase whenever anybody lists
//! or buys anything, and sells next to nothing on a busy market. The market lock lets one trade at
//! a time happen. The item lock stops only who wants the same item.
//!
//! ```no_run
//! use leasehold::{Listing, Pool, Purchase, list_item_with_lock, purchase_item_with_lock};
//!
//! let pool = Pool::connect("redis://127.0.0.1/")?;
//! let mut conn = pool.get()?;
//!
//! // User 17 has ItemM and wants 97 for it.
//! match list_item_with_lock(&mut conn, "ItemM", "17", 97)? {
//!     Listing::Listed { .. } => {}
//!     other => anyhow::bail!("not listed: {other:?}"),
//! }
//! // User 27 pays 97 and not a coin more.
//! match purchase_item_with_lock(&mut conn, "27", "ItemM", "17", Some(97))? {
//!     Purchase::Bought { price, .. } => println!("sold for {price}"),
//!     Purchase::NotEnoughMoney { price, funds, .. } => println!("{funds} is less than {price}"),
//!     other => println!("not sold: {other:?}"),
//! }
//! # Ok::<(), anyhow::Error>(())
//! ```
//!
//! # What is stored
//!
//! | key | type | holds |
//! |---|---|---|
//! | `market:` | ZSET | `ITEM.SELLER` → price |
//! | `users:ID` | HASH | `name`, `funds` |
//! | `inventory:ID` | SET | the items that a user has |
//! | `lock:market` or `lock:market:` | STRING | the [`MarketLock`], while it is held |
//! | `lock:market:ITEM.SELLER` | STRING | an item lock, while it is held |
//!
//! The first three are the book's, so its programs in other languages find what ours store and the
//! other way round. Create users and items as the book does, with `HSET users:17 funds 43` and
//! `SADD inventory:17 ItemM`.
//!
//! Prices are whole numbers from 0 to [`MAX_PRICE`]. Funds are whole numbers, as `HINCRBY` takes
//! them; who has none has 0. An item is one thing: a user cannot have two of one name in the
//! inventory, nor offer two.
//!
//! # Guarantees
//!
//! As long as everybody trades **by the same way** and nobody else writes to these keys:
//! - The sum of all funds stays what it is, and no purchase takes anybody's funds below zero.
//! - Each item is in one inventory or once in the market.
//! - Money and item move together or not at all. So does the item when it is listed.
//! - Nobody pays another price than the one agreed on, if one was.
//! - A trade whose lock ended or was taken away changes nothing: it watches the lock until it
//!   commits.
//!
//! **A market stays on one server.** Its keys are in many slots of a Redis Cluster, and a trade
//! changes several of them: there every function fails with an error that says so, and nothing is
//! done.
//!
//! They rest on one server that loses nothing of what it has acknowledged. A trade that was cut off
//! may have happened ([`Error::Unknown`](crate::Error::Unknown)); it has then happened as a whole.
//!
//! # One way for one market
//!
//! **The ways do not exclude each other.** A lock is only seen by those who ask for it. What
//! happens when one market is traded in by two ways, and a sale by one comes while a purchase of
//! the same item by the other is between reading and writing (it is tried out in
//! `tests/market/mixed.rs`):
//!
//! | the purchase is by | a sale by another way meanwhile |
//! |---|---|
//! | `WATCH`, market lock | is noticed: the purchase starts again and is [`Purchase::NotForSale`] |
//! | item lock | **is not noticed: the item is sold twice** and paid twice, and the second buyer gets [`Error::Partial`](crate::Error::Partial) |
//!
//! The item lock does not watch `market:`, which everybody changes; that is what makes it fast.
//!
//! That holds for other languages as well, whose function `purchase_item_with_lock` locks
//! the **market**: **beside one of these programs take [`list_item_with_market_lock`] and
//! [`purchase_item_with_market_lock`]**, and the lock of its edition, [`MarketLock::Book`] for the
//! book's Python and [`MarketLock::Article`] for the Jedis article's Java. Under an item lock, or
//! the other edition's, the item is sold twice. (The article's fine-grained lock is `lock:` and the
//! item without its seller: none of ours.)
//!
//! # Errors
//!
//! The usual answers of a market are a [`Listing`] or a [`Purchase`], not an error. A failure
//! is an [`anyhow::Error`] with an [`Error`](crate::Error) inside, as in an application of one's
//! own:
//!
//! | inside | means | what has changed |
//! |---|---|---|
//! | `Invalid` | an id that is empty or too long (item and seller together have to make a lock's name), a dot in a seller's, a buyer who is the seller, a price above [`MAX_PRICE`] | nothing was sent |
//! | `WrongKind` | a key of another type, a lock's too; a price in the market that is not whole, negative or above `MAX_PRICE`; funds of buyer or seller that are no whole number as `HINCRBY` takes it; a price that would carry the seller's past 2^62 | nothing |
//! | `Lost` | the lock ended, or was taken away, before the item moved | nothing |
//! | `Redis` | the server refused or was not reached | nothing |
//! | `Unknown` | no answer came, to the attempt at the lock ([`Error::token`](crate::Error::token) is what to release it with) or to the transaction | nothing, or all of it: look where the item is |
//! | `Partial` | somebody traded by another way, or changed the type of a key that is not watched, between reading and writing | a part |
//!
//! A lock that could not be given back ends by itself, at most 10 s after it was taken.
//!
//! ```no_run
//! # let mut conn = leasehold::Pool::connect("redis://127.0.0.1/")?.get()?;
//! use leasehold::{Error, purchase_item_with_lock};
//!
//! match purchase_item_with_lock(&mut conn, "27", "ItemM", "17", Some(97)) {
//!     Ok(purchase) => println!("{purchase:?}"),
//!     Err(error) => match error.downcast_ref() {
//!         Some(Error::Lost { .. }) => println!("too slow for the lock: nothing happened"),
//!         Some(Error::Unknown { .. }) => println!("look whether 27 has ItemM now"),
//!         _ => return Err(error),
//!     },
//! }
//! # Ok::<(), anyhow::Error>(())
//! ```
//!
//! # Differences from the book
//!
//! These are the same for all ways. What is particular to one way is said at its functions.
//!
//! - **Answers.** [`Listing`] and [`Purchase`] say what happened. The book has true, false and
//!   nothing, its ports less: "refused" and "gave up" are often the same there.
//! - **Funds are parsed.** The book's purchase under a lock compares a number with the text of the
//!   funds: in Python 2 that is never too little money, in Python 3 an exception. Here funds that
//!   `HINCRBY` would not take (`12.5`, `007`) are an error, missing funds are 0.
//! - **Prices are whole.** Scores are floating-point, transfers are not: the book sells at 9.99 for
//!   9, at 0.5 for nothing, and pays the buyer at -5. A listing takes whole prices up to 2^53 only,
//!   which a score holds exactly; a purchase refuses any other price that a foreign program has put
//!   there.
//! - **Types are looked at first.** Redis does not roll back: in the book's transaction a key of a
//!   wrong type loses the money or the item. Here each key is read, and so its type seen, before
//!   anything is written, and each answer of the transaction is looked at. The Jedis article writes
//!   without a transaction.
//! - **Nobody gets too rich.** A sale that would carry the seller's funds past 2^62 is an error,
//!   where `HINCRBY` could overflow in the middle of a transaction.
//! - **Nothing is merged.** An inventory is a set and the market has one place for `ITEM.SELLER`:
//!   the book's second item of a name vanishes, and its second listing overwrites the price. Here
//!   they are [`Purchase::AlreadyOwned`] and [`Listing::AlreadyListed`].
//! - **Nobody buys from himself.** In the book that takes the item from the market for nothing.
//! - **No dots in a seller's id**, so that the last dot of `a.b.c` splits it; an item's id may have
//!   dots. A buyer's id may have one too, but who has one cannot sell.
//! - **No `WATCH` is left behind** on the connection, whatever happens.

mod listing;
mod offer;
mod outcome;
mod purchase;
mod trade;
mod values;

pub use listing::{list_item, list_item_with_lock, list_item_with_market_lock};
pub use offer::{MARKET, MAX_PRICE, inventory_key, split_listing, user_key};
pub use outcome::{Listing, Purchase};
pub use purchase::{purchase_item, purchase_item_with_lock, purchase_item_with_market_lock};
pub use trade::MarketLock;
