//! Random sequences of trades against a model in memory, and storms of them from many threads.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
};

use crate::common::{
    Server,
    market::{Way, clear, everything, offer, price, user},
};
use leasehold::{
    Listing, Purchase,
    market::{MAX_PRICE, split_listing},
};
use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use redis::{Commands, Connection};

const USERS: [&str; 3] = ["1", "2", "3"];

/// The users' items and money: in memory, or read from the server.
#[derive(Clone, Debug, Default, PartialEq)]
struct World {
    funds: BTreeMap<String, i64>,
    items: BTreeMap<String, BTreeSet<String>>,
    offers: BTreeMap<(String, String), u64>,
}

impl World {
    fn read(conn: &mut Connection) -> Self {
        let mut world = Self::default();
        for id in USERS {
            let funds = conn.hget(format!("users:{id}"), "funds").unwrap();
            world.funds.insert(id.to_owned(), funds);
            let items = conn.smembers(format!("inventory:{id}")).unwrap();
            world.items.insert(id.to_owned(), items);
        }
        let offers: Vec<(String, u64)> = conn.zrange_withscores("market:", 0, -1).unwrap();
        for (member, price) in offers {
            let (item, seller) = split_listing(&member).unwrap();
            world
                .offers
                .insert((item.to_owned(), seller.to_owned()), price);
        }
        world
    }

    fn write(&self, conn: &mut Connection) {
        clear(conn).unwrap();
        for (id, funds) in &self.funds {
            let items: Vec<&str> = self.items[id].iter().map(String::as_str).collect();
            user(conn, id, &funds.to_string(), &items).unwrap();
        }
        for ((item, seller), price) in &self.offers {
            offer(conn, item, seller, &price.to_string()).unwrap();
        }
    }

    fn list(&mut self, item: &str, seller: &str, price: u64) -> Listing {
        let retries = 0;
        let key = (item.to_owned(), seller.to_owned());
        if !self.items[seller].contains(item) {
            return Listing::NotOwned { retries };
        }
        if self.offers.contains_key(&key) {
            return Listing::AlreadyListed { retries };
        }
        self.items.get_mut(seller).unwrap().remove(item);
        self.offers.insert(key, price);
        Listing::Listed { retries }
    }

    fn buy(&mut self, buyer: &str, item: &str, seller: &str, agreed: u64) -> Purchase {
        let retries = 0;
        let key = (item.to_owned(), seller.to_owned());
        let Some(&price) = self.offers.get(&key) else {
            return Purchase::NotForSale { retries };
        };
        if agreed != price {
            return Purchase::PriceChanged { price, retries };
        }
        let (cost, funds) = (i64::try_from(price).unwrap(), self.funds[buyer]);
        if funds < cost {
            return Purchase::NotEnoughMoney {
                price,
                funds,
                retries,
            };
        }
        if !self.items.get_mut(buyer).unwrap().insert(item.to_owned()) {
            return Purchase::AlreadyOwned { retries };
        }
        self.offers.remove(&key);
        *self.funds.get_mut(buyer).unwrap() -= cost;
        *self.funds.get_mut(seller).unwrap() += cost;
        Purchase::Bought { price, retries }
    }
}

#[derive(Clone, Copy, Debug)]
enum Trade {
    List(&'static str, &'static str, u64),
    /// At this price; `None`: at the price asked.
    Buy(&'static str, &'static str, &'static str, Option<u64>),
}

fn runner(cases: u32) -> TestRunner {
    TestRunner::new(Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    })
}

fn some_trade() -> impl Strategy<Value = Trade> {
    let user = || prop::sample::select(&USERS[..]);
    let item = || prop::sample::select(&["a", "b", "a.b"][..]);
    let price = || prop_oneof![Just(0), 1..30_u64, Just(MAX_PRICE)];
    let buy = (user(), item(), user(), prop::option::weighted(0.2, price()))
        .prop_filter("nobody buys from himself", |(buyer, _, seller, _)| {
            buyer != seller
        })
        .prop_map(|(buyer, item, seller, price)| Trade::Buy(buyer, item, seller, price));
    prop_oneof![
        (item(), user(), price())
            .prop_map(|(item, seller, price)| Trade::List(item, seller, price)),
        buy
    ]
}

fn some_world() -> impl Strategy<Value = World> {
    let items = prop::sample::subsequence(vec!["a", "b", "a.b"], 0..=3);
    let user = (0..40_i64, items);
    prop::array::uniform3(user).prop_map(|users| {
        let mut world = World::default();
        for (id, (funds, items)) in USERS.into_iter().zip(users) {
            world.funds.insert(id.to_owned(), funds);
            world.items.insert(
                id.to_owned(),
                items.into_iter().map(str::to_owned).collect(),
            );
        }
        world
    })
}

#[test]
fn any_sequence_of_trades_does_what_the_model_does() {
    let server = Server::start().unwrap();
    let conn = RefCell::new(server.connection().unwrap());
    let sequences = (some_world(), prop::collection::vec(some_trade(), 1..40));
    for way in Way::ALL {
        runner(40)
            .run(&sequences, |(mut world, trades)| {
                let conn = &mut *conn.borrow_mut();
                world.write(conn);
                for trade in trades {
                    match trade {
                        Trade::List(item, seller, price) => {
                            let listing = way.list(conn, item, seller, price).unwrap();
                            prop_assert_eq!(listing, world.list(item, seller, price));
                        }
                        Trade::Buy(buyer, item, seller, price) => {
                            let key = (item.to_owned(), seller.to_owned());
                            let price = price.or(world.offers.get(&key).copied()).unwrap_or(5);
                            let purchase = way.buy(conn, buyer, item, seller, price).unwrap();
                            prop_assert_eq!(purchase, world.buy(buyer, item, seller, price));
                        }
                    }
                }
                prop_assert_eq!(&World::read(conn), &world, "{:?}", way);
                let keys = everything(conn).unwrap();
                prop_assert!(!keys.keys().any(|key| key.starts_with("lock:")));
                Ok(())
            })
            .unwrap();
    }
}

#[test]
fn every_price_arrives_exactly() {
    let server = Server::start().unwrap();
    let conn = RefCell::new(server.connection().unwrap());
    let prices = prop_oneof![
        0..1_000_u64,
        MAX_PRICE - 1_000..=MAX_PRICE,
        0..=MAX_PRICE,
        Just(1 << 31),
        Just(MAX_PRICE)
    ];
    for way in Way::ALL {
        runner(60)
            .run(&prices, |asked| {
                let conn = &mut *conn.borrow_mut();
                clear(conn).unwrap();
                user(conn, "1", "7", &["ring"]).unwrap();
                user(conn, "2", &i64::MAX.to_string(), &[]).unwrap();

                assert!(way.list(conn, "ring", "1", asked).unwrap().is_listed());
                let score = price(conn, "ring", "1").unwrap();
                prop_assert_eq!(score, Some(asked.to_string()));
                let another = asked.checked_sub(1).unwrap_or(1);
                let refusal = Purchase::PriceChanged {
                    price: asked,
                    retries: 0,
                };
                let purchase = way.buy(conn, "2", "ring", "1", another).unwrap();
                prop_assert_eq!(purchase, refusal);

                assert!(way.buy(conn, "2", "ring", "1", asked).unwrap().is_bought());
                let asked = i64::try_from(asked).unwrap();
                let funds: (i64, i64) = redis::pipe()
                    .hget("users:1", "funds")
                    .hget("users:2", "funds")
                    .query(conn)
                    .unwrap();
                prop_assert_eq!(funds, (7 + asked, i64::MAX - asked));
                Ok(())
            })
            .unwrap();
    }
}
