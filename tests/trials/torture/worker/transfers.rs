//! A job that moves money between two accounts, in transactions under two locks, each of which
//! protects one of them.

use leasehold::{
    Lease,
    redis::{Commands, Connection, Pipeline},
};

use super::{
    hand::Hand,
    leases::{Way, outcome, take},
};
use crate::{history::Mode, sums::TRANSFERS};

/// All in one slot, with the keys.
const LOCKS: [&str; 2] = ["t0{w}", "t1{w}"];
const ACCOUNTS: [&str; 2] = ["{w}:a", "{w}:b"];
const FUNDS: i64 = 100;

/// Sets the funds of the accounts, whose sum must not change.
pub(crate) fn endow_accounts(conn: &mut Connection) -> anyhow::Result<()> {
    for account in ACCOUNTS {
        let _: () = conn.set(account, FUNDS)?;
    }
    Ok(())
}

/// Returns the error in the accounts, if there is one.
pub(crate) fn accounts_are_wrong(conn: &mut Connection) -> anyhow::Result<Option<String>> {
    let [a, b] = ACCOUNTS;
    let (a, b): (Option<i64>, Option<i64>) = conn.mget(&[a, b])?;
    let (a, b) = (a.unwrap_or(0), b.unwrap_or(0));
    let is_well = a >= 0 && b >= 0 && a + b == 2 * FUNDS;
    Ok((!is_well).then(|| format!("the accounts hold {a} and {b}, and started with {FUNDS} each")))
}

#[allow(clippy::unnecessary_wraps, reason = "all jobs have this signature")]
pub(super) fn transfer(hand: &mut Hand) -> anyhow::Result<()> {
    let name = LOCKS[usize::from(hand.random.bool())];
    let lock = hand.locks.lock(name).with(hand.options());
    let way = Way::of(name, Mode::Exclusive);
    take(hand, &lock, &way, &mut move_some);
    hand.pause(20);
    Ok(())
}

/// Moves an amount, if the balance allows it.
fn move_some(hand: &mut Hand, lease: &Lease) {
    let amount = hand.random.i64(1..FUNDS);
    let [from, to] = if hand.random.bool() {
        ACCOUNTS
    } else {
        [ACCOUNTS[1], ACCOUNTS[0]]
    };
    let is_half = hand.plan.has_bug("half-transfer");
    let done = lease.transaction(&ACCOUNTS, |conn, pipe: &mut Pipeline| {
        let funds: Option<i64> = conn.get(from)?;
        if funds.unwrap_or(0) < amount {
            return Ok(false);
        }
        pipe.decr(from, amount).incr(TRANSFERS, 1);
        if !is_half {
            pipe.incr(to, amount);
        }
        Ok(true)
    });
    let was_done = match done {
        Ok(moved) => Some(moved),
        Err(_) => outcome(&done),
    };
    hand.added(TRANSFERS, was_done);
}
