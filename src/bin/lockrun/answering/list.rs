//! `--list`: prints the held locks, one line for each holder.

use std::iter;

use leasehold::{Error, HeldLocks, Holder};
use serde_json::{Value, json};

use crate::{
    arguments::Arguments,
    deciding::outcome::{AnswerText, code_of},
    speaking::{
        text::{held_by, holder_in_json, printable, rounded, since},
        words::failed,
    },
};

const HEADS: [&str; 5] = ["NAME", "KIND", "HELD BY", "SINCE", "ENDS"];
const STOPPED: &str = "the list is incomplete: --list stopped at its limit of 10000 locks or 30s";
/// The number of failures that are printed. The rest are only counted.
const MOST_PRINTED: usize = 10;

/// Prints the locks that could be inspected, and the failures for the others. The exit code is that
/// of the first failure.
pub(crate) fn list(arguments: &Arguments, begin: &str) -> (u8, AnswerText) {
    let held = arguments.locks().and_then(|locks| locks.held(begin));
    let (held, failures) = match &held {
        Ok(held) => (Some(held), held.failures()),
        Err(error) => (None, std::slice::from_ref(error)),
    };
    let code = failures.first().map_or(0, code_of);
    let mut missing: Vec<_> = failures.iter().map(|it| failure(arguments, it)).collect();
    if failures.is_empty() && held.is_some_and(|held| !held.is_complete()) {
        missing.push(STOPPED.into());
    }
    let told = if arguments.json {
        AnswerText {
            out: in_json(held, code, &missing).to_string(),
            err: String::new(),
        }
    } else {
        in_words(begin, held, &missing)
    };
    (code, told)
}

fn failure(arguments: &Arguments, error: &Error) -> String {
    let of_lock = error.context().filter(|it| it.operation != "Locks::held");
    match of_lock {
        Some(context) => {
            let what = format!("cannot inspect `{}`", printable(&context.lock));
            failed(arguments, &what, error)
        }
        None => failed(arguments, "cannot list the locks", error),
    }
}

fn in_words(begin: &str, held: Option<&HeldLocks>, missing: &[String]) -> AnswerText {
    let out = held.map(table).unwrap_or_default();
    let printed = missing.iter().take(MOST_PRINTED).cloned();
    let more = missing.len().saturating_sub(MOST_PRINTED);
    let more = (more > 0).then(|| format!("and {more} more failures"));
    let none = match begin {
        _ if !(out.is_empty() && missing.is_empty()) => None,
        "" => Some("no lock is held".into()),
        begin => Some(format!("no lock is held whose name begins with `{begin}`")),
    };
    let lines = printed.chain(more).chain(none);
    let lines: Vec<_> = lines.map(|line| format!("lockrun: {line}")).collect();
    AnswerText {
        out,
        err: lines.join("\n"),
    }
}

fn in_json(held: Option<&HeldLocks>, code: u8, missing: &[String]) -> Value {
    let locks = held.into_iter().flat_map(HeldLocks::iter);
    let locks = locks.map(|(name, seen)| {
        let holders = seen.holders().iter().map(|holder| {
            let mut json = holder_in_json(holder);
            json["kind"] = holder.kind().into();
            json
        });
        json!({ "name": name, "holders": holders.collect::<Vec<_>>() })
    });
    json!({
        "locks": locks.collect::<Vec<_>>(),
        "complete": held.is_some_and(HeldLocks::is_complete),
        "exit_code": code,
        "message": missing.first(),
        "missing": missing,
    })
}

/// Empty if no lock is held.
fn table(held: &HeldLocks) -> String {
    let rows = held.iter().flat_map(|(name, seen)| {
        let row = move |holder| row(name, holder);
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

fn row(name: &str, holder: &Holder) -> [String; HEADS.len()] {
    let ends = holder
        .remaining()
        .map(|left| format!("in {}", rounded(left)));
    [
        printable(name),
        holder.kind().to_owned(),
        held_by(holder),
        since(holder).unwrap_or_else(|| "unknown".to_owned()),
        ends.unwrap_or_else(|| "never".to_owned()),
    ]
}
