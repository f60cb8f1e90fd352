//! Times from a moment to another.

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

    /// The part of it that lies in another.
    pub(crate) fn within(self, other: Self) -> Nanos {
        self.to
            .min(other.to)
            .saturating_sub(self.from.max(other.from))
    }
}

/// What is left of a span when these, sorted by their beginnings, are taken out.
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
