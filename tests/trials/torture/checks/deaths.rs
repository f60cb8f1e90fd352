//! The time from the death of a holder until another acquires the lock.

use super::{
    Figures, Hold, SLACK, Span,
    free::{Taking, longest_free},
};
use crate::clock::Nanos;

/// Measures the time from the death of a holder until another one has the lock, where someone was
/// waiting at that moment. It is late if one of them waited through all of the allowed time after
/// the lease while nobody else could have held the lock.
///
/// `excuses`: the delays within a span that a waiter could not avoid.
pub(super) fn time(
    holds: &[Hold],
    taken: &[Taking],
    disturbed: &[Span],
    excuses: impl Fn(&Hold, Span) -> Vec<Span>,
    figures: &mut Figures,
) {
    for dead in holds.iter().filter(|hold| hold.granted.is_some()) {
        let Some(killed) = dead.killed else { continue };
        let until = killed + dead.asked.lease + SLACK;
        let in_time = Span {
            from: killed,
            to: until,
        };
        let others = || {
            (holds.iter())
                .filter(|hold| hold.asked.worker != dead.asked.worker && hold.excludes(dead))
        };
        let waited_until = |moment: Nanos| {
            others().filter(move |hold| {
                let waited = hold.waited();
                waited.is_some_and(|waited| waited.from < killed && waited.to > moment)
            })
        };
        let next = others()
            .filter_map(|hold| hold.granted.as_ref())
            .filter(|granted| granted.at > killed)
            .map(|granted| granted.at)
            .min();
        let is_late_for_it = |hold: &Hold| {
            // A waiter for several locks may have been waiting for another one.
            if hold.asked.job == "set" {
                return false;
            }
            let free = longest_free(hold, in_time, taken, &[&excuses(hold, in_time)]);
            free.is_some_and(|free| free.length() >= SLACK)
        };
        let is_late = next.is_none_or(|next| next > until);
        let is_disturbed = disturbed.iter().any(|span| span.meets(in_time));
        match next {
            Some(next) if !is_disturbed && !is_late && waited_until(killed).next().is_some() => {
                figures.deaths.push(next - killed);
            }
            Some(next) if !is_disturbed && waited_until(until).any(is_late_for_it) => {
                figures.deaths.push(next - killed);
                figures.deaths_late += 1;
            }
            _ => figures.deaths_untold += 1,
        }
    }
}
