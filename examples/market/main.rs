//! The market of *Redis in Action*, section 6.2, on a real Redis: three loads by four ways of buying, side by side.
//!
//! `cargo run --release --example market` starts a private server, runs everything on it and stops it again.
//! `… --example market -- --help` tells what can be chosen.
#![allow(
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a program that talks"
)]

mod book;
mod chart;
mod invariants;
mod json;
mod options;
#[allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "the tests' server; a part of it is enough here"
)]
#[path = "../../tests/common/server.rs"]
mod server;
mod several;
mod simulation;
mod stage;
mod table;
mod trade;

use std::{io::Write, process::ExitCode, thread, time::Duration};

use anyhow::bail;
use clap::Parser;
use leasehold::Cancel;

use options::Options;
use server::Server;
use simulation::Outcome;

/// What a shell reports of a program that Ctrl-C ended.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let options = Options::parse();
    let interrupted = Cancel::new();
    let result = run(&options, &interrupted);
    if result.is_err() {
        // In a terminal Ctrl-C stops the private server too, and a thread may notice that before we notice the signal.
        thread::sleep(Duration::from_millis(250));
    }
    let interrupted = interrupted.is_cancelled();
    match result {
        Ok(()) if !interrupted => return ExitCode::SUCCESS,
        Err(error) if !interrupted || options.url.is_some() => eprintln!("error: {error:#}"),
        _ => {}
    }
    if interrupted {
        eprintln!("interrupted");
        return ExitCode::from(INTERRUPTED);
    }
    ExitCode::FAILURE
}

/// Runs the simulation and reports it, unless it is interrupted.
fn run(options: &Options, interrupted: &Cancel) -> anyhow::Result<()> {
    options.check_files()?;
    // Ctrl-C and SIGTERM: the threads stop, then everything ends as it ends otherwise.
    let at_ctrl_c = interrupted.clone();
    ctrlc::set_handler(move || at_ctrl_c.cancel())?;

    let outcomes = if let Some(url) = &options.url {
        simulation::run(options, url, interrupted)?
    } else {
        let private_server = Server::start()?;
        simulation::run(options, &private_server.url(), interrupted)?
    };
    outcomes.map_or(Ok(()), |outcomes| report(options, &outcomes))
}

fn report(options: &Options, outcomes: &[Outcome]) -> anyhow::Result<()> {
    std::io::stdout().write_all(table::table(outcomes, options.seconds).as_bytes())?;
    if let Some(file) = &options.json {
        json::write(outcomes, file)?;
    }
    if let Some(file) = &options.chart {
        chart::draw(outcomes, file)?;
    }
    if !outcomes.iter().all(|outcome| outcome.audit.holds()) {
        bail!("the invariants do not hold");
    }
    Ok(())
}
