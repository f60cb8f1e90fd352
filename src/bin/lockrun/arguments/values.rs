//! Parses the values of arguments.

use std::{str::FromStr, time::Duration};

const SHORTEST_LEASE: Duration = Duration::from_millis(500);
const LONGEST_LEASE: Duration = Duration::from_hours(24);

/// Parses a value without its final newline: a variable that was read from a file or a secret ends
/// with one.
pub(super) fn line<T: FromStr>(text: &str) -> Result<T, T::Err> {
    text.trim_end_matches(['\r', '\n']).parse()
}

pub(super) fn up_to<const MOST: u32>(text: &str) -> Result<u32, String> {
    let number = text.parse().ok();
    let number = number.filter(|number| (1..=MOST).contains(number));
    number.ok_or_else(|| format!("must be a whole number from 1 to {MOST}"))
}

pub(super) fn lease(text: &str) -> Result<Duration, &'static str> {
    let lease = duration(text)?;
    let is_in_range = (SHORTEST_LEASE..=LONGEST_LEASE).contains(&lease);
    is_in_range
        .then_some(lease)
        .ok_or("must be from 500ms to 24h")
}

pub(super) fn duration(text: &str) -> Result<Duration, &'static str> {
    humantime::parse_duration(text.trim_end())
        .map_err(|_| "must be a number with a unit, such as 500ms, 30s, 1m30s or 20h")
}
