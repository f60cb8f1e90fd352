//! The market that the lessons trade in: user 17 sells, user 27 buys.

use crate::prelude::*;

/// The seller and the buyer's money, and what is for sale at what price.
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

/// What somebody has.
pub(crate) fn funds(conn: &mut Connection, user: &str) -> Result<i64> {
    Ok(redis::cmd("HGET").arg(user).arg("funds").query(conn)?)
}
