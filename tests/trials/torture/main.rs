//! Attacks every promise of the locks at once, for as long as you like, and reports the result.
//!
//! ```text
//! torture="cargo run --release --package trials --bin torture --"
//! $torture --minutes 10
//! $torture --seed 7 --minutes 1 --kinds stop-holder,kill-holder --json
//! $torture --topology sentinel --minutes 10
//! $torture --permits 1,3,16 --minutes 10
//! $torture --sets --minutes 10
//! $torture --pairs --minutes 5
//! $torture --bug all
//! ```
//!
//! A run is a series of rounds. Each round starts one or more servers, worker processes, and a
//! resource that refuses smaller fencing numbers. Faults are chosen from a seed and made meanwhile;
//! then all records of the workers are checked. Linux only.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line program"
)]

mod bug;
mod checks;
mod clock;
#[allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "shared with the tests, which fail by panicking"
)]
#[path = "../../common/mod.rs"]
mod common;
mod crew;
mod faults;
mod history;
mod left;
mod options;
mod pairs;
mod report;
mod resource;
mod role;
mod round;
mod servers;
mod stage;
mod stalls;
mod sums;
mod worker;

use std::{
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Context;
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};

use options::Options;
use peak_alloc::PeakAlloc;
use report::Report;
use role::Role;
use round::Round;

/// Counts allocated bytes: the memory of the process includes freed memory that the system gets
/// back late or never.
#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

fn main() -> ExitCode {
    let result = match Role::of_this_process() {
        Ok(Some(role)) => role.play().map(|()| true),
        Ok(None) => run(&Options::parse()),
        Err(error) => Err(error),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Returns true if no promise was broken.
fn run(options: &Options) -> anyhow::Result<bool> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&interrupted);
    ctrlc::set_handler(move || flag.store(true, Ordering::SeqCst))
        .context("cannot catch signals")?;
    if let Some(bug) = &options.bug {
        return bug::all_are_caught(options, bug, &interrupted);
    }
    // Check the names first: an unknown name would cause no faults at all.
    options.kinds()?;
    let seed = options.seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
    if options.pairs {
        let report = pairs::run(options, seed, &interrupted)?;
        report.print(options.json)?;
        return Ok(report.is_clean());
    }
    let mut report = Report::new(options, seed);
    let progress = progress(options.duration())?;
    let started = Instant::now();
    let mut number = 0;
    while !interrupted.load(Ordering::SeqCst)
        && (number == 0 || started.elapsed() < options.duration())
    {
        let left = options.duration().saturating_sub(started.elapsed());
        let round = Round::of(options, seed, number, left);
        progress.set_message(report.in_a_line(number));
        let outcome = round.run(&interrupted, &|| {
            progress.set_position(u64::try_from(started.elapsed().as_millis()).unwrap_or(0));
        });
        number += 1;
        let outcome = match outcome {
            Ok(outcome) => outcome,
            // The machine, or the after-effects of a fault, made the round impossible to judge.
            // Later rounds are still judged.
            Err(error) => {
                progress.suspend(|| eprintln!("round {}: not judged: {error:#}", number - 1));
                report.rounds_not_judged += 1;
                anyhow::ensure!(report.rounds_not_judged < 10, error);
                continue;
            }
        };
        for violation in outcome.violations.iter().filter(|found| !found.announced) {
            progress.suspend(|| eprintln!("round {}: {violation}", number - 1));
        }
        report.add(outcome);
    }
    progress.finish_and_clear();
    report.seconds = started.elapsed().as_secs_f64();
    report.print(options.json)?;
    Ok(report.is_clean())
}

/// indicatif hides the bar if there is no terminal.
fn progress(duration: Duration) -> anyhow::Result<ProgressBar> {
    let progress = ProgressBar::new(u64::try_from(duration.as_millis())?);
    progress.set_style(ProgressStyle::with_template("{wide_bar} {msg} {eta:>4}")?);
    Ok(progress)
}
