//! A purchase that locks both the buyer and the item, as a program with work to do on both would.
//!
//! Under an item lock, `WATCH` protects the buyer's funds and no second lock is needed. This
//! strategy shows the cost of the second lock: the round trips to take and release it, and nothing
//! else, since no two threads buy for the same buyer.

use std::time::Duration;

use leasehold::{
    Error, Locks, Options, Pool, Purchase,
    market::{MARKET, inventory_key, user_key},
    redis::{self, Client},
};

use crate::trade::Offer;

/// The time that a purchase under an item lock waits for its lock, and its lease.
const PATIENCE: Duration = Duration::from_secs(10);

/// The reply to the pipeline of a purchase: the price, the buyer's funds, and whether the buyer
/// already has such an item.
type Found = (Option<u64>, i64, bool);

/// Creates locks with a pool of their own, because the buyers keep the connections of the other
/// one. Like all locks of the market they have no fencing tokens.
pub(crate) fn locks(client: &Client, buyers: u32) -> anyhow::Result<Locks> {
    let pool = Pool::builder().max_size(buyers).build(client)?;
    let options = Options::new().lease(PATIENCE).fencing(false);
    Ok(Locks::new(&pool)?.with(options))
}

/// Takes the item's lock, under the name that its lister uses, and a lock for the buyer.
pub(crate) fn purchase_item_with_locks(
    locks: &Locks,
    buyer: &str,
    offer: &Offer,
) -> leasehold::Result<Purchase> {
    let Offer {
        item,
        seller,
        price,
    } = offer;
    let listing = format!("{item}.{seller}");
    let (payer, receiver, inventory) = (user_key(buyer), user_key(seller), inventory_key(buyer));
    let names = [format!("{MARKET}{listing}"), payer.clone()];
    let leases = match locks.all_of(names).acquire(PATIENCE) {
        Err(Error::Contended { .. }) => return Ok(Purchase::Contended { retries: 0 }),
        leases => leases?,
    };
    let mut reads = redis::pipe();
    reads.zscore(MARKET, &listing);
    reads.hget(&payer, "funds").sismember(&inventory, item);
    let mut attempts = 0;
    let purchase = leases.transaction(&[], |conn, writes| {
        let retries = attempts;
        attempts += 1;
        let (asked, funds, is_owned): Found = reads.query(conn)?;
        let Some(price) = asked.filter(|asked| asked == price) else {
            return Ok(Purchase::NotForSale { retries });
        };
        if is_owned {
            return Ok(Purchase::AlreadyOwned { retries });
        }
        if i128::from(funds) < i128::from(price) {
            return Ok(Purchase::NotEnoughMoney {
                price,
                funds,
                retries,
            });
        }
        writes.hincr(&receiver, "funds", price);
        writes.cmd("HINCRBY").arg(&payer).arg("funds");
        writes.arg(-i128::from(price));
        writes.sadd(&inventory, item).zrem(MARKET, &listing);
        Ok(Purchase::Bought { price, retries })
    })?;
    leases.release()?;
    Ok(purchase)
}
