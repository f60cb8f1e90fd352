//! No waiter waits while the lock is free, waits end on time, and a dead holder's lock soon has
//! another holder.
//!
//! At the longest, a lock may be held from the attempt until the answer to the release, or for a
//! lease after its holder was killed, halted, or got no answer. Subtract all of that from a wait,
//! and the times in which faults disturb or the machine stood still: the rest is time with a free
//! lock.
//!
//! For permits, count those that may be held at a moment. As far as a waiter knows, it may have
//! been granted one at any time since it asked, and there are always as many waiters as permits. So
//! the time of a grant is taken from the server's log.

use std::collections::HashMap;

use super::{
    Checker, Evidence, Figures, Hold, Holds, SLACK, Span, Violation, deaths,
    server_log::Ends,
    spans::{full, gaps},
};
use crate::{
    clock::{Nanos, millis},
    faults::is_replicated,
    history::{Mode, Record},
    worker::IO_TIMEOUT,
};

/// For this long after a waiting writer was seen, no reader enters: its intent.
const INTENT: Nanos = millis(1_000);
/// A try without a wait has this long to get a connection while all are lent, as docs/guarantees.md
/// says.
const LENT: Nanos = millis(200);
/// A resumed process has much to do in all of its threads.
const GOING_ON: Nanos = millis(250);

/// By worker.
type Spans = HashMap<u32, Vec<Span>>;
/// Shorter waits are not checked for a free lock.
const LOOKED_AT: Nanos = millis(50);

/// A time in which a lock may have been held, and the kind of hold.
pub(super) struct Taking {
    span: Span,
    mode: Mode,
    /// True if only a writer's intent blocks the lock.
    is_intent: bool,
    /// The hold. `None`: a fault.
    id: Option<u64>,
}

pub(super) fn check(
    holds: &Holds,
    ends: &Ends,
    evidence: &Evidence<'_>,
    figures: &mut Figures,
) -> Vec<Violation> {
    let disturbed = disturbances(evidence);
    let (mut stalls, mut lent) = (Spans::new(), Spans::new());
    for record in evidence.records {
        let (spans, worker, from, to) = match record {
            Record::Stalled { worker, from, to } => (&mut stalls, *worker, *from, *to),
            Record::Lent { worker, from, to } => (&mut lent, *worker, *from, *to),
            _ => continue,
        };
        spans.entry(worker).or_default().push(Span { from, to });
    }
    let mut found = Vec::new();
    for (lock, holds) in &holds.0 {
        let taken = spans_taken(lock, holds, ends, evidence);
        for hold in holds {
            let (Some(timeout), Some(waited)) = (hold.asked.timeout, hold.waited()) else {
                continue;
            };
            let called_off = hold.called_off.map(|at| at.saturating_sub(hold.asked.at));
            let timeout = timeout.min(called_off.unwrap_or(timeout));
            figures.waits += 1;
            figures.longest_wait = figures.longest_wait.max(waited.length());
            let mut halted = halts(evidence, hold.asked.worker);
            halted.extend(of_worker(&stalls, hold, waited));
            let lent: Vec<_> = of_worker(&lent, hold, waited).collect();
            // A cancelled wait does not go on until a connection is free.
            let lent_after_its_time = hold.called_off.map_or(&lent[..], |_| &[]);
            // With many servers and gates on one machine, most waits are delayed.
            let kept = if evidence.are_several {
                hold.kept_ready
            } else {
                0
            };
            found.extend(too_late(
                lock,
                hold,
                waited,
                timeout,
                kept,
                &[&disturbed, &halted, lent_after_its_time],
            ));
            // An attempt that too few replicas confirm blocks all others, even the same caller's.
            if is_replicated(lock) {
                continue;
            }
            if waited.length() < LOOKED_AT {
                continue;
            }
            let excuses: [&[Span]; 3] = [&disturbed, &halted, &lent];
            let Some(free) = longest_free(hold, waited, &taken, &excuses) else {
                continue;
            };
            let longest = &mut figures.longest_beside_a_free_lock;
            *longest = (*longest).max(free.length());
            found.extend(beside_a_free_lock(lock, hold, waited, free, kept));
        }
        let excuses = |hold: &Hold, span: Span| {
            let stalled = of_worker(&stalls, hold, span);
            stalled.chain(of_worker(&lent, hold, span)).collect()
        };
        deaths::time(holds, &taken, &disturbed, excuses, figures);
        figures.halted_holds += halted_past_their_leases(holds, evidence);
    }
    found
}

/// Returns the spans of a hold's worker during its wait.
fn of_worker(spans: &Spans, hold: &Hold, waited: Span) -> impl Iterator<Item = Span> {
    let of_worker = spans.get(&hold.asked.worker).into_iter().flatten();
    of_worker.copied().filter(move |span| span.meets(waited))
}

/// Returns the times in which no time limit is promised.
fn disturbances(evidence: &Evidence<'_>) -> Vec<Span> {
    let disturbs = evidence
        .faults
        .iter()
        .filter(|fault| fault.kind.disturbs > 0);
    let by_faults = disturbs.map(|fault| Span {
        from: fault.from,
        to: fault.to + millis(fault.kind.disturbs),
    });
    by_faults.chain(evidence.stalls.iter().copied()).collect()
}

/// Returns the times in which a worker was halted.
fn halts(evidence: &Evidence<'_>, worker: u32) -> Vec<Span> {
    let of_worker = evidence
        .faults
        .iter()
        .filter(|fault| fault.worker == Some(worker));
    of_worker
        .map(|fault| Span {
            from: fault.from,
            to: fault.to + GOING_ON,
        })
        .collect()
}

/// Returns the times in which the lock may have been held. A fault that takes the lock holds it
/// too.
fn spans_taken(lock: &str, holds: &[Hold], ends: &Ends, evidence: &Evidence<'_>) -> Vec<Taking> {
    let by_holds = holds.iter().filter(|hold| {
        // A hold that was definitely refused never had the lock.
        !matches!(hold.refused, Some((_, false)))
    });
    let mut taken: Vec<_> = by_holds
        .map(|hold| {
            let mut span = hold.perhaps();
            // A halted process does not renew.
            let halted = halts(evidence, hold.asked.worker);
            let lost_by = halted.iter().find(|halted| {
                matches!(hold.ended, Some((at, None)) if at >= halted.to - GOING_ON)
                    && halted.from >= hold.sure_until
                    && hold
                        .granted
                        .as_ref()
                        .is_some_and(|granted| granted.at < halted.from)
            });
            if let Some(halted) = lost_by {
                span.to = span.to.min(halted.from + hold.asked.lease + GOING_ON);
            }
            let granted = ends.permit_granted(hold, evidence).unwrap_or(0);
            span.from = span.from.max(granted).min(span.to);
            Taking {
                span,
                mode: hold.asked.mode,
                is_intent: false,
                id: Some(hold.asked.id),
            }
        })
        .collect();
    let by_faults = evidence
        .faults
        .iter()
        .filter(|fault| fault.lock == Some(lock));
    taken.extend(by_faults.map(|fault| {
        let span = Span {
            from: fault.from,
            to: fault.to + millis(450),
        };
        Taking {
            span,
            mode: Mode::Exclusive,
            is_intent: false,
            id: None,
        }
    }));
    // Waiting writers keep readers out.
    let writers = holds
        .iter()
        .filter(|hold| hold.asked.mode == Mode::Exclusive);
    let intents = writers.filter_map(|hold| {
        let waited = hold.waited()?;
        let span = Span {
            from: waited.from,
            to: waited.to + INTENT,
        };
        Some(Taking {
            span,
            mode: Mode::Exclusive,
            is_intent: true,
            id: Some(hold.asked.id),
        })
    });
    taken.extend(intents);
    taken.sort_unstable_by_key(|taking| taking.span.from);
    taken
}

/// Finds waits that ended late, and answers that never came.
fn too_late(
    lock: &str,
    hold: &Hold,
    waited: Span,
    timeout: Nanos,
    kept: Nanos,
    excuses: &[&[Span]],
) -> Option<Violation> {
    let lent = if timeout == 0 { LENT } else { 0 };
    let late = waited.length().saturating_sub(timeout + lent + SLACK);
    let after = Span {
        from: (waited.from + timeout).saturating_sub(crate::clock::nanos(IO_TIMEOUT)),
        to: waited.to,
    };
    let forgiven: Nanos = excuses
        .iter()
        .flat_map(|spans| spans.iter())
        .map(|span| after.within(*span))
        .sum();
    // While the server is silent, a wait may take one time-out longer.
    let silence = if forgiven > 0 {
        crate::clock::nanos(IO_TIMEOUT)
    } else {
        0
    };
    (late > forgiven + silence + kept).then(|| {
        let what = format!(
            "a wait of {} ms by {} took {} ms, {} ms of it runnable without a core",
            timeout / 1_000_000,
            hold.asked.job,
            waited.length() / 1_000_000,
            hold.kept_ready / 1_000_000
        );
        Violation::new(Checker::Deadline, lock, waited, what).of_workers(&[hold.asked.worker])
    })
}

fn beside_a_free_lock(
    lock: &str,
    hold: &Hold,
    waited: Span,
    longest: Span,
    kept: Nanos,
) -> Option<Violation> {
    (longest.length() > SLACK + kept).then(|| {
        let what = format!(
            "{} of worker {} waited {} ms, {} ms of it for a free lock and {} ms runnable without a core",
            hold.asked.job,
            hold.asked.worker,
            waited.length() / 1_000_000,
            longest.length() / 1_000_000,
            hold.kept_ready / 1_000_000
        );
        Violation::new(Checker::Free, lock, longest, what)
    })
}

/// Returns the longest time in which no one else can have blocked this waiter.
pub(super) fn longest_free(
    hold: &Hold,
    waited: Span,
    taken: &[Taking],
    excuses: &[&[Span]],
) -> Option<Span> {
    let by_others = taken
        .iter()
        .filter(|taking| taking.id != Some(hold.asked.id) && taking.span.meets(waited));
    let mut covers = match hold.asked.mode {
        Mode::Permit(permits) => {
            let counted = |taking: &Taking| match taking.mode {
                Mode::Permit(_) => (taking.span, 1),
                // A fault that takes the key takes all permits.
                _ => (taking.span, permits),
            };
            full(by_others.map(counted), permits)
        }
        mode => {
            let is_in_the_way = |taking: &&Taking| match mode {
                Mode::Shared => taking.mode == Mode::Exclusive,
                _ => !taking.is_intent,
            };
            let in_the_way = by_others.filter(is_in_the_way);
            in_the_way.map(|taking| taking.span).collect()
        }
    };
    covers.extend(
        excuses
            .iter()
            .flat_map(|spans| spans.iter())
            .filter(|span| span.meets(waited)),
    );
    covers.sort_unstable();
    gaps(waited, &covers)
        .into_iter()
        .max_by_key(|gap| gap.length())
}

/// Counts the holds whose process was halted for longer than the lease and then resumed.
fn halted_past_their_leases(holds: &[Hold], evidence: &Evidence<'_>) -> u64 {
    let halts = evidence
        .faults
        .iter()
        .filter(|fault| fault.kind.name.starts_with("stop-"));
    let through = |hold: &&Hold, fault: &crate::faults::Fault| {
        fault.worker == Some(hold.asked.worker)
            && fault.to - fault.from > hold.asked.lease
            && hold
                .granted
                .as_ref()
                .is_some_and(|granted| granted.at < fault.from)
            && hold.ended.is_some_and(|(at, _)| at >= fault.to)
    };
    let count: usize = halts
        .map(|fault| holds.iter().filter(|hold| through(hold, fault)).count())
        .sum();
    u64::try_from(count).unwrap_or(0)
}
