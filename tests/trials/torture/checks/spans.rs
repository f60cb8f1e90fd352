//! Spans of time.

use crate::clock::Nanos;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span {
    pub(crate) from: Nanos,
    pub(crate) to: Nanos,
}

impl Span {
    pub(crate) fn meets(self, other: Self) -> bool {
        self.from <= other.to && other.from <= self.to
    }

    pub(crate) fn length(self) -> Nanos {
        self.to.saturating_sub(self.from)
    }

    /// Returns the length of the overlap with another span.
    pub(crate) fn within(self, other: Self) -> Nanos {
        self.to
            .min(other.to)
            .saturating_sub(self.from.max(other.from))
    }
}

/// Returns the parts of a span that the covers, sorted by their starts, leave free.
pub(crate) fn gaps(span: Span, covers: &[Span]) -> Vec<Span> {
    let (mut at, mut left) = (span.from, Vec::new());
    for cover in covers {
        if cover.from >= span.to {
            break;
        }
        if cover.from > at {
            left.push(Span {
                from: at,
                to: cover.from,
            });
        }
        at = at.max(cover.to);
    }
    if at < span.to {
        left.push(Span {
            from: at,
            to: span.to,
        });
    }
    left
}

/// Returns the sorted times in which at least `permits` are taken. Each span takes a number of
/// them.
pub(crate) fn full(taken: impl Iterator<Item = (Span, u32)>, permits: u32) -> Vec<Span> {
    let mut changes: Vec<(Nanos, i64)> = taken
        .flat_map(|(span, count)| [(span.from, i64::from(count)), (span.to, -i64::from(count))])
        .collect();
    changes.sort_unstable();
    let (mut held, mut since, mut found) = (0, None, Vec::new());
    for (at, change) in changes {
        held += change;
        match since {
            None if held >= i64::from(permits) => since = Some(at),
            Some(from) if held < i64::from(permits) => {
                found.push(Span { from, to: at });
                since = None;
            }
            _ => {}
        }
    }
    found
}
