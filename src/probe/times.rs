//! The server's clock, and the round trip.

use std::time::{Duration, SystemTime};

use super::finding::{Finding, Severity};

/// A slower round trip limits locks.
const SLOW: Duration = Duration::from_millis(100);
/// A greater difference between the clocks is reported.
const APART: Duration = Duration::from_secs(1);

/// Judges the clock by the fastest of the samples.
pub(super) fn clock(fastest: Option<(Duration, Option<(Duration, SystemTime)>)>) -> Finding {
    let finding = |severity, found: &str, consequence: &str| {
        Finding::new("clock", severity, found, consequence)
    };
    let Some((took, Some((server, local)))) = fastest else {
        let consequence = "Leases go by the server's clock.";
        return finding(Severity::NotTold, "unknown", consequence);
    };
    let local = local
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let (side, apart) = match server.checked_sub(local) {
        Some(ahead) => ("ahead of", ahead),
        None => ("behind", local.saturating_sub(server)),
    };
    let (by, error) = (millis(apart), millis(took / 2));
    let found = format!("{by} {side} this machine's, ± {error}");
    if apart < APART + took / 2 {
        let consequence = "Leases go by the server's clock: the difference does not matter.";
        return finding(Severity::Good, &found, consequence);
    }
    let consequence = "Leases go by the server's clock; times of day, printed or given as an \
                       end, are off by this.";
    finding(Severity::Limits, &found, consequence)
}

/// Judges the median of the samples, which are sorted.
pub(super) fn round_trip<T>(samples: &[(Duration, T)], is_gone: bool) -> Finding {
    let finding = |severity, found: &str, consequence: &str| {
        Finding::new("round trip", severity, found, consequence)
    };
    let Some((took, _)) = samples.get(samples.len() / 2) else {
        let severity = if is_gone {
            Severity::Fails
        } else {
            Severity::NotTold
        };
        return finding(severity, "no answer", "The server has stopped answering.");
    };
    let consequence = "An acquire takes one round trip, and a release another.";
    let severity = if *took < SLOW {
        Severity::Good
    } else {
        Severity::Limits
    };
    finding(severity, &millis(*took), consequence)
}

fn millis(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1_000.0)
}
