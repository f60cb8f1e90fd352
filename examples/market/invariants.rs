//! Checks, from the data left in Redis alone, that nothing was created, lost or sold twice.

use std::{
    collections::{HashMap, HashSet},
    hash::Hash,
};

use leasehold::{
    Pool,
    market::{MARKET, inventory_key, split_listing, user_key},
    redis::{self, Commands, Connection, FromRedisValue},
};

use crate::stage::{Stage, items_made_by};

/// The data found in Redis after a cell.
#[derive(Clone, Debug, Default)]
pub(crate) struct Audit {
    pub(crate) funds: i128,
    pub(crate) items: u64,
    /// The broken invariants; empty if all is well.
    pub(crate) violations: Vec<String>,
}

impl Audit {
    /// Reads every user's funds and every place that can hold an item.
    pub(crate) fn of(stage: &Stage, pool: &Pool) -> anyhow::Result<Self> {
        let mut conn = pool.get()?;
        let mut audit = Self::default();
        audit.count_money(&mut conn, stage)?;
        audit.look_for_items(&mut conn, stage)?;
        Ok(audit)
    }

    pub(crate) fn holds(&self) -> bool {
        self.violations.is_empty()
    }

    /// Checks that the sum of funds has not changed, and that no user's funds are negative.
    fn count_money(&mut self, conn: &mut Connection, stage: &Stage) -> anyhow::Result<()> {
        for user in stage.users() {
            let funds: i64 = conn.hget(user_key(user), "funds")?;
            if funds < 0 {
                self.violations.push(format!("{user} has funds of {funds}"));
            }
            self.funds += i128::from(funds);
        }
        if self.funds != stage.funds() {
            self.violations.push(format!(
                "the funds are {} in total and were {}",
                self.funds,
                stage.funds()
            ));
        }
        Ok(())
    }

    /// Checks that every item made is in one inventory or in the market, and that nothing else is.
    fn look_for_items(&mut self, conn: &mut Connection, stage: &Stage) -> anyhow::Result<()> {
        let mut places = places_of_items(conn, stage)?;
        let (mut lost, mut doubled) = (0_u64, 0_u64);
        for seller in &stage.sellers {
            for item in items_made_by(conn, seller)? {
                self.items += 1;
                match places.remove(&item) {
                    Some(1) => {}
                    Some(_) => doubled += 1,
                    None => lost += 1,
                }
            }
        }
        for (count, what) in [
            (lost, "were lost"),
            (doubled, "are in more than one place"),
            (u64::try_from(places.len())?, "came from nowhere"),
        ] {
            if count > 0 {
                self.violations.push(format!("{count} items {what}"));
            }
        }
        Ok(())
    }
}

/// Counts the places that hold each item.
fn places_of_items(conn: &mut Connection, stage: &Stage) -> anyhow::Result<HashMap<String, u32>> {
    let mut places = HashMap::new();
    let mut found = |item| *places.entry(item).or_default() += 1;
    for (listing, _price) in scan::<(String, String)>(conn, "ZSCAN", MARKET)? {
        let item = split_listing(&listing).map_or(listing.as_str(), |(item, _)| item);
        found(item.to_owned());
    }
    for user in stage.users() {
        scan(conn, "SSCAN", &inventory_key(user))?
            .into_iter()
            .for_each(&mut found);
    }
    Ok(places)
}

/// Returns all members of a set. A scan never blocks the server for long, but may return a member
/// twice.
fn scan<T: FromRedisValue + Eq + Hash>(
    conn: &mut Connection,
    command: &str,
    key: &str,
) -> anyhow::Result<HashSet<T>> {
    let mut scan = redis::cmd(command);
    scan.arg(key).cursor_arg(0).arg("COUNT").arg(1_000);
    Ok(scan.iter(conn)?.collect::<Result<_, _>>()?)
}
