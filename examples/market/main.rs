//! The market of *Redis in Action*, section 6.2, on a real Redis: three loads and four strategies,
//! side by side.
//!
//! `cargo run --release --example market` starts a private server, runs everything on it and stops
//! it.
//! `… --example market -- --help` lists the options.
#![allow(
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a command-line program"
)]

mod book;
mod chart;
#[allow(dead_code, reason = "shared with examples that draw other charts")]
#[path = "../shared/drawing.rs"]
mod drawing;
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

/// The exit code that a shell reports for a program ended by Ctrl-C.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let options = Options::parse();
    let interrupted = Cancel::new();
    let result = run(&options, &interrupted);
    if result.is_err() {
        // In a terminal, Ctrl-C also stops the private server, and a thread may notice that before
        // the signal handler runs.
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
    // On Ctrl-C or SIGTERM the threads stop, and the program ends as usual.
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
        bail!("the invariants are broken: see the lines marked BROKEN");
    }
    Ok(())
}
