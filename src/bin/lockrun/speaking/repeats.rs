//! Repeats a progress report at growing intervals, so that it does not flood the output.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

const FIRST_INTERVAL: Duration = Duration::from_secs(1);

/// The reports of one condition.
#[derive(Debug, Default)]
pub(crate) struct Repeats {
    /// The reported texts without digits, since times and ports differ.
    said: HashSet<String>,
    /// The next moment to repeat a report, and the interval before it.
    again: Option<(Instant, Duration)>,
}

impl Repeats {
    /// True if this text must be reported: it is new, or the interval is over.
    pub(crate) fn is_due(&mut self, text: &str, now: Instant) -> bool {
        let is_new = self
            .said
            .insert(text.replace(|it: char| it.is_ascii_digit(), ""));
        match self.again {
            Some((again, interval)) if again <= now => {
                let next = interval.saturating_mul(2);
                self.again = Some((now + next, next));
                true
            }
            Some(_) => is_new,
            None => {
                self.again = Some((now + FIRST_INTERVAL, FIRST_INTERVAL));
                true
            }
        }
    }

    /// Ends the condition. True if it was reported.
    pub(crate) fn end(&mut self) -> bool {
        self.said.clear();
        self.again.take().is_some()
    }
}
