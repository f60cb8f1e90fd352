//! The book's market in each of the three ways: the cases of the book's own tests and examples.

use crate::common::market::{
    Way, everything, for_each, funds, has, offer, price, run, typed_error, user,
};
use leasehold::{
    Error, Listing, Purchase, market::MAX_PRICE, market::MarketLock, purchase_item_with_lock,
    purchase_item_with_market_lock,
};
use redis::Connection;

/// The users and offers in the figures of chapter 4.
fn book_data(conn: &mut Connection) {
    user(conn, "17", "43", &["ItemL", "ItemM", "ItemN"]).unwrap();
    run(conn, &["HSET", "users:17", "name", "Frank"]).unwrap();
    user(conn, "27", "125", &["ItemO", "ItemP", "ItemQ"]).unwrap();
    run(conn, &["HSET", "users:27", "name", "Bill"]).unwrap();
    for (item, seller, price) in [
        ("ItemA", "4", "35"),
        ("ItemC", "7", "48"),
        ("ItemE", "2", "60"),
        ("ItemG", "3", "73"),
    ] {
        offer(conn, item, seller, price).unwrap();
    }
}

fn bought(price: u64) -> Purchase {
    Purchase::Bought { price, retries: 0 }
}

#[test]
fn listing_moves_the_item_into_the_market() {
    for_each(&Way::ALL, |way, _, conn| {
        user(conn, "userX", "0", &["itemX", "itemZ"])?;

        let listed = way.list(conn, "itemX", "userX", 10)?;
        assert_eq!(listed, Listing::Listed { retries: 0 });
        assert!(listed.is_listed() && listed.retries() == 0);

        let members: Vec<(String, f64)> = redis::cmd("ZRANGE")
            .arg(("market:", 0, -1, "WITHSCORES"))
            .query(conn)?;
        assert_eq!(members, [("itemX.userX".to_owned(), 10.0)]);
        assert!(!has(conn, "userX", "itemX")? && has(conn, "userX", "itemZ")?);
        assert!(!everything(conn)?.keys().any(|key| key.starts_with("lock:")));
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_purchase_moves_the_money_and_the_item() {
    for_each(&Way::ALL, |way, _, conn| {
        user(conn, "userX", "0", &["itemX"])?;
        user(conn, "userY", "125", &[])?;
        assert!(way.list(conn, "itemX", "userX", 10)?.is_listed());

        let purchase = way.buy(conn, "userY", "itemX", "userX", 10)?;
        assert_eq!(purchase, bought(10));
        assert!(purchase.is_bought() && purchase.retries() == 0);

        assert_eq!(funds(conn, "userX")?, Some(10));
        assert_eq!(funds(conn, "userY")?, Some(115));
        assert!(has(conn, "userY", "itemX")?);
        assert_eq!(price(conn, "itemX", "userX")?, None);
        let keys: Vec<_> = everything(conn)?.into_keys().collect();
        assert_eq!(keys, ["inventory:userY", "users:userX", "users:userY"]);
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_refusal_says_why_and_changes_nothing() {
    for_each(&Way::ALL, |way, _, conn| {
        book_data(conn);
        user(conn, "5", "500", &["ItemE"])?;
        user(conn, "7", "0", &["ItemC"])?;
        let before = everything(conn)?;
        refuses_to_sell(way, conn)?;
        refuses_to_list(way, conn)?;
        assert_eq!(everything(conn)?, before);
        Ok(())
    })
    .unwrap();
}

fn refuses_to_sell(way: Way, conn: &mut Connection) -> anyhow::Result<()> {
    let retries = 0;
    let not_for_sale = Purchase::NotForSale { retries };
    let price_changed = |price| Purchase::PriceChanged { price, retries };
    let not_enough = |price, funds| Purchase::NotEnoughMoney {
        price,
        funds,
        retries,
    };
    let already_owned = Purchase::AlreadyOwned { retries };
    for (buyer, item, seller, price, refusal) in [
        ("27", "ItemB", "4", 35, not_for_sale),
        ("27", "ItemA", "7", 35, not_for_sale),
        ("27", "ItemA", "4", 34, price_changed(35)),
        ("27", "ItemA", "4", 36, price_changed(35)),
        ("17", "ItemC", "7", 48, not_enough(48, 43)),
        ("99", "ItemC", "7", 48, not_enough(48, 0)),
        ("5", "ItemE", "2", 60, already_owned),
    ] {
        assert_eq!(way.buy(conn, buyer, item, seller, price)?, refusal);
        assert!(!refusal.is_bought());
    }
    Ok(())
}

fn refuses_to_list(way: Way, conn: &mut Connection) -> anyhow::Result<()> {
    let retries = 0;
    for (item, seller, refusal) in [
        ("ItemO", "17", Listing::NotOwned { retries }),
        ("ItemA", "4", Listing::NotOwned { retries }),
        ("ItemC", "7", Listing::AlreadyListed { retries }),
    ] {
        assert_eq!(way.list(conn, item, seller, 1)?, refusal);
        assert!(!refusal.is_listed());
    }
    Ok(())
}

#[test]
fn under_a_lock_any_price_is_accepted_as_in_the_book() {
    for_each(&Way::LOCKS, |way, _, conn| {
        let buy = |conn: &mut Connection, item| match way {
            Way::ItemLock => purchase_item_with_lock(conn, "27", item, "4", None),
            _ => purchase_item_with_market_lock(conn, MarketLock::Book, "27", item, "4", None),
        };
        user(conn, "27", "40", &[])?;
        offer(conn, "ItemA", "4", "35")?;
        offer(conn, "ItemB", "4", "6")?;
        assert_eq!(buy(conn, "ItemA")?, bought(35));
        let too_poor = Purchase::NotEnoughMoney {
            price: 6,
            funds: 5,
            retries: 0,
        };
        assert_eq!(buy(conn, "ItemB")?, too_poor);
        offer(conn, "ItemB", "4", "5")?;
        assert_eq!(buy(conn, "ItemB")?, bought(5));
        assert_eq!(buy(conn, "ItemB")?, Purchase::NotForSale { retries: 0 });
        assert_eq!(funds(conn, "4")?, Some(40));
        Ok(())
    })
    .unwrap();
}

#[test]
fn what_cannot_be_meant_is_refused_before_anything_is_sent() {
    for_each(&Way::ALL, |way, _, conn| {
        // The item exists under its ambiguous name: only the check prevents a trade.
        user(conn, "b.c", "100", &["a"])?;
        user(conn, "2", "100", &["a"])?;
        offer(conn, "a", "b.c", "1")?;
        offer(conn, "a", "2", "1")?;
        let before = commands_processed(conn)?;
        for (error, expected) in refusals(way, conn)? {
            assert!(
                matches!(error, Error::Invalid { argument, .. } if argument == expected),
                "{error} instead of {expected}"
            );
        }
        assert_eq!(commands_processed(conn)?, before + 1, "only INFO itself");
        Ok(())
    })
    .unwrap();
}

/// The errors for invalid arguments, each with the argument that it has to name.
fn refusals(way: Way, conn: &mut Connection) -> anyhow::Result<Vec<(Error, &'static str)>> {
    let (long, too_much) = ("x".repeat(513), MAX_PRICE + 1);
    let mut refusals = Vec::new();
    for (item, seller, price, argument) in [
        ("a", "b.c", 1, "seller_id"),
        ("a", "", 1, "seller_id"),
        ("a", &long, 1, "seller_id"),
        ("", "2", 1, "item_id"),
        (&long, "2", 1, "item_id or seller_id"),
        ("{", "2", 1, "item_id or seller_id"),
        ("a", "2:lease", 1, "item_id or seller_id"),
        ("a", "2", too_much, "price"),
        ("a", "2", u64::MAX, "price"),
    ] {
        let listing = way.list(conn, item, seller, price);
        let purchase = way.buy(conn, "3", item, seller, price);
        refusals.push((typed_error(listing)?, argument));
        refusals.push((typed_error(purchase)?, argument));
    }
    for buyer in ["", &long, "2"] {
        let purchase = way.buy(conn, buyer, "a", "2", 1);
        refusals.push((typed_error(purchase)?, "buyer_id"));
    }
    Ok(refusals)
}

fn commands_processed(conn: &mut Connection) -> anyhow::Result<u64> {
    let stats: String = redis::cmd("INFO").arg("stats").query(conn)?;
    let count = stats
        .lines()
        .find_map(|line| line.strip_prefix("total_commands_processed:"));
    Ok(count.unwrap().parse()?)
}
