//! `--status` and `--force-release`: prints who holds each lock, or takes it away.

use std::fmt::Write;

use leasehold::{Holder, Inspection, Lock, Result};
use serde_json::{Value, json};

use crate::{
    arguments::Arguments,
    deciding::outcome::{AnswerText, code_of},
    speaking::{
        report::failure_in_json,
        text::{held_by, holder_in_json, last_run, last_run_in_json, rounded, since},
        words::failed,
    },
};

pub(crate) fn status(arguments: &Arguments) -> (u8, AnswerText) {
    let look = |lock: &Lock| {
        // --once-per marks no semaphore.
        let is_marked = arguments.permits.is_none();
        let run = is_marked.then(|| lock.last_run()).transpose()?;
        Ok((lock.inspect()?, run.flatten()))
    };
    answer(arguments, "inspect", look, |name, (inspection, run)| {
        let run = run.as_ref();
        if arguments.json {
            let mut status = in_json(arguments, name, inspection);
            status["last_run"] = run.map_or(Value::Null, last_run_in_json);
            status.to_string()
        } else {
            let run = run.map(|run| format!("\n{name}: {}", last_run(run)));
            in_words(arguments, name, inspection) + &run.unwrap_or_default()
        }
    })
}

pub(crate) fn force_release(arguments: &Arguments) -> (u8, AnswerText) {
    answer(arguments, "release", Lock::force_release, |name, taken| {
        let holders = taken.holders();
        if arguments.json {
            return json!({
                "name": name,
                "released": taken.is_held(),
                "semaphore": taken.is_semaphore(),
                "holders": holders.iter().map(holder_in_json).collect::<Vec<_>>(),
            })
            .to_string();
        }
        let from: Vec<_> = holders.iter().map(held_by).collect();
        let from = from.join(", ");
        match holders.len() {
            0 => format!("{name}: was not held"),
            1 if taken.is_semaphore() => format!("{name}: taken away from 1 holder: {from}"),
            all if taken.is_semaphore() => format!("{name}: taken away from {all} holders: {from}"),
            _ => format!("{name}: taken away from {from}"),
        }
    })
}

/// Asks for each lock, in the order of `--name`, even after a failure. The exit code is that of the
/// first failure.
fn answer<T>(
    arguments: &Arguments,
    verb: &str,
    ask: impl Fn(&Lock) -> Result<T>,
    text: impl Fn(&str, &T) -> String,
) -> (u8, AnswerText) {
    let locks = arguments.locks();
    let mut code = 0;
    let (mut out, mut err) = (Vec::new(), Vec::new());
    for name in &arguments.names {
        let locks = locks.as_ref().map_err(Clone::clone);
        match locks.and_then(|locks| ask(&arguments.lock(locks, name))) {
            Ok(found) => out.push(text(name, &found)),
            Err(error) => {
                code = if code == 0 { code_of(&error) } else { code };
                let message = failed(arguments, &format!("cannot {verb} `{name}`"), &error);
                if arguments.json {
                    out.push(failure_in_json(name, &error, &message).to_string());
                } else {
                    err.push(format!("lockrun: {message}"));
                }
            }
        }
    }
    let (is_one, err) = (arguments.only_name().is_some(), err.join("\n"));
    let out = if arguments.json && !is_one {
        format!("[{}]", out.join(","))
    } else {
        out.join("\n")
    };
    (code, AnswerText { out, err })
}

fn in_words(arguments: &Arguments, name: &str, inspection: &Inspection) -> String {
    if inspection.is_foreign() {
        return format!("{name}: the key of this name is not a lock");
    }
    let mut text = format!("{name}: {}", state(arguments, inspection));
    for holder in inspection.holders() {
        for (what, value) in lines(holder, arguments.permits) {
            // Writing to a string cannot fail.
            let _ = write!(text, "\n  {what:<14} {value}");
        }
    }
    text
}

/// Begins with `free` or `held`. A semaphore is held if no permit is free.
fn state(arguments: &Arguments, inspection: &Inspection) -> String {
    let held = inspection.holders().len();
    match (arguments.permits, inspection.free_permits()) {
        (Some(permits), Some(0)) if held > permits as usize => {
            format!("held: {held} permits, more than {permits}")
        }
        (Some(permits), Some(0)) => format!("held: {held} of {permits} permits"),
        (Some(permits), Some(free)) => format!("free: {free} of {permits} permits"),
        (Some(_), None) => "held: a lock without permits".into(),
        (None, _) if held == 0 => "free".into(),
        (None, _) if inspection.is_semaphore() => {
            format!("held: a semaphore, permits taken: {held}")
        }
        (None, _) => "held".into(),
    }
}

/// Includes the holder's `--permits` if it differs from ours.
fn lines(holder: &Holder, ours: Option<u32>) -> Vec<(&'static str, String)> {
    let mut lines = vec![("by", held_by(holder))];
    lines.extend(since(holder).map(|since| ("since", since)));
    let ends = holder.remaining().map_or("never".to_owned(), |left| {
        format!("in {}, unless renewed", rounded(left))
    });
    lines.push(("ends", ends));
    let fence = holder.fencing_token();
    lines.extend(fence.map(|fence| ("fencing token", fence.to_string())));
    let theirs = holder.permits().filter(|permits| Some(*permits) != ours);
    lines.extend(theirs.map(|permits| ("--permits", permits.to_string())));
    lines
}

fn in_json(arguments: &Arguments, name: &str, inspection: &Inspection) -> Value {
    let free = inspection.free_permits();
    json!({
        "name": name,
        "held": free.map_or(inspection.is_held(), |free| free == 0),
        "foreign": inspection.is_foreign(),
        "semaphore": inspection.is_semaphore(),
        "permits": arguments.permits,
        "free_permits": free,
        "holders": inspection.holders().iter().map(holder_in_json).collect::<Vec<_>>(),
    })
}
