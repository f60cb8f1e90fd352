//! The result of trading in one market in more than one way. This is documented, not promised.

use std::{error::Error as _, thread};

use crate::common::{
    Proxy, Server,
    market::{Way, clear, for_each, funds, has, offer, price, run, typed_error, user},
    wait,
};
use leasehold::{Error, Listing, Purchase};
use redis::Connection;

/// Seller 1 has a ring in stock and a sword for 10, and two buyers have 125 each.
fn prepare(server: &Server) -> Connection {
    let mut conn = server.connection().unwrap();
    clear(&mut conn).unwrap();
    user(&mut conn, "1", "0", &["ring"]).unwrap();
    user(&mut conn, "2", "125", &[]).unwrap();
    user(&mut conn, "3", "125", &[]).unwrap();
    offer(&mut conn, "sword", "1", "10").unwrap();
    conn
}

/// Each way that trades first, with each that does not wait for its lock.
fn pairs() -> impl Iterator<Item = (Way, Way)> {
    Way::ALL
        .into_iter()
        .flat_map(|first| Way::ALL.map(|second| (first, second)))
        .filter(|(first, second)| first != second || *first == Way::Watch)
}

#[test]
fn only_the_items_lock_misses_a_sale_by_another_method() {
    let server = Server::start().unwrap();
    let proxy = Proxy::in_front_of(&server).unwrap();
    for (first, second) in pairs() {
        let mut direct = prepare(&server);
        let mut meanwhile = server.connection().unwrap();
        proxy.at("MULTI").run(move || {
            let sold = second.buy(&mut meanwhile, "3", "sword", "1", 10);
            assert!(sold.unwrap().is_bought());
        });
        let purchase = first.buy(&mut proxy.connection().unwrap(), "2", "sword", "1", 10);
        assert!(proxy.happened());

        let paid = if first == Way::ItemLock {
            // Sold twice. No money is created or lost, and the second buyer gets an error.
            let error = typed_error(purchase).unwrap();
            assert!(
                matches!(error, Error::Partial { .. }),
                "{second:?}: {error}"
            );
            let reason = error.source().unwrap().to_string();
            assert!(reason.contains("traded in another way"), "{reason}");
            10
        } else {
            let too_late = Purchase::NotForSale { retries: 1 };
            assert_eq!(purchase.unwrap(), too_late, "{first:?} {second:?}");
            0
        };
        assert_eq!(
            has(&mut direct, "2", "sword").unwrap(),
            first == Way::ItemLock
        );
        assert!(has(&mut direct, "3", "sword").unwrap());
        assert_eq!(funds(&mut direct, "1").unwrap(), Some(10 + paid));
        assert_eq!(funds(&mut direct, "2").unwrap(), Some(125 - paid));
        assert_eq!(funds(&mut direct, "3").unwrap(), Some(115));
    }
}

#[test]
fn no_two_methods_together_list_an_item_twice_or_charge_a_buyer_twice() {
    let server = Server::start().unwrap();
    let proxy = Proxy::in_front_of(&server).unwrap();
    for (first, second) in pairs() {
        let mut direct = prepare(&server);
        let mut meanwhile = server.connection().unwrap();
        proxy.at("MULTI").run(move || {
            let listed = second.list(&mut meanwhile, "ring", "1", 6);
            assert!(listed.unwrap().is_listed());
        });
        let mut conn = proxy.connection().unwrap();
        let listing = first.list(&mut conn, "ring", "1", 5).unwrap();
        assert_eq!(
            listing,
            Listing::NotOwned { retries: 1 },
            "{first:?} {second:?}"
        );
        assert_eq!(
            price(&mut direct, "ring", "1").unwrap().as_deref(),
            Some("6")
        );

        let mut meanwhile = server.connection().unwrap();
        proxy.at("MULTI").run(move || {
            let sold = second.buy(&mut meanwhile, "2", "sword", "1", 10);
            assert!(sold.unwrap().is_bought());
        });
        let purchase = first.buy(&mut conn, "2", "sword", "1", 10).unwrap();
        assert_eq!(
            purchase,
            Purchase::NotForSale { retries: 1 },
            "{first:?} {second:?}"
        );
        assert_eq!(funds(&mut direct, "2").unwrap(), Some(115));
    }
}

/// A foreign program writes just before the transaction of a trade under the item's lock, which
/// notices.
fn told_of(command: &'static [&str], trade: impl FnOnce(&mut Connection) -> anyhow::Result<bool>) {
    let server = Server::start().unwrap();
    let proxy = Proxy::in_front_of(&server).unwrap();
    let mut direct = prepare(&server);
    let mut meanwhile = server.connection().unwrap();
    proxy
        .at("MULTI")
        .run(move || run(&mut meanwhile, command).unwrap());
    let error = typed_error(trade(&mut proxy.connection().unwrap())).unwrap();
    assert!(
        matches!(error, Error::Partial { .. }),
        "{command:?}: {error}"
    );
    let locks: Vec<String> = redis::cmd("KEYS").arg("lock:*").query(&mut direct).unwrap();
    assert!(locks.is_empty(), "{command:?}: {locks:?}");
}

#[test]
fn the_items_lock_reports_changes_that_it_does_not_watch() {
    let list = |conn: &mut Connection| Ok(Way::ItemLock.list(conn, "ring", "1", 5)?.is_listed());
    let buy =
        |conn: &mut Connection| Ok(Way::ItemLock.buy(conn, "2", "sword", "1", 10)?.is_bought());
    told_of(&["ZADD", "market:", "6", "ring.1"], list);
    told_of(&["SET", "market:", "something else"], list);
    told_of(&["SET", "market:", "something else"], buy);
    told_of(&["SET", "users:1", "something else"], buy);
}

#[test]
fn the_books_market_lock_excludes_neither_the_articles_nor_an_items() {
    for_each(&Way::LOCKS, |way, _, conn| {
        user(conn, "1", "0", &["sword"])?;
        user(conn, "2", "10", &[])?;
        run(conn, &["SET", "lock:market:", "python"])?;
        assert!(way.list(conn, "sword", "1", 10)?.is_listed());
        assert!(way.buy(conn, "2", "sword", "1", 10)?.is_bought());
        Ok(())
    })
    .unwrap();
}

#[test]
fn each_lock_excludes_what_it_should() {
    for_each(&Way::LOCKS, |way, server, conn| {
        user(conn, "1", "0", &["ring"])?;
        user(conn, "2", "20", &[])?;
        offer(conn, "sword", "1", "10")?;
        // The lock of another item, and of the same item of another seller.
        run(conn, &["SET", "lock:market:ring.1", "somebody"])?;
        run(conn, &["SET", "lock:market:sword.3", "somebody"])?;
        assert!(way.buy(conn, "2", "sword", "1", 10)?.is_bought());
        run(conn, &["DEL", "lock:market:ring.1"])?;

        waits_for(way, "ring", server, conn, |conn| {
            way.list(conn, "ring", "1", 10).unwrap().is_listed()
        })?;
        waits_for(way, "ring", server, conn, |conn| {
            way.buy(conn, "2", "ring", "1", 10).unwrap().is_bought()
        })?;
        Ok(())
    })
    .unwrap();
}

/// The trade waits until another holder's lock is gone, and then happens.
fn waits_for(
    way: Way,
    item: &str,
    server: &Server,
    conn: &mut Connection,
    trade: impl FnOnce(&mut Connection) -> bool + Send,
) -> anyhow::Result<()> {
    let lock = way.lock_key(item, "1").unwrap();
    run(conn, &["SET", &lock, "somebody"])?;
    run(conn, &["CONFIG", "RESETSTAT"])?;
    let was_listed = price(conn, item, "1")?;
    let mut other = server.connection()?;
    thread::scope(|scope| {
        let trader = scope.spawn(move || trade(&mut other));
        // The trade is waiting once it has retried several times.
        assert!(wait::comes_true(|| wait::calls(conn, "evalsha").unwrap()
            >= 5
            || trader.is_finished()));
        assert!(!trader.is_finished());
        assert_eq!(price(conn, item, "1")?, was_listed);
        run(conn, &["DEL", &lock])?;
        assert!(trader.join().unwrap());
        Ok(())
    })
}
