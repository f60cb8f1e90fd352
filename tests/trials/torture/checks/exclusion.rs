//! Two holders that exclude each other never hold a lock at the same time, and never are more
//! permits held than exist.
//!
//! A holder surely holds a lock from the answer to its acquire until the last moment before a check
//! that succeeded. Both times come from one clock, so an overlap of two holds proves two holders at
//! once. For a semaphore, an overlap of more holds than permits proves the same.

use super::{Checker, Evidence, Hold, Holds, Span, Violation, server_log::Ends};
use crate::{clock::Nanos, history::Mode};

pub(super) fn check(holds: &Holds, ends: &Ends, evidence: &Evidence<'_>) -> Vec<Violation> {
    // A fault that ended before a permit was granted cannot have affected it.
    let began = |hold: &Hold| {
        let granted = ends.permit_granted(hold, evidence).unwrap_or(0);
        granted.max(hold.asked.at)
    };
    holds
        .0
        .iter()
        .flat_map(|(lock, holds)| of_lock(lock, holds, &began))
        .collect()
}

fn of_lock(lock: &str, holds: &[Hold], began: &dyn Fn(&Hold) -> Nanos) -> Vec<Violation> {
    let mut sure: Vec<(Span, &Hold)> = holds
        .iter()
        .filter_map(|hold| Some((hold.sure()?, hold)))
        .collect();
    sure.sort_by_key(|(span, _)| span.from);
    let (mut found, mut inside): (Vec<Violation>, Vec<(Span, &Hold)>) = (Vec::new(), Vec::new());
    for (span, hold) in sure {
        inside.retain(|(other, _)| other.to > span.from);
        if let Mode::Permit(permits) = hold.asked.mode {
            found.extend(too_many(lock, &inside, (span, hold), permits, began));
            inside.push((span, hold));
            continue;
        }
        for (other, first) in inside.iter().filter(|(_, first)| first.excludes(hold)) {
            let cause = Span {
                from: first.asked.at.min(hold.asked.at),
                to: span.from,
            };
            let both = other.within(span);
            let what = format!(
                "{} of worker {} acquired the lock while {} of worker {} held it, for {} µs",
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

/// A holder acquired a permit while all were held. The cause may have hit any of the holders.
fn too_many(
    lock: &str,
    inside: &[(Span, &Hold)],
    (span, hold): (Span, &Hold),
    permits: u32,
    began: &dyn Fn(&Hold) -> Nanos,
) -> Option<Violation> {
    let are_full = inside.len() >= usize::try_from(permits).unwrap_or(usize::MAX);
    let others = inside.iter().map(|(_, other)| began(other));
    let cause = Span {
        from: others.min()?.min(began(hold)),
        to: span.from,
    };
    let together = inside.iter().map(|(other, _)| other.within(span));
    let all = together.min().unwrap_or(0);
    let mut workers: Vec<_> = inside.iter().map(|(_, it)| it.asked.worker).collect();
    workers.push(hold.asked.worker);
    are_full.then(|| {
        let what = format!(
            "{} of worker {} was holder {} of {permits} permits, for {} µs",
            hold.asked.job,
            hold.asked.worker,
            inside.len() + 1,
            all / 1_000
        );
        Violation {
            over: span.from + all,
            ..Violation::new(Checker::Exclusion, lock, cause, what).of_workers(&workers)
        }
    })
}
