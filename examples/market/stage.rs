//! Sets up users, money and items in Redis, without touching existing data.

use anyhow::bail;
use leasehold::{
    Pool,
    market::{MARKET, inventory_key, user_key},
    redis::{self, Commands, Connection, Pipeline},
};

use crate::options::Load;

/// More than a buyer can spend in a run, at the prices below.
const BUYERS_FUNDS: i64 = 1_000_000_000_000;
const HIGHEST_PRICE: u64 = 100;
/// The lock on the whole market. An item's lock is gone after its trade.
const MARKET_LOCK: &str = "lock:market";
/// The number of items that a seller makes at a time.
const BATCH: u64 = 1_000;
/// Maps each seller to the number of items made. It is not a field of the seller's own hash, which
/// a purchase may watch.
const MADE: &str = "simulation:made";

/// The users of a load.
#[derive(Clone, Debug)]
pub(crate) struct Stage {
    pub(crate) sellers: Vec<String>,
    pub(crate) buyers: Vec<String>,
}

impl Stage {
    pub(crate) fn new(load: Load) -> Self {
        let number = |kind: &str, count| (1..=count).map(|n| format!("{kind}-{n}")).collect();
        Self {
            sellers: number("seller", load.listers),
            buyers: number("buyer", load.buyers),
        }
    }

    pub(crate) fn users(&self) -> impl Iterator<Item = &String> {
        self.sellers.iter().chain(&self.buyers)
    }

    /// The total amount of money.
    pub(crate) fn funds(&self) -> i128 {
        self.buyers.iter().map(|_| i128::from(BUYERS_FUNDS)).sum()
    }

    /// Lists every key that a run writes to, except the locks of single items.
    fn keys(&self) -> Vec<String> {
        let shared = [MARKET, MARKET_LOCK, MADE].map(str::to_owned);
        let own = self
            .users()
            .flat_map(|user| [user_key(user), inventory_key(user)]);
        shared.into_iter().chain(own).collect()
    }

    /// Claims these keys, or fails if one of them exists. Check and first write are one atomic
    /// step, so two simulations never share a server's market.
    pub(crate) fn claim(&self, pool: &Pool) -> anyhow::Result<()> {
        let mut conn = pool.get()?;
        let keys = self.keys();
        let taken = redis::transaction(&mut *conn, &keys, |conn, transaction| {
            for key in &keys {
                if conn.exists(key)? {
                    return Ok(Some(Some(key)));
                }
            }
            self.add_users(transaction);
            let claimed: Option<()> = transaction.query(conn)?;
            Ok(claimed.map(|()| None))
        })?;
        if let Some(key) = taken {
            bail!("the server already has a key `{key}`: use a server without a market")
        }
        Ok(())
    }

    /// Sets the stage for a cell: an empty market, sellers with goods, buyers with money.
    pub(crate) fn set(&self, pool: &Pool) -> anyhow::Result<()> {
        let mut conn = pool.get()?;
        let mut transaction = redis::pipe();
        transaction.atomic();
        transaction.unlink(self.keys()).ignore();
        self.add_users(&mut transaction);
        for seller in &self.sellers {
            add_batch(&mut transaction, seller, 0);
        }
        transaction.exec(&mut *conn)?;
        Ok(())
    }

    fn add_users(&self, transaction: &mut Pipeline) {
        let sellers = self.sellers.iter().map(|seller| (seller, 0));
        let buyers = self.buyers.iter().map(|buyer| (buyer, BUYERS_FUNDS));
        for (user, funds) in sellers.chain(buyers) {
            let key = user_key(user);
            transaction.hset(&key, "name", user).ignore();
            transaction.hset(&key, "funds", funds).ignore();
        }
    }

    /// Restores the server to its earlier state.
    pub(crate) fn clear(&self, pool: &Pool) -> anyhow::Result<()> {
        let mut conn = pool.get()?;
        let () = conn.unlink(self.keys())?;
        Ok(())
    }
}

/// A seller's unlimited goods: when the inventory is sold out, the next batch is added.
///
/// Adding a batch is one SADD for a thousand listings, the same for all strategies, so it hardly
/// affects the measurement. The SADD and the count of items made are one transaction.
#[derive(Debug)]
pub(crate) struct Stock {
    seller: String,
    taken: u64,
    made: u64,
}

impl Stock {
    /// Starts with the goods that [`Stage::set`] put into the inventory.
    pub(crate) fn new(seller: &str) -> Self {
        Self {
            seller: seller.to_owned(),
            taken: 0,
            made: BATCH,
        }
    }

    pub(crate) fn seller(&self) -> &str {
        &self.seller
    }

    /// Returns the next item in the inventory and its price.
    pub(crate) fn next_item(&mut self, conn: &mut Connection) -> anyhow::Result<(String, u64)> {
        if self.taken == self.made {
            let mut transaction = redis::pipe();
            add_batch(transaction.atomic(), &self.seller, self.made);
            transaction.exec(conn)?;
            self.made += BATCH;
        }
        self.taken += 1;
        let price = 1 + self.taken % HIGHEST_PRICE;
        Ok((item(&self.seller, self.taken), price))
    }
}

fn add_batch(transaction: &mut Pipeline, seller: &str, made: u64) {
    let items: Vec<_> = (made + 1..=made + BATCH)
        .map(|number| item(seller, number))
        .collect();
    transaction.sadd(inventory_key(seller), items).ignore();
    transaction.hincr(MADE, seller, BATCH).ignore();
}

fn item(seller: &str, number: u64) -> String {
    format!("item-{number}-of-{seller}")
}

/// Returns every item that a seller has made, according to the count in Redis.
pub(crate) fn items_made_by(
    conn: &mut Connection,
    seller: &str,
) -> anyhow::Result<impl Iterator<Item = String>> {
    let made: u64 = conn.hget(MADE, seller)?;
    Ok((1..=made).map(move |number| item(seller, number)))
}
