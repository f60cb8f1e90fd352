//! The results of a run, as a table or as JSON.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{
    checks::{Checker, Waited},
    faults,
    options::Options,
    round::Outcome,
};

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    program: &'static str,
    topology: &'static str,
    seed: u64,
    workers: u32,
    /// The numbers of permits, if the run used only semaphores.
    permits: Vec<u32>,
    pub(crate) rounds: u64,
    pub(crate) rounds_not_judged: u64,
    pub(crate) seconds: f64,
    /// Acquires that were granted and ended, by job.
    pairs: BTreeMap<String, u64>,
    pairs_in_all: u64,
    /// By job.
    longest_wait_of_job_ms: BTreeMap<String, f64>,
    mean_wait_of_job_ms: BTreeMap<String, f64>,
    #[serde(skip)]
    waited: BTreeMap<String, Waited>,
    waits_judged: u64,
    longest_wait_ms: f64,
    /// While the lock cannot have been held.
    longest_wait_beside_a_free_lock_ms: f64,
    /// By kind.
    faults: BTreeMap<&'static str, u64>,
    faults_in_all: u64,
    /// Faults that failed halfway: they are not counted, but may have had their effect.
    faults_by_half: BTreeMap<&'static str, u64>,
    kinds: usize,
    /// By the kind of fault that announces it, and by checker.
    announced: BTreeMap<&'static str, BTreeMap<&'static str, u64>>,
    not_announced: Vec<String>,
    /// Kinds that announce a violation and were made without causing one.
    never_bit: Vec<&'static str>,
    deaths_timed: usize,
    deaths_not_timed: u64,
    worst_time_to_free_ms: f64,
    /// Later than the lease and 250 ms.
    deaths_late: usize,
    holds_halted_past_their_lease: u64,
    writes_at_the_resource: u64,
    stale_writes_refused: u64,
    stood_still_ms: f64,
    /// Expected failures, by job and error.
    failures: BTreeMap<String, u64>,
}

impl Report {
    pub(crate) fn new(options: &Options, seed: u64) -> Self {
        Self {
            program: "torture",
            topology: options.topology.name(),
            seed,
            workers: options.workers,
            permits: options.permits.clone(),
            rounds: 0,
            rounds_not_judged: 0,
            seconds: 0.0,
            pairs: BTreeMap::new(),
            pairs_in_all: 0,
            longest_wait_of_job_ms: BTreeMap::new(),
            mean_wait_of_job_ms: BTreeMap::new(),
            waited: BTreeMap::new(),
            waits_judged: 0,
            longest_wait_ms: 0.0,
            longest_wait_beside_a_free_lock_ms: 0.0,
            faults: BTreeMap::new(),
            faults_in_all: 0,
            faults_by_half: BTreeMap::new(),
            kinds: 0,
            announced: BTreeMap::new(),
            not_announced: Vec::new(),
            never_bit: Vec::new(),
            deaths_timed: 0,
            deaths_not_timed: 0,
            worst_time_to_free_ms: 0.0,
            deaths_late: 0,
            holds_halted_past_their_lease: 0,
            writes_at_the_resource: 0,
            stale_writes_refused: 0,
            stood_still_ms: 0.0,
            failures: BTreeMap::new(),
        }
    }

    pub(crate) fn is_clean(&self) -> bool {
        self.not_announced.is_empty()
    }

    pub(crate) fn add(&mut self, outcome: Outcome) {
        self.rounds += 1;
        let figures = outcome.figures;
        for (job, count) in figures.pairs {
            *self.pairs.entry(job).or_default() += count;
            self.pairs_in_all += count;
        }
        for (kind, count) in outcome.faults {
            *self.faults.entry(kind).or_default() += count;
            self.faults_in_all += count;
        }
        for (kind, count) in outcome.half_faults {
            *self.faults_by_half.entry(kind).or_default() += count;
        }
        self.kinds = self.faults.len();
        for violation in outcome.violations {
            match violation.by {
                Some(kind) => {
                    let by_checker = self.announced.entry(kind).or_default();
                    *by_checker.entry(violation.checker.name()).or_default() += 1;
                }
                None => self
                    .not_announced
                    .push(format!("round {}: {violation}", self.rounds - 1)),
            }
        }
        for (job, waited) in figures.waited {
            let all = self.waited.entry(job.clone()).or_default();
            all.times += waited.times;
            all.in_all += waited.in_all;
            all.longest = all.longest.max(waited.longest);
            let mean = in_ms(all.in_all / all.times.max(1));
            let longest = in_ms(all.longest);
            self.mean_wait_of_job_ms.insert(job.clone(), mean);
            self.longest_wait_of_job_ms.insert(job, longest);
        }
        self.waits_judged += figures.waits;
        self.longest_wait_ms = self.longest_wait_ms.max(in_ms(figures.longest_wait));
        let beside = in_ms(figures.longest_beside_a_free_lock);
        self.longest_wait_beside_a_free_lock_ms =
            self.longest_wait_beside_a_free_lock_ms.max(beside);
        self.deaths_timed += figures.deaths.len();
        self.deaths_not_timed += figures.deaths_untold;
        self.deaths_late += figures.deaths_late;
        let worst = figures.deaths.iter().max().copied().unwrap_or(0);
        self.worst_time_to_free_ms = self.worst_time_to_free_ms.max(in_ms(worst));
        self.holds_halted_past_their_lease += figures.halted_holds;
        self.writes_at_the_resource += figures.writes;
        self.stale_writes_refused += figures.writes_refused;
        self.stood_still_ms += in_ms(outcome.stood_still);
        for (what, count) in figures.failures {
            *self.failures.entry(what).or_default() += count;
        }
        self.never_bit = faults::all_kinds()
            .filter(|kind| {
                kind.announces.contains(&Checker::Exclusion)
                    && self.faults.contains_key(kind.name)
                    && !self.announced.contains_key(kind.name)
            })
            .map(|kind| kind.name)
            .collect();
    }

    pub(crate) fn in_a_line(&self, round: u64) -> String {
        let announced: u64 = self.announced.values().flat_map(BTreeMap::values).sum();
        format!(
            "round {round}: {} pairs, {} faults of {} kinds, {announced} announced violations, {} unannounced",
            self.pairs_in_all,
            self.faults_in_all,
            self.kinds,
            self.not_announced.len()
        )
    }

    pub(crate) fn print(&self, json: bool) -> anyhow::Result<()> {
        if json {
            println!("{}", serde_json::to_string(self)?);
            return Ok(());
        }
        println!(
            "seed {}, {} rounds, {:.0} s, topology {}",
            self.seed, self.rounds, self.seconds, self.topology
        );
        println!(
            "\n{:22} {:>9} {:>10}  by checker",
            "fault", "made", "announced"
        );
        for (kind, made) in &self.faults {
            let none = BTreeMap::new();
            let bitten = self.announced.get(kind).unwrap_or(&none);
            let by: Vec<_> = bitten
                .iter()
                .map(|(checker, count)| format!("{checker} {count}"))
                .collect();
            println!(
                "{kind:22} {made:>9} {:>10}  {}",
                bitten.values().sum::<u64>(),
                by.join(", ")
            );
        }
        println!(
            "\n{:22} {:>9} {:>10} {:>13}",
            "job", "pairs", "mean wait", "longest wait"
        );
        for (job, count) in &self.pairs {
            let of_job = |waits: &BTreeMap<String, f64>| {
                waits
                    .get(job)
                    .map_or("-".to_owned(), |ms| format!("{ms:.0} ms"))
            };
            let mean = of_job(&self.mean_wait_of_job_ms);
            let longest = of_job(&self.longest_wait_of_job_ms);
            println!("{job:22} {count:>9} {mean:>10} {longest:>13}");
        }
        println!(
            "\n{} pairs; {} waits judged, the longest {:.0} ms, the longest for a free lock {:.0} ms; {} holds halted past their lease",
            self.pairs_in_all,
            self.waits_judged,
            self.longest_wait_ms,
            self.longest_wait_beside_a_free_lock_ms,
            self.holds_halted_past_their_lease
        );
        println!(
            "{} deaths timed, {} late, the slowest lock free after {:.0} ms; {} of {} writes refused as stale; the machine stood still for {:.0} ms",
            self.deaths_timed,
            self.deaths_late,
            self.worst_time_to_free_ms,
            self.stale_writes_refused,
            self.writes_at_the_resource,
            self.stood_still_ms
        );
        println!(
            "{} faults of {} kinds; unannounced violations: {}",
            self.faults_in_all,
            self.kinds,
            self.not_announced.len()
        );
        for violation in &self.not_announced {
            println!("  {violation}");
        }
        Ok(())
    }
}

fn in_ms(nanos: u64) -> f64 {
    std::time::Duration::from_nanos(nanos).as_secs_f64() * 1_000.0
}
