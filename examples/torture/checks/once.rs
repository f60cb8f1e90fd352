//! Work that is to be done once in a period was done once.
//!
//! The period counts from the mark, which the server wrote between the end of the work and the answer. Whoever asked after
//! that answer, and began before the period was over since the end of the work, has done it again.

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
                "it was done again {} ms after it",
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
