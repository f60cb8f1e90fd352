//! Command-line options.

use std::time::Duration;

use clap::{Parser, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::faults;

/// Attacks every promise of the locks at once, and reports the result
#[derive(Clone, Debug, Parser)]
#[command(name = "torture")]
pub(crate) struct Options {
    /// Repeat the faults and jobs of an earlier run; the default is a new seed, which is printed
    #[arg(long)]
    pub(crate) seed: Option<u64>,

    /// Minutes to run; the last round is completed
    #[arg(long, default_value_t = 1.0)]
    pub(crate) minutes: f64,

    /// The servers to start
    #[arg(long, value_enum, default_value_t = Topology::One)]
    pub(crate) topology: Topology,

    /// Make only these kinds of faults, separated by commas; `none` for no faults
    #[arg(long, value_delimiter = ',')]
    pub(crate) kinds: Vec<String>,

    /// The number of worker processes
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=32))]
    pub(crate) workers: u32,

    /// The seconds of a round; the default is 12 with one server and 30 with several
    #[arg(long)]
    pub(crate) round: Option<f64>,

    /// Use only semaphores; each round takes the next of these numbers of permits, separated by
    /// commas; eight threads in each worker
    #[arg(long, value_delimiter = ',', conflicts_with = "pairs", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) permits: Vec<u32>,

    /// Use only sets of two of sixteen locks, in sixteen threads of each worker, along with single
    /// locks
    #[arg(long, conflicts_with_all = ["pairs", "permits"])]
    pub(crate) sets: bool,

    /// Make no faults: check as many acquire and release pairs as possible
    #[arg(long)]
    pub(crate) pairs: bool,

    /// With `--pairs`: at most this many pairs per second, to run for hours alongside other work
    #[arg(long, requires = "pairs")]
    pub(crate) pace: Option<u64>,

    /// Put this bug into the workers: it must be caught; `all` for one after the other
    #[arg(long)]
    pub(crate) bug: Option<String>,

    /// Print one JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

/// The only kind of locks in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Only {
    /// Semaphores with this many permits.
    Permits(u32),
    /// Sets of locks, and single locks with the same names.
    Sets,
}

/// The servers that a round starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Topology {
    /// One server.
    One,
    /// A master with one or two replicas, and three sentinels.
    Sentinel,
    /// Three masters with a replica each.
    Cluster,
}

impl Topology {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::Sentinel => "sentinel",
            Self::Cluster => "cluster",
        }
    }
}

impl Options {
    pub(crate) fn duration(&self) -> Duration {
        Duration::from_secs_f64(self.minutes.max(0.0) * 60.0)
    }

    pub(crate) fn seconds_of_a_round(&self) -> f64 {
        self.round.unwrap_or(match self.topology {
            Topology::One => 12.0,
            Topology::Sentinel | Topology::Cluster => 30.0,
        })
    }

    /// `None`: a round with all kinds of locks.
    pub(crate) fn only_of_round(&self, number: u64) -> Option<Only> {
        if self.sets {
            return Some(Only::Sets);
        }
        let numbers = u64::try_from(self.permits.len()).unwrap_or(0).max(1);
        let at = usize::try_from(number % numbers).unwrap_or(0);
        self.permits.get(at).copied().map(Only::Permits)
    }

    /// Returns the wanted kinds of faults. Fails on an unknown name.
    pub(crate) fn kinds(&self) -> anyhow::Result<Vec<&'static faults::Kind>> {
        if self.kinds.iter().any(|name| name == "none") {
            return Ok(Vec::new());
        }
        for name in &self.kinds {
            anyhow::ensure!(
                faults::kinds(self.topology).any(|kind| kind.name == name),
                "unknown kind of fault `{name}`; use some of: none {}",
                faults::kinds(self.topology)
                    .map(|kind| kind.name)
                    .collect::<Vec<_>>()
                    .join(" ")
            );
        }
        let is_wanted = |kind: &&faults::Kind| {
            self.kinds.is_empty() || self.kinds.iter().any(|name| name == kind.name)
        };
        Ok(faults::kinds(self.topology).filter(is_wanted).collect())
    }
}
