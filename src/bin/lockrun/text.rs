//! Formats times and holders for people and for scripts.

use std::{io::Write, time::Duration};

use humantime::{format_duration, format_rfc3339_seconds};
use leasehold::{FencingToken, Holder, LastRun, Owner};
use serde_json::{Value, json};

/// Prints a line. A failure is ignored: a closed pipe is no reason to end the command.
pub(crate) fn say(out: &mut dyn Write, text: &str) {
    let _ = writeln!(out, "{text}");
}

/// Replaces control characters, so that a text from a server or a holder cannot control the
/// operator's terminal.
pub(crate) fn printable(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}

/// A time for people, rounded down: milliseconds below a second, otherwise the two largest units,
/// such as `1m 40s`. `--wait` reads the same format.
pub(crate) fn rounded(time: Duration) -> String {
    let time = match time.as_secs() {
        0 => Duration::from_millis(millis(time)),
        seconds => Duration::from_secs(seconds),
    };
    let text = format_duration(time).to_string();
    let units: Vec<_> = text.split(' ').take(2).collect();
    units.join(" ")
}

pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// A holder's name, for people.
pub(crate) fn held_by(holder: &Holder) -> String {
    printable(holder.owner().map_or("someone unknown", Owner::as_str))
}

/// A holder as JSON.
pub(crate) fn holder_in_json(holder: &Holder) -> Value {
    json!({
        "owner": holder.owner().map(Owner::as_str),
        "since": holder.since().map(|since| format_rfc3339_seconds(since).to_string()),
        "remaining_ms": holder.remaining().map(millis),
        "fencing_token": holder.fencing_token().map(FencingToken::get),
        "reader": holder.is_reader(),
        "permits": holder.permits(),
    })
}

/// Describes the last run for people: by whom, and how long ago.
pub(crate) fn last_run(run: &LastRun) -> String {
    let by = printable(run.by().map_or("someone unknown", Owner::as_str));
    format!("was run {} ago by {by}", rounded(run.ago()))
}

/// The last run as JSON.
pub(crate) fn last_run_in_json(run: &LastRun) -> Value {
    json!({
        "by": run.by().map(Owner::as_str),
        "at": format_rfc3339_seconds(run.at()).to_string(),
        "ago_ms": millis(run.ago()),
    })
}
