//! The four strategies, and the threads that use them: listers list items and buyers buy them until
//! the shift ends.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use clap::ValueEnum;
use hdrhistogram::Histogram;
use leasehold::{
    Cancel, Listing, Locks, MarketLock, Purchase, list_item, list_item_with_lock,
    list_item_with_market_lock,
    market::{MARKET, split_listing},
    purchase_item, purchase_item_with_lock, purchase_item_with_market_lock,
    redis::{Commands, Connection},
};
use serde::Serialize;

use crate::{several::purchase_item_with_locks, stage::Stock};

/// The pause of a buyer who finds the market empty.
const EMPTY_MARKET_PAUSE: Duration = Duration::from_millis(1);
/// Longer than any run.
const LONGEST_WAIT_MICROS: u64 = 3_600_000_000;

/// The way to keep an item from being sold twice. If buyers lock, listers do too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Strategy {
    /// No lock: start again when a watched key has changed.
    Watch,
    /// One lock for the whole market.
    MarketLock,
    /// A lock for each item.
    ItemLock,
    /// A buyer locks the item and itself.
    TwoLocks,
}

impl Strategy {
    pub(crate) const ALL: [Self; 4] = [
        Self::Watch,
        Self::MarketLock,
        Self::ItemLock,
        Self::TwoLocks,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Watch => "WATCH",
            Self::MarketLock => "market lock",
            Self::ItemLock => "item lock",
            Self::TwoLocks => "two locks",
        }
    }

    fn list(
        self,
        conn: &mut Connection,
        item: &str,
        seller: &str,
        price: u64,
    ) -> leasehold::Result<Listing> {
        match self {
            Self::Watch => list_item(conn, item, seller, price),
            Self::MarketLock => {
                list_item_with_market_lock(conn, MarketLock::Article, item, seller, price)
            }
            Self::ItemLock | Self::TwoLocks => list_item_with_lock(conn, item, seller, price),
        }
    }

    fn purchase(
        self,
        conn: &mut Connection,
        locks: &Locks,
        buyer: &str,
        offer: &Offer,
    ) -> leasehold::Result<Purchase> {
        let (item, seller, price) = (&offer.item, &offer.seller, offer.price);
        match self {
            Self::Watch => purchase_item(conn, buyer, item, seller, price),
            Self::MarketLock => purchase_item_with_market_lock(
                conn,
                MarketLock::Article,
                buyer,
                item,
                seller,
                Some(price),
            ),
            Self::ItemLock => purchase_item_with_lock(conn, buyer, item, seller, Some(price)),
            Self::TwoLocks => purchase_item_with_locks(locks, buyer, offer),
        }
    }
}

/// The time of a cell, shared by its threads. A thread that fails ends it for all.
#[derive(Debug)]
pub(crate) struct Shift<'a> {
    pub(crate) end: Instant,
    pub(crate) interrupted: &'a Cancel,
    pub(crate) failed: AtomicBool,
}

impl Shift<'_> {
    pub(crate) fn goes_on(&self) -> bool {
        Instant::now() < self.end
            && !self.interrupted.is_cancelled()
            && !self.failed.load(Ordering::Relaxed)
    }

    /// Does a thread's work. If it fails, all other threads stop.
    pub(crate) fn work<T>(&self, work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
        let result = work();
        if result.is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
        result
    }
}

/// Lists item after item until the shift ends. Returns the number of items listed.
pub(crate) fn list_items(
    conn: &mut Connection,
    strategy: Strategy,
    mut stock: Stock,
    shift: &Shift<'_>,
) -> anyhow::Result<u64> {
    let mut listed = 0;
    while shift.goes_on() {
        let (item, price) = stock.next_item(conn)?;
        loop {
            match strategy.list(conn, &item, stock.seller(), price)? {
                Listing::Listed { .. } => break,
                Listing::Contended { .. } if shift.goes_on() => {}
                Listing::Contended { .. } => return Ok(listed),
                refused => bail!("{} could not list {item}: {refused:?}", stock.seller()),
            }
        }
        // The last listing may have completed after the shift.
        listed += u64::from(Instant::now() < shift.end);
    }
    Ok(listed)
}

/// The results of one buyer, or of all together.
#[derive(Debug)]
pub(crate) struct Sales {
    pub(crate) bought: u64,
    /// Attempts aborted by a concurrent write, and locks not acquired in time.
    pub(crate) retries: u64,
    /// The time of each purchase, in microseconds: all time spent in calls since this buyer's last
    /// purchase. That includes retries, and earlier purchases that gave up or found the item sold.
    /// It excludes the time in which the market was empty, and a purchase cut off by the end of the
    /// shift.
    pub(crate) waits: Histogram<u64>,
}

impl Sales {
    pub(crate) fn none() -> anyhow::Result<Self> {
        Ok(Self {
            bought: 0,
            retries: 0,
            waits: Histogram::new_with_bounds(1, LONGEST_WAIT_MICROS, 3)?,
        })
    }

    pub(crate) fn add(&mut self, more: &Self) -> anyhow::Result<()> {
        self.bought += more.bought;
        self.retries += more.retries;
        self.waits.add(&more.waits)?;
        Ok(())
    }
}

/// Buys random items until the shift ends.
pub(crate) fn buy_items(
    conn: &mut Connection,
    locks: &Locks,
    strategy: Strategy,
    buyer: &str,
    shift: &Shift<'_>,
) -> anyhow::Result<Sales> {
    let mut sales = Sales::none()?;
    let mut waited = Duration::ZERO;
    while shift.goes_on() {
        let Some(offer) = Offer::at_random(conn)? else {
            thread::sleep(EMPTY_MARKET_PAUSE);
            continue;
        };
        let started = Instant::now();
        let purchase = strategy.purchase(conn, locks, buyer, &offer)?;
        let ended = Instant::now();

        waited += ended - started;
        sales.retries += u64::from(purchase.retries());
        match purchase {
            Purchase::Bought { .. } if ended < shift.end => {
                sales.bought += 1;
                sales
                    .waits
                    .saturating_record(u64::try_from(waited.as_micros())?);
                waited = Duration::ZERO;
            }
            // The lock was not acquired in time.
            Purchase::Contended { retries: 0 } => sales.retries += 1,
            // Too late to count; sold to another buyer; aborted repeatedly.
            Purchase::Bought { .. } | Purchase::NotForSale { .. } | Purchase::Contended { .. } => {}
            refused => bail!("{buyer} could not buy {}: {refused:?}", offer.item),
        }
    }
    Ok(sales)
}

/// An item for sale.
pub(crate) struct Offer {
    pub(crate) item: String,
    pub(crate) seller: String,
    pub(crate) price: u64,
}

impl Offer {
    /// Picks a random item in the market. `None` if the market is empty.
    fn at_random(conn: &mut Connection) -> anyhow::Result<Option<Self>> {
        let mut listings: Vec<(String, u64)> = conn.zrandmember_withscores(MARKET, 1)?;
        let Some((listing, price)) = listings.pop() else {
            return Ok(None);
        };
        let (item, seller) = split_listing(&listing)
            .with_context(|| format!("{listing} in the market has no seller"))?;
        Ok(Some(Self {
            item: item.to_owned(),
            seller: seller.to_owned(),
            price,
        }))
    }
}
