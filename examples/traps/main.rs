//! Runs into the traps of Redis locks: first as the book's or a document's code does, then with
//! this crate.
//!
//! `cargo run --example traps` lists them; `… -- NAME` shows one, `… -- all` shows all.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program that talks"
)]

mod lessons;
mod prelude;
mod scripts;
#[allow(dead_code, reason = "shared with examples that use another part of it")]
#[path = "../shared/mod.rs"]
mod shared;
mod trap;

use std::{path::PathBuf, process::ExitCode};

use anyhow::Context;
use clap::Parser;

use lessons::{CHAPTERS, sigstop};
use shared::{
    Redis,
    history::Recorder,
    scene::{is_unread, say},
};
use trap::Trap;

/// Runs into the traps of Redis locks: first without this crate, then with it
#[derive(Debug, Parser)]
#[command(name = "traps")]
struct Options {
    /// The trap to show, or `all`; default: list them
    name: Option<String>,

    /// Use this server instead of starting a private one
    #[arg(long)]
    url: Option<String>,

    /// Write a history of who held what when, for the example `timeline`
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
}

fn main() -> ExitCode {
    if let Some(role) = sigstop::Role::of_this_process() {
        return report(role.play());
    }
    report(run(&Options::parse()))
}

fn report(result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_unread(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> anyhow::Result<()> {
    let Some(name) = &options.name else {
        return list();
    };
    let traps: Vec<_> = all_traps()
        .filter(|trap| name == "all" || trap.name == name)
        .collect();
    anyhow::ensure!(
        !traps.is_empty(),
        "there is no trap `{name}`; run without a name to list them all"
    );
    let redis = Redis::at(options.url.clone())?;
    let recorder = options.history.as_deref().map(Recorder::create);
    let recorder = recorder.transpose().context("cannot write the history")?;
    for trap in &traps {
        trap.show(&redis, recorder.as_ref())?;
    }
    if traps.len() > 1 {
        say(&format!(
            "\n{} traps: each is real, and this crate avoids each.",
            traps.len()
        ))?;
    }
    Ok(())
}

fn all_traps() -> impl Iterator<Item = &'static Trap> {
    CHAPTERS.iter().flat_map(|(_, traps)| *traps)
}

fn list() -> anyhow::Result<()> {
    for (chapter, traps) in CHAPTERS {
        say(chapter)?;
        for trap in *traps {
            say(&format!("  {:18} {}", trap.name, trap.title))?;
        }
        say("")?;
    }
    say("Show one: cargo run --example traps -- NAME    Show all: cargo run --example traps -- all")
}
