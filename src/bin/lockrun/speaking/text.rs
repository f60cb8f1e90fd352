//! Formats times, holders, servers and errors of the system.

use std::time::{Duration, SystemTime};

use humantime::{format_duration, format_rfc3339_seconds};
use leasehold::{
    FencingToken, Holder, LastRun, Owner,
    redis::{ConnectionAddr, IntoConnectionInfo},
};
use serde_json::{Value, json};

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

/// Since when it holds the lock, for people.
pub(crate) fn since(holder: &Holder) -> Option<String> {
    let since = holder.since()?;
    let ago = SystemTime::now().duration_since(since).unwrap_or_default();
    let moment = format_rfc3339_seconds(since);
    Some(format!("{moment}, {} ago", rounded(ago)))
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

/// The server that a URL leads to, without the password.
pub(crate) fn server_of(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    if scheme.contains("+cluster") {
        return "the cluster".into();
    }
    if scheme.contains("+sentinel") {
        // A password of the sentinels may contain any of these characters.
        let rest = rest.split('?').next().unwrap_or_default();
        let path = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
        let master = path.split('/').nth(1).unwrap_or_default();
        return printable(&format!("the master `{master}`"));
    }
    let Ok(server) = url.into_connection_info() else {
        return "redis".into();
    };
    match server.addr() {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. }
            if host.contains(':') =>
        {
            format!("redis at [{host}]:{port}")
        }
        address => format!("redis at {address}"),
    }
}

/// An error of the operating system, without its number.
pub(crate) fn of_system(error: &impl ToString) -> String {
    let text = printable(&error.to_string());
    let words = text.split(" (os error").next().unwrap_or_default();
    if ["unexpected end of file", "broken pipe"].contains(&words) {
        return "the connection was closed".into();
    }
    let mut signs = words.chars();
    let first = signs.next().map(|sign| sign.to_ascii_lowercase());
    first.into_iter().chain(signs).collect()
}
