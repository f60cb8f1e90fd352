//! For operators: prints who holds a lock, or takes it away.

use std::{
    fmt::Write,
    time::{Duration, SystemTime},
};

use humantime::{format_duration, format_rfc3339_seconds};
use leasehold::{Holder, Inspection, Locks, Owner, Result};
use serde_json::{Value, json};

use crate::{
    arguments::Arguments,
    outcome::Told,
    text::{holder_in_json, last_run, last_run_in_json, millis, printable},
};

pub(crate) fn status(arguments: &Arguments) -> (u8, Told) {
    let name = &arguments.name;
    let looked = Locks::connect(&arguments.url).and_then(|locks| {
        let lock = locks.lock(name);
        Ok((lock.inspect()?, lock.last_run()?))
    });
    answer(arguments, looked, |(inspection, run)| {
        let run = run.as_ref();
        if arguments.json {
            let mut status = in_json(name, inspection);
            status["last_run"] = run.map_or(Value::Null, last_run_in_json);
            status.to_string()
        } else {
            let run = run.map(|run| format!("\n{name}: {}", last_run(run)));
            in_words(name, inspection) + &run.unwrap_or_default()
        }
    })
}

pub(crate) fn force_release(arguments: &Arguments) -> (u8, Told) {
    let name = &arguments.name;
    let taken = Locks::connect(&arguments.url).and_then(|locks| locks.lock(name).force_release());
    answer(arguments, taken, |taken| {
        if arguments.json {
            let holders: Vec<_> = taken.holders().iter().map(holder_in_json).collect();
            json!({ "name": name, "released": taken.is_held(), "holders": holders }).to_string()
        } else if taken.is_held() {
            let from: Vec<_> = taken.holders().iter().map(held_by).collect();
            format!("{name}: taken away from {}", from.join(", "))
        } else {
            format!("{name}: nobody had it")
        }
    })
}

fn answer<T>(
    arguments: &Arguments,
    result: Result<T>,
    text: impl FnOnce(&T) -> String,
) -> (u8, Told) {
    match result {
        Ok(found) => (0, Told::Out(text(&found))),
        Err(error) => Told::failure(arguments, &error),
    }
}

fn in_words(name: &str, inspection: &Inspection) -> String {
    if inspection.is_foreign() {
        return format!("{name}: not a lock, but something else of this name");
    }
    if !inspection.is_held() {
        return format!("{name}: free");
    }
    let mut text = format!("{name}: held");
    for holder in inspection.holders() {
        for (what, value) in lines(holder) {
            // Writing to a string cannot fail.
            let _ = write!(text, "\n  {what:<14} {value}");
        }
    }
    text
}

fn lines(holder: &Holder) -> Vec<(&'static str, String)> {
    let mut lines = vec![("by", held_by(holder))];
    if let Some(since) = holder.since() {
        let ago = SystemTime::now().duration_since(since).unwrap_or_default();
        let (moment, ago) = (format_rfc3339_seconds(since), format_duration(short(ago)));
        lines.push(("since", format!("{moment}, {ago} ago")));
    }
    let left = holder.remaining().map_or("no end".to_owned(), |left| {
        format!("{}, unless renewed", format_duration(short(left)))
    });
    lines.push(("for still", left));
    if let Some(fence) = holder.fencing_token() {
        lines.push(("fencing token", fence.to_string()));
    }
    lines
}

fn held_by(holder: &Holder) -> String {
    printable(holder.owner().map_or("somebody unknown", Owner::as_str))
}

/// Rounds a time down to a readable precision.
fn short(time: Duration) -> Duration {
    if time < Duration::from_secs(10) {
        Duration::from_millis(millis(time))
    } else {
        Duration::from_secs(time.as_secs())
    }
}

fn in_json(name: &str, inspection: &Inspection) -> Value {
    json!({
        "name": name,
        "held": inspection.is_held(),
        "foreign": inspection.is_foreign(),
        "holders": inspection.holders().iter().map(holder_in_json).collect::<Vec<_>>(),
    })
}
