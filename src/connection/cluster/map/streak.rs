//! For how long something has been so, each time that it was looked at.

use std::time::{Duration, Instant};

/// Who has not looked for so long does not know what was meanwhile, and begins anew.
const GAP: Duration = Duration::from_secs(2);

/// When it was seen first and last.
#[derive(Clone, Copy, Default)]
pub(super) struct Streak(Option<(Instant, Instant)>);

impl Streak {
    /// It is seen now. Returns for how long by now.
    pub(super) fn goes_on(&mut self, now: Instant) -> Duration {
        let seen_lately = |(_, last): &(Instant, Instant)| now - *last < GAP;
        let since = (self.0.filter(seen_lately)).map_or(now, |(since, _)| since);
        self.0 = Some((since, now));
        now - since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_begins_anew_after_a_gap() {
        let (begun, mut streak) = (Instant::now(), Streak::default());
        let mut seen_at = |at| {
            streak
                .goes_on(begun + Duration::from_millis(at))
                .as_millis()
        };
        assert_eq!([0, 1_999, 3_998].map(&mut seen_at), [0, 1_999, 3_998]);
        assert_eq!([5_998, 6_998].map(&mut seen_at), [0, 1_000]);
    }
}
