//! Tests the checkers: runs rounds whose workers have a bug, with faults only if the bug needs
//! them. Each checker must catch its bug.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::ensure;

use crate::{
    checks::Checker,
    options::{Only, Options, Topology},
    round::Round,
};

/// The bugs of workers, and the checker that must find each.
const BUGS: &[(&str, Checker)] = &[
    // A worker acts as a holder of a mutex that it was not granted.
    ("second-holder", Checker::Exclusion),
    // A holder counts one more permit than exists.
    ("one-permit-more", Checker::Exclusion),
    // A holder whose permit has ended takes it back without a check.
    ("permit-taken-back", Checker::Exclusion),
    // A waiter does not retry although a permit is free.
    ("permit-sleeper", Checker::Free),
    // A set is taken in the caller's order, and can deadlock with another.
    ("callers-order", Checker::Free),
    // A writer enters without having been admitted.
    ("writer-beside-readers", Checker::Exclusion),
    // Fencing numbers are rounded, so that several holds share one.
    ("number-again", Checker::Fencing),
    // Writes with an old number, at a resource that accepts everything.
    ("stale-accepted", Checker::Fencing),
    // Writes with an old number are refused while the lock is held.
    ("stale-number", Checker::Fencing),
    // A holder still believes in its lock after the end.
    ("late-belief", Checker::ServerLog),
    // A waiter does not retry although the lock is free.
    ("sleeper", Checker::Free),
    // A dead holder's lock is not released in time.
    ("long-lease", Checker::Free),
    // A waiter returns late.
    ("late-waiter", Checker::Deadline),
    // The server counts fewer levels than are held.
    ("lost-level", Checker::ReEntry),
    // A commit is reported that was not made.
    ("lost-commit", Checker::Sums),
    // Money is taken from one account and not added to the other.
    ("half-transfer", Checker::Sums),
    // A cancelled wait ends late.
    ("late-cancel", Checker::Deadline),
    // A coin is created.
    ("coin", Checker::Sums),
    // Work is repeated before its period is over.
    ("twice", Checker::Once),
    // A lock is left without an expiry.
    ("leftover", Checker::LeftBehind),
    // A lock that requires all replicas is granted without them, and lost with its master.
    ("not-replicated", Checker::Exclusion),
];

/// Returns the topology and the fault without which the bug does not show.
pub(crate) fn needs(bug: &str) -> Option<(Topology, &'static str)> {
    match bug {
        "not-replicated" => Some((Topology::Sentinel, "master-write-lost")),
        "long-lease" => Some((Topology::One, "kill-holder")),
        _ => None,
    }
}

/// Returns the kind of locks that the workers must use for the bug to show.
pub(crate) fn only(bug: &str) -> Option<Only> {
    (bug == "callers-order").then_some(Only::Sets)
}

/// A bug that needs several servers is not caught every time, so `all` leaves it out.
fn is_one_of_all(bug: &str) -> bool {
    needs(bug).is_none_or(|(topology, _)| topology == Topology::One)
}

/// Returns true if all of the wanted bugs were caught.
pub(crate) fn all_are_caught(
    options: &Options,
    wanted: &str,
    interrupted: &AtomicBool,
) -> anyhow::Result<bool> {
    let bugs: Vec<_> = BUGS
        .iter()
        .filter(|(name, _)| wanted == "all" && is_one_of_all(name) || *name == wanted)
        .collect();
    ensure!(
        !bugs.is_empty(),
        "unknown bug `{wanted}`; use one of: all {}",
        BUGS.iter()
            .map(|(name, _)| *name)
            .collect::<Vec<_>>()
            .join(" ")
    );
    let mut all = true;
    for (name, checker) in bugs {
        let caught = is_caught(options, name, *checker, interrupted)?;
        println!(
            "{name:24} {} {}",
            if caught { "caught by" } else { "NOT caught by" },
            checker.name()
        );
        all &= caught;
    }
    Ok(all)
}

/// In one round the buggy job may not run, and a sleeper may not meet a free lock.
const ROUNDS: u64 = 10;

/// Returns true if one of [`ROUNDS`] rounds catches the bug.
fn is_caught(
    options: &Options,
    name: &str,
    checker: Checker,
    interrupted: &AtomicBool,
) -> anyhow::Result<bool> {
    for seed in 1..=ROUNDS {
        let round = Round::with_bug(options, name, seed).run(interrupted, &|| ());
        ensure!(!interrupted.load(Ordering::SeqCst), "interrupted");
        let outcome = match round {
            Ok(outcome) => outcome,
            // The after-effects of a fault can make a round impossible to judge.
            Err(error) if seed < ROUNDS => {
                eprintln!("{name}, round {seed}: not judged: {error:#}");
                continue;
            }
            Err(error) => return Err(error),
        };
        if outcome
            .violations
            .iter()
            .any(|found| found.checker == checker && !found.announced)
        {
            return Ok(true);
        }
    }
    Ok(false)
}
