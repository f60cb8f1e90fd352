//! Draws a line for each holder and a column for each moment.

use std::{
    fmt::Write,
    time::{Duration, Instant},
};

/// With the numbers at the left, a line of 100.
const COLUMNS: usize = 96;

/// One hold, as its holder saw it.
#[derive(Clone, Copy)]
pub(crate) struct Hold {
    pub(crate) holder: usize,
    pub(crate) from: Instant,
    /// The last moment at which the lock was held.
    pub(crate) until: Instant,
    pub(crate) ended: Ended,
}

/// The end of a hold.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    GivenBack,
    Lost,
    /// The release got no answer.
    Unknown,
}

/// The events at the servers, with their times.
pub(crate) struct Picture {
    holders: usize,
    began: Instant,
    marks: Vec<(Instant, &'static str)>,
}

impl Picture {
    pub(crate) fn begin(holders: usize) -> Self {
        Self {
            holders,
            began: Instant::now(),
            marks: Vec::new(),
        }
    }

    /// Marks an event that happens now.
    pub(crate) fn mark(&mut self, what: &'static str) {
        self.marks.push((Instant::now(), what));
    }

    pub(crate) fn drawn(&self, holds: &[Hold], ended: Instant) -> String {
        let mut text = String::from("\n");
        for (number, (at, what)) in self.marks.iter().enumerate() {
            let after = at.duration_since(self.began);
            let _ = writeln!(
                text,
                "{}  {:>6.2} s  {what}",
                number + 1,
                after.as_secs_f64()
            );
        }
        let mut events = vec![b' '; COLUMNS];
        for (number, (at, _)) in self.marks.iter().enumerate() {
            // Two events at the same moment stand side by side.
            let mut column = self.column(*at, ended);
            while column + 1 < COLUMNS && events[column] != b' ' {
                column += 1;
            }
            events[column] = b'1' + u8::try_from(number).unwrap_or(8);
        }
        let _ = writeln!(text, "\n    {}", String::from_utf8_lossy(&events));
        for holder in 0..self.holders {
            let _ = writeln!(
                text,
                "{:>3} {}",
                holder + 1,
                self.line(holder, holds, ended)
            );
        }
        let _ = writeln!(
            text,
            "    {:<48}{:>48}",
            "0 s",
            format!("{:.1} s", ended.duration_since(self.began).as_secs_f64())
        );
        text.push_str("    # holds the lock   X lost   ? released, no answer\n\n");
        sum_up(&mut text, holds, ended);
        text
    }

    fn column(&self, at: Instant, ended: Instant) -> usize {
        let part = at.duration_since(self.began).as_secs_f64()
            / ended.duration_since(self.began).as_secs_f64();
        // At most the number of columns.
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss
        )]
        let column = (part * COLUMNS as f64) as usize;
        column.min(COLUMNS - 1)
    }

    fn line(&self, holder: usize, holds: &[Hold], ended: Instant) -> String {
        let mut line = ['.'; COLUMNS];
        for hold in holds.iter().filter(|hold| hold.holder == holder) {
            let (from, until) = (
                self.column(hold.from, ended),
                self.column(hold.until, ended),
            );
            line[from..=until].fill('#');
            match hold.ended {
                Ended::GivenBack => {}
                Ended::Lost => line[until] = 'X',
                Ended::Unknown => line[until] = '?',
            }
        }
        line.iter().collect()
    }
}

fn sum_up(text: &mut String, holds: &[Hold], ended: Instant) {
    let mut holds = holds.to_vec();
    holds.sort_by_key(|hold| hold.from);
    let lost = holds
        .iter()
        .filter(|hold| hold.ended == Ended::Lost)
        .count();
    let together: Duration = holds
        .windows(2)
        .map(|pair| {
            pair[0]
                .until
                .min(pair[1].until)
                .saturating_duration_since(pair[1].from)
        })
        .sum();
    let ends = holds.iter().map(|hold| hold.until);
    let begins = holds.iter().map(|hold| hold.from).skip(1).chain([ended]);
    let gaps = ends
        .zip(begins)
        .map(|(end, begin)| begin.saturating_duration_since(end));
    let _ = writeln!(text, "held {} times, lost {lost} times", holds.len());
    let _ = writeln!(
        text,
        "two threads held it at once for {together:.1?} in total"
    );
    let _ = writeln!(
        text,
        "longest time without a holder: {:.1?}",
        gaps.max().unwrap_or_default()
    );
}
