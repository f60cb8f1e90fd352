//! Nobody is sure of a lock while another is who excludes it.
//!
//! A holder is surely in from the moment at which its acquire had answered to the last moment before it asked whether it
//! holds the lock and heard yes. Both are read from the one clock of the machine, so that two such times that overlap prove
//! two holders at one moment.

use super::{Checker, Hold, Holds, Span, Violation};

pub(super) fn check(holds: &Holds) -> Vec<Violation> {
    holds
        .0
        .iter()
        .flat_map(|(lock, holds)| of_lock(lock, holds))
        .collect()
}

fn of_lock(lock: &str, holds: &[Hold]) -> Vec<Violation> {
    let mut sure: Vec<(Span, &Hold)> = holds
        .iter()
        .filter_map(|hold| Some((hold.sure()?, hold)))
        .collect();
    sure.sort_by_key(|(span, _)| span.from);
    let (mut found, mut inside): (Vec<Violation>, Vec<(Span, &Hold)>) = (Vec::new(), Vec::new());
    for (span, hold) in sure {
        inside.retain(|(other, _)| other.to > span.from);
        for (other, first) in inside.iter().filter(|(_, first)| first.excludes(hold)) {
            let cause = Span {
                from: first.asked.at.min(hold.asked.at),
                to: span.from,
            };
            let both = other.within(span);
            let what = format!(
                "{} of worker {} came in while {} of worker {} was sure, for {} µs",
                hold.asked.job,
                hold.asked.worker,
                first.asked.job,
                first.asked.worker,
                both / 1_000
            );
            found.push(Violation {
                over: span.from + both,
                ..Violation::new(Checker::Exclusion, lock, cause, what)
                    .of_workers(&[hold.asked.worker, first.asked.worker])
            });
        }
        inside.push((span, hold));
    }
    found
}
