//! From a history to bars: what each holder did, what it thought, and when two worked at once.

use crate::history::{Entry, Happened};

/// By how many milliseconds two entries of different threads may be in the wrong order.
const CLOCK_ERROR: u64 = 5;

/// A part of a history, with a row for each holder.
#[derive(Debug)]
pub(crate) struct Scene {
    pub(crate) title: String,
    pub(crate) rows: Vec<Row>,
    /// When two worked who exclude each other.
    pub(crate) conflicts: Vec<Span>,
    pub(crate) length_ms: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Row {
    pub(crate) holder: String,
    pub(crate) bars: Vec<(Bar, Span)>,
    /// When a hold ended otherwise than by its release, and how.
    pub(crate) marks: Vec<(u64, &'static str)>,
    /// When it works, and whether as a reader.
    works: Vec<(Span, bool)>,
    open: Open,
}

/// What a holder does for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bar {
    Waits,
    Holds,
    /// It thinks that it still holds the lock, and does not.
    Believes,
}

/// From when to when, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) from: u64,
    pub(crate) to: u64,
}

impl Span {
    pub(crate) fn contains(self, at: u64) -> bool {
        (self.from..self.to).contains(&at)
    }
}

/// What a holder has begun and not ended.
#[derive(Debug, Default)]
enum Open {
    #[default]
    Nothing,
    Waiting {
        since: u64,
    },
    Holding {
        since: u64,
        /// When the server ends it, and how.
        end: u64,
        ended: &'static str,
        reader: bool,
    },
}

impl Scene {
    pub(crate) fn of_history(entries: &[Entry]) -> Self {
        let title = entries.first().map(|entry| entry.scene.clone());
        let length_ms = entries.iter().map(|entry| entry.at_ms).max().unwrap_or(0);
        let mut rows: Vec<Row> = Vec::new();
        for entry in entries {
            let known = rows.iter().position(|row| row.holder == entry.holder);
            let index = known.unwrap_or(rows.len());
            if known.is_none() {
                rows.push(Row {
                    holder: entry.holder.clone(),
                    ..Row::default()
                });
            }
            if let Some(row) = rows.get_mut(index) {
                row.take_in(entry.at_ms, entry.happened);
            }
        }
        for row in &mut rows {
            row.close(length_ms);
        }
        Self {
            title: title.unwrap_or_default(),
            conflicts: conflicts(&rows),
            rows,
            length_ms,
        }
    }
}

impl Row {
    fn take_in(&mut self, at: u64, happened: Happened) {
        match (happened, &mut self.open) {
            (Happened::Waits, _) => self.open = Open::Waiting { since: at },
            (Happened::Acquired { lease_ms, reader }, _) => {
                self.close(at);
                let end = lease_ms.map_or(u64::MAX, |lease| at + lease);
                self.open = Open::Holding {
                    since: at,
                    end,
                    ended: "expired",
                    reader,
                };
            }
            (Happened::Renewed { lease_ms }, Open::Holding { end, .. }) => *end = at + lease_ms,
            (Happened::Deleted, Open::Holding { end, ended, .. }) if at < *end => {
                (*end, *ended) = (at, "deleted");
            }
            (Happened::Lost, Open::Holding { end, .. }) => {
                *end = at.min(*end);
                self.close(at);
                self.marks.push((at, "notified"));
            }
            // The thread that notifies may come after the one that released.
            (Happened::Lost, _) => self.marks.push((at, "notified")),
            (Happened::Released, _) => self.close(at),
            (Happened::Renewed { .. } | Happened::Deleted, _) => {}
        }
    }

    /// Ends what it does, at this moment.
    fn close(&mut self, at: u64) {
        match std::mem::take(&mut self.open) {
            Open::Nothing => {}
            Open::Waiting { since } => self.add(Bar::Waits, since, at),
            Open::Holding {
                since,
                end,
                ended,
                reader,
            } => {
                self.add(Bar::Holds, since, end.min(at));
                if end < at {
                    self.marks.push((end, ended));
                }
                self.add(Bar::Believes, end, at);
                let span = Span {
                    from: since,
                    to: at,
                };
                self.works.push((span, reader));
            }
        }
    }

    fn add(&mut self, bar: Bar, from: u64, to: u64) {
        if from < to {
            self.bars.push((bar, Span { from, to }));
        }
    }
}

fn conflicts(rows: &[Row]) -> Vec<Span> {
    let mut found = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        for other in &rows[index + 1..] {
            for (mine, i_read) in &row.works {
                for (theirs, they_read) in &other.works {
                    let (from, to) = (mine.from.max(theirs.from), mine.to.min(theirs.to));
                    if !(*i_read && *they_read) && from + CLOCK_ERROR < to {
                        found.push(Span { from, to });
                    }
                }
            }
        }
    }
    found
}
