//! `--list`: prints the held locks, one line for each holder.

use std::{iter, time::SystemTime};

use humantime::format_rfc3339_seconds;
use leasehold::{HeldLocks, Holder, Inspection, Result};
use serde_json::{Value, json};

use crate::{
    arguments::Arguments,
    outcome::{Told, code_of},
    text::{held_by, holder_in_json, printable, rounded},
    words::failed,
};

const HEADS: [&str; 5] = ["NAME", "KIND", "HELD BY", "SINCE", "ENDS"];
const STOPPED: &str = "the list is incomplete: --list stopped at its limit of 10000 locks or 30s";

pub(crate) fn list(arguments: &Arguments) -> (u8, Told) {
    match held(arguments) {
        Ok(held) => (0, told(arguments, &held)),
        Err(error) => {
            let code = code_of(&error);
            let why = failed(arguments, "cannot list the locks", &error);
            let mut told = Told::default();
            if arguments.json {
                let none = json!({ "locks": [], "complete": false });
                told.out = ended(none, code, Some(&why)).to_string();
            } else {
                told.err = format!("lockrun: {why}");
            }
            (code, told)
        }
    }
}

fn held(arguments: &Arguments) -> Result<HeldLocks> {
    let begin = arguments.list.as_deref().unwrap_or_default();
    arguments.locks()?.held(begin)
}

fn told(arguments: &Arguments, held: &HeldLocks) -> Told {
    let is_cut = !held.is_complete();
    let err = is_cut.then(|| format!("lockrun: {STOPPED}"));
    let out = if arguments.json {
        in_json(held).to_string()
    } else {
        table(held)
    };
    let err = err.unwrap_or_default();
    Told { out, err }
}

fn in_json(held: &HeldLocks) -> Value {
    let locks = held.iter().map(|(name, seen)| {
        let holders = seen.holders().iter().map(|holder| {
            let mut json = holder_in_json(holder);
            json["kind"] = kind(seen, holder).into();
            json
        });
        json!({ "name": name, "holders": holders.collect::<Vec<_>>() })
    });
    let locks = json!({ "locks": locks.collect::<Vec<_>>(), "complete": held.is_complete() });
    ended(locks, 0, None)
}

fn ended(mut listed: Value, code: u8, message: Option<&str>) -> Value {
    listed["exit_code"] = code.into();
    listed["message"] = message.into();
    listed
}

fn kind(seen: &Inspection, holder: &Holder) -> &'static str {
    if seen.is_semaphore() {
        "semaphore"
    } else if holder.is_reader() {
        "reader"
    } else if holder.is_writer() {
        "writer"
    } else if holder.count().is_some() {
        "reentrant"
    } else {
        "mutex"
    }
}

/// Empty if no lock is held.
fn table(held: &HeldLocks) -> String {
    let rows = held.iter().flat_map(|(name, seen)| {
        let row = move |holder| row(name, seen, holder);
        seen.holders().iter().map(row)
    });
    let rows: Vec<_> = iter::once(HEADS.map(str::to_owned)).chain(rows).collect();
    if rows.len() == 1 {
        return String::new();
    }
    let mut widths = [0; HEADS.len()];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let lines = rows.iter().map(|row| {
        let cells = row.iter().zip(widths);
        let cells: Vec<_> = cells.map(|(it, width)| format!("{it:<width$}")).collect();
        cells.join("  ").trim_end().to_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn row(name: &str, seen: &Inspection, holder: &Holder) -> [String; HEADS.len()] {
    let since = holder.since().map(|since| {
        let ago = SystemTime::now().duration_since(since).unwrap_or_default();
        format!("{}, {} ago", format_rfc3339_seconds(since), rounded(ago))
    });
    let ends = holder
        .remaining()
        .map(|left| format!("in {}", rounded(left)));
    [
        printable(name),
        kind(seen, holder).to_owned(),
        held_by(holder),
        since.unwrap_or_else(|| "unknown".to_owned()),
        ends.unwrap_or_else(|| "never".to_owned()),
    ]
}
