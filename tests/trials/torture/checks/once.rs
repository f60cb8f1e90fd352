//! Once-only work was done once in a period.
//!
//! The period starts at the mark, which the server wrote between the end of the work and its
//! answer. A run that asked after that answer, and began before the period since the end of the
//! work was over, repeated it.

use super::{Checker, Span, Violation};
use crate::history::Record;

pub(super) fn check(records: &[Record]) -> Vec<Violation> {
    let mut found = Vec::new();
    for first in records {
        let Record::Ran {
            lock,
            period,
            asked,
            over,
            marked: Some(marked),
            ..
        } = first
        else {
            continue;
        };
        let again = records.iter().filter_map(|record| match record {
            Record::Ran {
                lock: other,
                asked,
                begun,
                ..
            } if other == lock && asked > marked && *begun < over + period => Some(*begun),
            _ => None,
        });
        for begun in again {
            let what = format!(
                "the work was repeated {} ms later",
                (begun - over) / 1_000_000
            );
            let span = Span {
                from: *asked,
                to: begun,
            };
            found.push(Violation::new(Checker::Once, lock, span, what));
        }
    }
    found
}
