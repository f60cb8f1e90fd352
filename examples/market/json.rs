//! Writes the result as JSON.

use std::{fs, path::Path};

use anyhow::Context;
use serde::Serialize;

use crate::{simulation::Outcome, trade::Strategy};

#[derive(Serialize)]
struct Row {
    strategy: Strategy,
    listers: u16,
    buyers: u16,
    seconds: f64,
    listed: u64,
    bought: u64,
    retries: u64,
    wait_mean_ms: Option<f64>,
    wait_p99_ms: Option<f64>,
    invariants_hold: bool,
}

impl From<&Outcome> for Row {
    fn from(outcome: &Outcome) -> Self {
        let waits = outcome.waits();
        Self {
            strategy: outcome.cell.strategy,
            listers: outcome.cell.load.listers,
            buyers: outcome.cell.load.buyers,
            seconds: outcome.seconds.as_secs_f64(),
            listed: outcome.listed,
            bought: outcome.sales.bought,
            retries: outcome.sales.retries,
            wait_mean_ms: waits.map(|waits| waits.mean_ms),
            wait_p99_ms: waits.map(|waits| waits.p99_ms),
            invariants_hold: outcome.audit.holds(),
        }
    }
}

/// Writes one object per cell.
pub(crate) fn write(outcomes: &[Outcome], file: &Path) -> anyhow::Result<()> {
    let rows: Vec<Row> = outcomes.iter().map(Row::from).collect();
    let text = serde_json::to_string_pretty(&rows)? + "\n";
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}
