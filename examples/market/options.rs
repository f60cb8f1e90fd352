//! Command-line options.

use std::{fs::OpenOptions, path::PathBuf, time::Duration};

use anyhow::Context;
use clap::{Parser, value_parser};

use crate::trade::Strategy;

/// The market of "Redis in Action" on a real Redis: three loads and four strategies, side by side
#[derive(Debug, Parser)]
#[command(name = "market")]
pub(crate) struct Options {
    /// Seconds for each cell of the table, 0.1 to 600
    #[arg(long, default_value = "5", value_parser = seconds)]
    pub(crate) seconds: Duration,

    /// A single load with this many listers (1 if only --buyers is given)
    #[arg(long, value_parser = value_parser!(u16).range(1..=64))]
    listers: Option<u16>,

    /// A single load with this many buyers (1 if only --listers is given)
    #[arg(long, value_parser = value_parser!(u16).range(1..=64))]
    buyers: Option<u16>,

    /// A single strategy for listing and buying; default: all
    #[arg(long, value_enum)]
    strategy: Option<Strategy>,

    /// Use this server, which must not hold a market, instead of starting a private one
    #[arg(long)]
    pub(crate) url: Option<String>,

    /// Draw the result as an SVG
    #[arg(long, value_name = "FILE")]
    pub(crate) chart: Option<PathBuf>,

    /// Write the result as JSON, one object per cell
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// The number of threads that list, and that buy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) listers: u16,
    pub(crate) buyers: u16,
}

impl Load {
    /// Formats the load, such as `5 listers, 1 buyer`.
    pub(crate) fn in_words(self) -> String {
        let plural = |count| if count == 1 { "" } else { "s" };
        let Self { listers, buyers } = self;
        format!(
            "{listers} lister{}, {buyers} buyer{}",
            plural(listers),
            plural(buyers)
        )
    }
}

/// One cell of the table: a load and a strategy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    pub(crate) load: Load,
    pub(crate) strategy: Strategy,
}

impl Options {
    /// Returns the cells to run, in the order of the book's table.
    pub(crate) fn cells(&self) -> Vec<Cell> {
        let strategies = (self.strategy).map_or(Strategy::ALL.to_vec(), |only| vec![only]);
        let cells_of = |load| {
            strategies
                .iter()
                .map(move |&strategy| Cell { load, strategy })
        };
        self.loads().into_iter().flat_map(cells_of).collect()
    }

    fn loads(&self) -> Vec<Load> {
        let load = |listers, buyers| Load { listers, buyers };
        match (self.listers, self.buyers) {
            (None, None) => vec![load(1, 1), load(5, 1), load(5, 5)],
            (listers, buyers) => vec![load(listers.unwrap_or(1), buyers.unwrap_or(1))],
        }
    }

    /// Fails before the run, not after it, if a file cannot be written.
    pub(crate) fn check_files(&self) -> anyhow::Result<()> {
        for file in [&self.chart, &self.json].into_iter().flatten() {
            let opened = OpenOptions::new().append(true).create(true).open(file);
            opened.with_context(|| format!("cannot write {}", file.display()))?;
        }
        Ok(())
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("must be a number from 0.1 to 600".to_owned()),
    }
}
