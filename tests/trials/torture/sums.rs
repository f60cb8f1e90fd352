//! Checks the totals: numbers under locks, money, and items.

use leasehold::{market::MARKET, redis::Commands};

use crate::{
    checks::{Checker, Span, Violation},
    clock::now,
    history::Record,
    stage::Stage,
    worker::{Money, accounts_are_wrong},
};

/// The numbers that are incremented under the locks whose slots they share.
pub(crate) const COMMITS: &str = "{lock:m1}:number";
pub(crate) const PLAIN: &str = "{lock:p0}:number";
pub(crate) const ONCE: &str = "{lock:c0}:number";
pub(crate) const PERMITS: &str = "{lock:n0}:number";
pub(crate) const SETS: &str = "{lock:a00}:number";
pub(crate) const TRANSFERS: &str = "{w}:number";

/// Checks the sums. `killed`: the number of commits of killed workers whose result is unknown.
/// `money`: the market's initial state, if it is checked.
pub(crate) fn check(
    stage: &Stage,
    records: &[Record],
    killed: usize,
    money: Option<Money>,
) -> anyhow::Result<Vec<Violation>> {
    let whole = Span { from: 0, to: now() };
    let mut found = Vec::new();
    let mut say = |what: String| found.push(Violation::new(Checker::Sums, "", whole, what));
    for number in [COMMITS, PLAIN, ONCE, PERMITS, SETS, TRANSFERS] {
        let of_number = records.iter().filter_map(|record| match record {
            Record::Added { number: of, done } if of == number => Some(*done),
            _ => None,
        });
        let (mut done, mut perhaps) = (0_u64, u64::try_from(killed).unwrap_or(0));
        for was_done in of_number {
            done += u64::from(was_done == Some(true));
            perhaps += u64::from(was_done.is_none());
        }
        let value: Option<u64> = stage.judge(number)?.get(number).unwrap_or_default();
        let value = value.unwrap_or(0);
        if value < done || value > done + perhaps {
            say(format!(
                "{number} is {value}, after {done} commits and {perhaps} with unknown result"
            ));
        }
    }
    if let Some(what) = accounts_are_wrong(&mut stage.judge(TRANSFERS)?)? {
        say(what);
    }
    if let Some(money) = money {
        match Money::count(&mut stage.judge(MARKET)?) {
            Ok(now) if now.funds == money.funds && now.items == money.items && now.poorest >= 0 => {
            }
            other => say(format!("the market has {other:?}, and had {money:?}")),
        }
    }
    Ok(found)
}
