//! The market in which the lessons trade: user 17 sells, user 27 buys.

use crate::prelude::*;

/// Writes the users' money, and the items for sale with their prices.
pub(crate) fn open(conn: &mut Connection, funds: u32, offers: &[(&str, &str)]) -> Result<()> {
    let mut all = redis::pipe();
    all.hset("users:17", "funds", 0).ignore();
    all.hset("users:27", "funds", funds).ignore();
    for (item, price) in offers {
        all.cmd("ZADD")
            .arg("market:")
            .arg(price)
            .arg(format!("{item}.17"));
    }
    all.exec(conn)?;
    Ok(())
}

/// The user's money.
pub(crate) fn funds(conn: &mut Connection, user: &str) -> Result<i64> {
    Ok(redis::cmd("HGET").arg(user).arg("funds").query(conn)?)
}
