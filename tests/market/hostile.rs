//! The market with data written by other programs: the error says what is wrong, and nothing
//! changes.

use crate::common::market::{
    Way, clear, everything, for_each, funds, has, offer, run, typed_error, user,
};
use leasehold::{Error, Purchase, market::MAX_PRICE};
use redis::Connection;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Trade {
    List,
    Buy,
}

impl Trade {
    /// User 1 lists the ring, user 2 buys the sword of user 1.
    fn by(self, way: Way, conn: &mut Connection) -> anyhow::Result<String> {
        Ok(match self {
            Self::List => format!("{:?}", way.list(conn, "ring", "1", 5)?),
            Self::Buy => format!("{:?}", way.buy(conn, "2", "sword", "1", 10)?),
        })
    }
}

/// Seller 1 has one item to list and one in the market, and buyer 2 can pay for it.
fn two_traders(conn: &mut Connection) -> redis::RedisResult<()> {
    clear(conn)?;
    user(conn, "1", "7", &["ring"])?;
    user(conn, "2", "125", &["coat"])?;
    offer(conn, "sword", "1", "10")
}

/// The trade fails with a wrong-kind error, and leaves all data and the connection unchanged.
fn assert_wrong_kind(
    way: Way,
    trade: Trade,
    conn: &mut Connection,
    about: &str,
) -> anyhow::Result<()> {
    let before = everything(conn)?;
    let error = typed_error(trade.by(way, conn))?;
    assert!(
        matches!(&error, Error::WrongKind { found, .. } if found.contains(about)),
        "{trade:?}: `{error}` does not contain `{about}`"
    );
    assert_eq!(everything(conn)?, before, "{trade:?}: {error}");

    // Writes to every key that may be watched: a WATCH left behind would abort the next
    // transaction.
    clear(conn)?;
    let committed: Option<(String,)> = redis::pipe().atomic().cmd("PING").query(conn)?;
    assert!(committed.is_some(), "{trade:?}: left a WATCH behind");
    Ok(())
}

#[test]
fn another_type_at_any_key_is_refused() {
    use Trade::{Buy, List};
    for_each(&Way::ALL, |way, _, conn| {
        let mut cases = vec![
            (List, "market:".to_owned()),
            (List, "inventory:1".to_owned()),
            (Buy, "market:".to_owned()),
            (Buy, "users:2".to_owned()),
            (Buy, "users:1".to_owned()),
            (Buy, "inventory:2".to_owned()),
        ];
        cases.extend(way.lock_key("ring", "1").map(|lock| (List, lock)));
        cases.extend(way.lock_key("sword", "1").map(|lock| (Buy, lock)));
        for (trade, key) in cases {
            two_traders(conn)?;
            run(conn, &["DEL", &key])?;
            run(conn, &["RPUSH", &key, "something else"])?;
            let is_lock = key.starts_with("lock:");
            let about = if is_lock { "another type" } else { &key };
            assert_wrong_kind(way, trade, conn, about)?;
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn keys_that_a_trade_does_not_use_may_hold_anything() {
    for_each(&Way::ALL, |way, _, conn| {
        two_traders(conn)?;
        run(conn, &["SET", "users:1", "x"])?;
        assert_eq!(Trade::List.by(way, conn)?, "Listed { retries: 0 }");
        two_traders(conn)?;
        run(conn, &["DEL", "inventory:1"])?;
        run(conn, &["SET", "inventory:1", "x"])?;
        assert_eq!(
            Trade::Buy.by(way, conn)?,
            "Bought { price: 10, retries: 0 }"
        );
        Ok(())
    })
    .unwrap();
}

#[test]
fn funds_that_hincrby_rejects_are_refused() {
    let no_numbers = [
        "12.5",
        "abc",
        "",
        "+50",
        "007",
        " 50",
        "50 ",
        "-0",
        "5e1",
        "0x32",
        "9223372036854775808",
        "-9223372036854775809",
    ];
    for_each(&Way::ALL, |way, _, conn| {
        for text in no_numbers {
            for user in ["users:1", "users:2"] {
                two_traders(conn)?;
                run(conn, &["HSET", user, "funds", text])?;
                assert_wrong_kind(way, Trade::Buy, conn, user)?;
            }
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn funds_are_compared_as_numbers() {
    for_each(&Way::ALL, |way, _, conn| {
        // As texts, "9" is greater than "10" and "125" is smaller.
        for (text, has) in [
            ("9", 9),
            ("0", 0),
            ("-5", -5),
            ("-9223372036854775808", i64::MIN),
        ] {
            two_traders(conn)?;
            run(conn, &["HSET", "users:2", "funds", text])?;
            let refusal = Purchase::NotEnoughMoney {
                price: 10,
                funds: has,
                retries: 0,
            };
            assert_eq!(way.buy(conn, "2", "sword", "1", 10)?, refusal);
            assert_eq!(funds(conn, "2")?, Some(has));
        }
        two_traders(conn)?;
        assert!(way.buy(conn, "2", "sword", "1", 10)?.is_bought());
        Ok(())
    })
    .unwrap();
}

#[test]
fn users_without_funds_can_sell_and_users_in_debt_cannot_take_gifts() {
    for_each(&Way::ALL, |way, _, conn| {
        two_traders(conn)?;
        run(conn, &["DEL", "users:2"])?;
        run(conn, &["HSET", "users:2", "name", "Bill"])?;
        let refusal = Purchase::NotEnoughMoney {
            price: 10,
            funds: 0,
            retries: 0,
        };
        assert_eq!(way.buy(conn, "2", "sword", "1", 10)?, refusal);
        assert_eq!(funds(conn, "2")?, None);

        run(conn, &["DEL", "users:1"])?;
        run(conn, &["HSET", "users:2", "funds", "10"])?;
        assert!(way.buy(conn, "2", "sword", "1", 10)?.is_bought());
        assert_eq!(funds(conn, "1")?, Some(10));

        offer(conn, "gift", "1", "0")?;
        run(conn, &["HSET", "users:2", "funds", "-1"])?;
        let refusal = Purchase::NotEnoughMoney {
            price: 0,
            funds: -1,
            retries: 0,
        };
        assert_eq!(way.buy(conn, "2", "gift", "1", 0)?, refusal);
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_price_that_is_not_an_integer_up_to_two_to_the_53_sells_nothing() {
    let no_prices = [
        "9.99",
        "10.5",
        "0.5",
        "-5",
        "-0.5",
        "inf",
        "-inf",
        "1e17",
        "9007199254740994",
        "9223372036854775807",
        "1e300",
    ];
    for_each(&Way::ALL, |way, _, conn| {
        for text in no_prices {
            two_traders(conn)?;
            offer(conn, "sword", "1", text)?;
            assert_wrong_kind(way, Trade::Buy, conn, "price")?;
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_sellers_funds_stop_at_two_to_the_62() {
    let most = 1_i64 << 62;
    let dearest = i64::try_from(MAX_PRICE).unwrap();
    for_each(&Way::ALL, |way, _, conn| {
        let prepare = |conn: &mut Connection, seller: i64, buyer: i64, price: i64| {
            two_traders(conn)?;
            offer(conn, "sword", "1", &price.to_string())?;
            run(conn, &["HSET", "users:1", "funds", &seller.to_string()])?;
            run(conn, &["HSET", "users:2", "funds", &buyer.to_string()])
        };
        for (seller, price) in [(most, 10), (most - 9, 10), (i64::MAX, 10), (i64::MAX, 0)] {
            prepare(conn, seller, 125, price)?;
            let before = everything(conn)?;
            let asked = u64::try_from(price)?;
            let error = typed_error(way.buy(conn, "2", "sword", "1", asked))?;
            assert!(matches!(&error, Error::WrongKind { found, .. } if found.contains("users:1")));
            assert_eq!(everything(conn)?, before, "{seller} + {price}");
        }
        // A sale that just fits, to a buyer with more than any seller may get.
        prepare(conn, most - dearest, i64::MAX, dearest)?;
        assert!(way.buy(conn, "2", "sword", "1", MAX_PRICE)?.is_bought());
        assert_eq!(funds(conn, "1")?, Some(most));
        assert_eq!(funds(conn, "2")?, Some(i64::MAX - dearest));
        assert!(has(conn, "2", "sword")?);
        Ok(())
    })
    .unwrap();
}
