//! Fencing numbers grow from hold to hold, each belongs to one hold, and the resource never refuses
//! the holder.

use std::collections::HashMap;

use super::{Checker, Evidence, Figures, Hold, Holds, Span, Violation};
use crate::history::Record;

pub(super) fn check(
    holds: &Holds,
    evidence: &Evidence<'_>,
    figures: &mut Figures,
) -> Vec<Violation> {
    let mut found: Vec<_> = holds
        .0
        .iter()
        .flat_map(|(lock, holds)| {
            they_grow(lock, holds)
                .into_iter()
                .chain(used_once(lock, holds))
        })
        .collect();
    found.extend(at_the_resource(holds, evidence, figures));
    found
}

/// A hold that was requested after another was granted has a greater number, or the same one if it
/// has the same owner.
fn they_grow(lock: &str, holds: &[Hold]) -> Vec<Violation> {
    let numbered = |hold: &Hold| Some((hold.granted.as_ref()?.fence?, hold.granted.as_ref()?.at));
    let mut granted: Vec<(u64, u64, &Hold)> = holds
        .iter()
        .filter_map(|hold| numbered(hold).map(|(fence, at)| (at, fence, hold)))
        .collect();
    granted.sort_by_key(|(at, ..)| *at);
    let mut asked: Vec<(u64, &Hold)> = granted
        .iter()
        .map(|(_, fence, hold)| (*fence, *hold))
        .collect();
    asked.sort_by_key(|(_, hold)| hold.asked.at);
    let (mut earlier, mut greatest, mut found) = (granted.into_iter().peekable(), None, Vec::new());
    for (fence, hold) in asked {
        while let Some((_, number, other)) = earlier.next_if(|(at, ..)| *at < hold.asked.at) {
            if greatest.is_none_or(|(most, _)| number > most) {
                greatest = Some((number, other));
            }
        }
        let Some((most, other)) = greatest else {
            continue;
        };
        let is_same_hold =
            most == fence && other.asked.owner.is_some() && other.asked.owner == hold.asked.owner;
        if fence <= most && !is_same_hold && !is_entered_again(hold, holds) {
            let what = format!(
                "{} has number {fence}, after {most} of {}",
                hold.asked.job, other.asked.job
            );
            let span = Span {
                from: other.asked.at,
                to: hold.granted.as_ref().map_or(0, |granted| granted.at),
            };
            found.push(Violation::new(Checker::Fencing, lock, span, what));
        }
    }
    found
}

/// Returns true if its owner already holds the lock, with the same number.
fn is_entered_again(hold: &Hold, holds: &[Hold]) -> bool {
    let is_around = |outer: &Hold| match (&outer.granted, &hold.granted) {
        (Some(first), Some(again)) => {
            hold.asked.owner.is_some()
                && outer.asked.owner == hold.asked.owner
                && first.fence == again.fence
                && first.at <= hold.asked.at
                && outer.ended.is_none_or(|(at, _)| at >= hold.asked.at)
        }
        _ => false,
    };
    holds.iter().any(is_around)
}

fn used_once(lock: &str, holds: &[Hold]) -> Vec<Violation> {
    let (mut users, mut found) = (HashMap::new(), Vec::new());
    for hold in holds {
        let Some(granted) = &hold.granted else {
            continue;
        };
        let Some(fence) = granted.fence else { continue };
        let Some(first) = users.insert(fence, hold) else {
            continue;
        };
        if first.asked.owner.is_none() || first.asked.owner != hold.asked.owner {
            let span = Span {
                from: first.asked.at,
                to: granted.at,
            };
            let what = format!(
                "number {fence} was given to {} and to {}",
                first.asked.job, hold.asked.job
            );
            found.push(Violation::new(Checker::Fencing, lock, span, what));
        }
    }
    found
}

/// Checks the writes that the resource accepted and refused.
fn at_the_resource(
    holds: &Holds,
    evidence: &Evidence<'_>,
    figures: &mut Figures,
) -> Vec<Violation> {
    let by_id: HashMap<u64, &Hold> = holds
        .0
        .values()
        .flatten()
        .map(|hold| (hold.asked.id, hold))
        .collect();
    let mut writes = Vec::new();
    for record in evidence.records {
        if let Record::Wrote {
            id,
            lock,
            fence,
            at,
            nth,
            accepted,
        } = record
        {
            writes.push((*nth, *at, *id, *fence, lock, *accepted));
        }
    }
    writes.sort_unstable();
    let mut found = Vec::new();
    // The greatest accepted number, by lock.
    let mut last: HashMap<&String, u64> = HashMap::new();
    for (_, at, id, fence, lock, accepted) in writes {
        figures.writes += 1;
        figures.writes_refused += u64::from(!accepted);
        let Some(hold) = by_id.get(&id) else { continue };
        let span = Span {
            from: hold.asked.at,
            to: at,
        };
        let greatest = last.entry(lock).or_default();
        if accepted && fence < *greatest {
            let what = format!("number {fence} was accepted after {greatest}");
            found.push(Violation::new(Checker::Fencing, lock, span, what));
        }
        if !accepted && hold.sure_until > at {
            let what = format!(
                "number {fence} of {} was refused while the lock was held",
                hold.asked.job
            );
            let refusal = Violation::refusal(lock, span, what);
            found.push(refusal.of_workers(&[hold.asked.worker]));
        }
        if accepted {
            *greatest = (*greatest).max(fence);
        }
    }
    found
}
