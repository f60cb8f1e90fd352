//! The same work written directly with redis-rs, as the reference.

use redis::{Connection, pipe};
use uuid::Uuid;

/// `SET NX PX`, then `WATCH` and `GET`, then `MULTI`, `DEL`, `EXEC`: three round trips.
pub(crate) fn lock_and_unlock(conn: &mut Connection, key: &str) -> anyhow::Result<()> {
    let token = Uuid::new_v4().to_string();
    let locked: bool = redis::cmd("SET")
        .arg(key)
        .arg(&token)
        .arg("NX")
        .arg("PX")
        .arg(10_000)
        .query(conn)?;
    anyhow::ensure!(locked, "the lock is held");
    let ((), holder): ((), String) = pipe()
        .cmd("WATCH")
        .arg(key)
        .cmd("GET")
        .arg(key)
        .query(conn)?;
    anyhow::ensure!(holder == token, "the lock is lost");
    let deleted: Option<(u32,)> = pipe().atomic().cmd("DEL").arg(key).query(conn)?;
    anyhow::ensure!(deleted == Some((1,)), "the lock was touched");
    Ok(())
}

/// A purchase under an item lock as in the book's listings: seven round trips.
pub(crate) fn purchase_in_seven_round_trips(
    conn: &mut Connection,
    buyer: &str,
    item: &str,
    seller: &str,
) -> anyhow::Result<()> {
    let member = format!("{item}.{seller}");
    let lock = format!("lock:market:{member}");
    let (buyer_key, seller_key) = (format!("users:{buyer}"), format!("users:{seller}"));
    let token = Uuid::new_v4().to_string();

    let locked: bool = redis::cmd("SETNX").arg(&lock).arg(&token).query(conn)?;
    anyhow::ensure!(locked, "the lock is held");
    redis::cmd("EXPIRE").arg(&lock).arg(10).exec(conn)?;

    let (price, funds): (u64, u64) = pipe()
        .cmd("ZSCORE")
        .arg("market:")
        .arg(&member)
        .cmd("HGET")
        .arg(&buyer_key)
        .arg("funds")
        .query(conn)?;
    anyhow::ensure!(price <= funds, "not enough money");
    pipe()
        .atomic()
        .cmd("HINCRBY")
        .arg(&seller_key)
        .arg("funds")
        .arg(price)
        .ignore()
        .cmd("HINCRBY")
        .arg(&buyer_key)
        .arg("funds")
        .arg(format!("-{price}"))
        .ignore()
        .cmd("SADD")
        .arg(format!("inventory:{buyer}"))
        .arg(item)
        .ignore()
        .cmd("ZREM")
        .arg("market:")
        .arg(&member)
        .ignore()
        .exec(conn)?;

    redis::cmd("WATCH").arg(&lock).exec(conn)?;
    let holder: String = redis::cmd("GET").arg(&lock).query(conn)?;
    anyhow::ensure!(holder == token, "the lock is lost");
    let deleted: Option<(u32,)> = pipe().atomic().cmd("DEL").arg(&lock).query(conn)?;
    anyhow::ensure!(deleted == Some((1,)), "the lock was touched");
    Ok(())
}
