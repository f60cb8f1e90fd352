//! Each checker has to catch what it is for: rounds in which the workers have a bug, without faults where none is needed.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::ensure;

use crate::{
    checks::Checker,
    options::{Only, Options, Topology},
    round::Round,
};

/// A bug of workers, and who has to find it.
const BUGS: &[(&str, Checker)] = &[
    // A mutex is held by who was not granted it.
    ("second-holder", Checker::Exclusion),
    // A holder counts one permit more than there are.
    ("one-permit-more", Checker::Exclusion),
    // A holder whose permit has ended takes it back without looking.
    ("permit-taken-back", Checker::Exclusion),
    // A waiter does not ask while a permit is free.
    ("permit-sleeper", Checker::Free),
    // A set is taken in the caller's order, and waits for another in a circle.
    ("callers-order", Checker::Free),
    // A writer is in who was not let in.
    ("writer-beside-readers", Checker::Exclusion),
    // Fencing numbers are rounded, so that holds have the same one.
    ("number-again", Checker::Fencing),
    // Writes with the number of long ago, at a resource that takes everything.
    ("stale-accepted", Checker::Fencing),
    // Writes with the number of long ago are refused while the lock is held.
    ("stale-number", Checker::Fencing),
    // A holder believes in its lock after the end.
    ("late-belief", Checker::ServerLog),
    // A waiter does not ask while the lock is free.
    ("sleeper", Checker::Free),
    // A dead holder's lock is not free when it has to be.
    ("long-lease", Checker::Free),
    // A waiter comes back late.
    ("late-waiter", Checker::Deadline),
    // The server counts less than there are levels.
    ("lost-level", Checker::ReEntry),
    // A commit that was not made is reported.
    ("lost-commit", Checker::Sums),
    // Money is taken from an account and given to none.
    ("half-transfer", Checker::Sums),
    // A wait that was called off ends late.
    ("late-cancel", Checker::Deadline),
    // A coin is made.
    ("coin", Checker::Sums),
    // Work is done again before its time.
    ("twice", Checker::Once),
    // A lock is left without an end.
    ("leftover", Checker::LeftBehind),
    // A lock that all replicas were to have is granted without them, and lost with its master.
    ("not-replicated", Checker::Exclusion),
];

/// What a bug shows only where a fault meets it.
pub(crate) fn needs(bug: &str) -> Option<(Topology, &'static str)> {
    match bug {
        "not-replicated" => Some((Topology::Sentinel, "master-write-lost")),
        "long-lease" => Some((Topology::One, "kill-holder")),
        _ => None,
    }
}

/// What a bug needs the workers to do.
pub(crate) fn only(bug: &str) -> Option<Only> {
    (bug == "callers-order").then_some(Only::Sets)
}

/// Not each time, where it is of several servers: that is not one of `all`.
fn is_one_of_all(bug: &str) -> bool {
    needs(bug).is_none_or(|(topology, _)| topology == Topology::One)
}

/// True if what was asked for was caught.
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
        "there is no bug `{wanted}`; there are: all {}",
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

/// A worker has to come to it, and a thread that sleeps too long has to sleep beside a free lock.
const ROUNDS: u64 = 10;

/// In one of so many rounds.
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
            // What a fault has left kept even us from judging it.
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
