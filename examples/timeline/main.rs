//! Draws a history of holds: bars for each holder, and where two worked at once.
//!
//! `cargo run --example traps -- overrun --history overrun.jsonl` writes a history, and
//! `cargo run --example timeline -- overrun.jsonl` draws it as `overrun.svg`.
#![allow(clippy::print_stderr, reason = "a program that talks")]

mod bars;
mod chart;
#[allow(dead_code, reason = "shared with examples that draw other charts")]
#[path = "../shared/drawing.rs"]
mod drawing;
#[allow(dead_code, reason = "shared with those who write histories")]
#[path = "../shared/history.rs"]
mod history;

use std::{fs, path::PathBuf, process::ExitCode};

use anyhow::Context;
use clap::Parser;

use bars::Scene;
use history::Entry;

/// Draws a history of holds as SVG: bars for each holder, and where two worked at once
#[derive(Debug, Parser)]
#[command(name = "timeline")]
struct Options {
    /// A history as JSON lines, such as the example `traps` writes with --history
    history: PathBuf,

    /// Where to write the picture; the history's name with .svg if it is missing
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

fn main() -> ExitCode {
    if let Err(error) = run(&Options::parse()) {
        eprintln!("error: {error:#}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn run(options: &Options) -> anyhow::Result<()> {
    let file = &options.history;
    let text =
        fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let mut entries: Vec<Entry> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let entry = serde_json::from_str(line);
        entries
            .push(entry.with_context(|| format!("line {} is no entry of a history", number + 1))?);
    }
    let scenes: Vec<_> = entries
        .chunk_by(|a, b| a.scene == b.scene)
        .map(Scene::of_history)
        .collect();
    anyhow::ensure!(!scenes.is_empty(), "{} is empty", file.display());
    let out = options
        .out
        .clone()
        .unwrap_or_else(|| file.with_extension("svg"));
    fs::write(&out, chart::draw(&scenes)?)
        .with_context(|| format!("cannot write {}", out.display()))
}
