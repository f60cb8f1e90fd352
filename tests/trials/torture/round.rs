//! One round: set the stage, let workers work while faults are made, and then check everything.

use std::{
    collections::{BTreeMap, HashMap},
    env, fs,
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use leasehold::market::MARKET;

use crate::{
    bug,
    checks::{Checker, Evidence, Figures, Span, Violation, check},
    clock::{Nanos, millis, nanos, now, wall_is_ahead},
    common::Proxy,
    crew::{Crew, OwnClock, Workers, programs},
    faults::{self, AtClients, AtServer, AtSeveral, Fault, Kind, in_turn},
    history::{self, Record},
    left::{left_on_the_server, processes_left},
    options::{Only, Options, Topology},
    servers::Servers,
    stage::{Stage, build_client_clock},
    stalls::Stalls,
    sums::{self, TRANSFERS},
    worker::{LONG_LEASE, Money, endow_accounts, threads_of_a_worker},
};

/// No faults at the end, so that everything can settle.
const QUIET: Nanos = millis(1_500);
/// The longest time that a worker needs to end after its time: the longest wait, the longest hold,
/// and the effect of a fault on both.
const PATIENCE: Nanos = millis(15_000);

pub(crate) struct Round {
    pub(crate) seed: u64,
    number: u64,
    length: Nanos,
    kinds: Vec<&'static Kind>,
    workers: u32,
    topology: Topology,
    /// The only kind of locks.
    only: Option<Only>,
    bug: Option<String>,
}

/// The result of a round.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) violations: Vec<Violation>,
    pub(crate) figures: Figures,
    pub(crate) faults: BTreeMap<&'static str, u64>,
    /// Faults that failed halfway.
    pub(crate) half_faults: BTreeMap<&'static str, u64>,
    pub(crate) stood_still: Nanos,
}

impl Round {
    /// Creates the round with this number, with a few of all kinds of faults unless the user has
    /// chosen some.
    pub(crate) fn of(options: &Options, seed: u64, number: u64, left: Duration) -> Self {
        let seed = seed.wrapping_add(number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let mut random = fastrand::Rng::with_seed(seed);
        let wanted = options.kinds().unwrap_or_default();
        let kinds = if options.kinds.is_empty() {
            some(&wanted, options.topology, &mut random)
        } else {
            wanted
        };
        let seconds = options
            .seconds_of_a_round()
            .min(left.as_secs_f64().max(4.0));
        Self {
            seed,
            number,
            length: nanos(Duration::from_secs_f64(seconds.max(2.0))),
            kinds,
            workers: options.workers,
            topology: options.topology,
            only: options.only_of_round(number),
            bug: None,
        }
    }

    /// Creates a round with a bug in the workers, without faults unless the bug needs one.
    pub(crate) fn with_bug(options: &Options, bug: &str, seed: u64) -> Self {
        let needs = bug::needs(bug);
        let topology = needs.map_or(options.topology, |(topology, _)| topology);
        let needed = |kind: &&Kind| needs.is_some_and(|(_, name)| name == kind.name);
        Self {
            seed,
            number: 0,
            length: millis(if needs.is_some() { 15_000 } else { 5_000 }),
            kinds: faults::kinds(topology).filter(needed).collect(),
            workers: options.workers,
            topology,
            only: bug::only(bug).or_else(|| options.only_of_round(seed)),
            bug: Some(bug.to_owned()),
        }
    }

    pub(crate) fn run(&self, interrupted: &AtomicBool, tick: &dyn Fn()) -> anyhow::Result<Outcome> {
        let stalls = Stalls::watch();
        let with_clock = self.kinds.iter().any(|kind| kind.sets_clock());
        let mut stage = Stage::set(
            self.topology,
            fastrand::Rng::with_seed(self.seed).usize(1..3),
            with_clock,
            self.bug.as_deref() == Some("stale-accepted"),
        )?;
        let money = match self.topology {
            Topology::One => Some(Money::endow(&mut stage.judge(MARKET)?)?),
            _ => None,
        };
        endow_accounts(&mut stage.judge(TRANSFERS)?)?;
        let ahead = wall_is_ahead();
        // Find the programs first: on a busy machine that takes time, which the workers should not
        // lose.
        let programs = programs();
        let until = now() + self.length;
        let crew = Crew {
            seed: self.seed,
            trades: self.trades(),
            // If only a few kinds of faults are wanted, make them meet holders.
            long_in: if matches!(self.kinds.len(), 1..=3) && self.only != Some(Only::Sets) {
                3
            } else {
                30
            },
            only: self.only,
            bug: self.bug.clone(),
            topology: self.topology,
            url: stage.servers.url(),
            proxy: stage.proxy.as_ref().map(Proxy::url),
            gates: stage.servers.gates(),
            replicas: stage.servers.replicas(),
            resource: stage.resource_port,
            folder: stage.folder.path().to_owned(),
            until,
            programs,
            clock: self.own_clock(&stage)?,
        };
        let (log, targets) = (faults::Log::default(), faults::Targets::default());
        let (killed, mut violations) =
            self.play(&mut stage, &crew, &log, &targets, interrupted, tick)?;
        let mut log = log.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(kind) = self.clock_kind().filter(|_| crew.clock.is_some()) {
            log.push(Fault::of_a_round(kind, until.saturating_sub(self.length)));
        }
        let killed = by_faults(killed, &log, &mut violations);

        let records = history::read(stage.folder.path())?;
        let money = money.filter(|_| self.trades());
        violations.extend(sums::check(
            &stage,
            &records,
            killed.len() * self.commits_at_once(),
            money,
        )?);
        if !with_clock {
            for mut conn in stage.judges()? {
                violations.extend(left_on_the_server(&mut conn, self.longest_left()));
            }
        }
        violations.extend(processes_left(stage.folder.path()));
        for violation in &mut violations {
            violation.judge(&log);
        }
        // If our clock or the server's was set meanwhile, their difference means nothing.
        let moved = (wall_is_ahead() - ahead).abs() > 1_000_000;
        let stood_still = stalls.seen();
        let (found, figures) = check(&Evidence {
            records: &records,
            faults: &log,
            killed: &killed,
            stalls: &stood_still,
            are_several: self.topology != Topology::One,
            server_logs: &stage.logs()?,
            wall_is_ahead: (!with_clock && !moved).then_some(ahead),
        });
        violations.extend(found);
        self.keep(&violations, &log, &stage);
        Ok(Outcome {
            faults: count(&log, &records),
            half_faults: count_half(&log),
            violations,
            figures,
            stood_still: stood_still.iter().map(|span| span.length()).sum(),
        })
    }

    /// Runs until all workers have ended. Returns the times at which workers ended early.
    fn play(
        &self,
        stage: &mut Stage,
        crew: &Crew,
        log: &faults::Log,
        targets: &faults::Targets,
        interrupted: &AtomicBool,
        tick: &dyn Fn(),
    ) -> anyhow::Result<(HashMap<u32, Nanos>, Vec<Violation>)> {
        let over = crew.until.saturating_sub(QUIET);
        let mut workers = Workers::default();
        for worker in 0..self.workers {
            workers.parts.push((worker, crew.start(worker)?));
        }
        workers.show(targets);
        let (at_server, at_clients): (Vec<_>, Vec<_>) =
            self.kinds.iter().partition(|kind| kind.is_at_server());
        let mut breaks_clients = AtClients {
            proxy: stage.proxy.as_ref(),
            urls: stage.servers.urls(),
            targets,
            jobs: threads_of_a_worker(self.only),
            locks: faults::locks_hit(self.only),
            random: fastrand::Rng::with_seed(self.seed ^ 2),
            armed: Vec::new(),
            proxied_until: crew.until,
        };
        let stop = |over: Nanos| move || now() < over && !interrupted.load(Ordering::SeqCst);
        let violations = Mutex::new(Vec::new());
        thread::scope(|scope| -> anyhow::Result<()> {
            let (one, two) = (stop(over), stop(over));
            let servers = &mut stage.servers;
            let (folder, has_clock) = (stage.folder.path(), stage.has_clock);
            scope.spawn(move || {
                self.break_servers(servers, folder, has_clock, &at_server, &one, log);
            });
            scope.spawn(move || breaks_clients.work(&at_clients, &two, log));
            while !workers.parts.is_empty() {
                thread::sleep(Duration::from_millis(10));
                tick();
                if interrupted.load(Ordering::SeqCst) {
                    break;
                }
                workers.replace_the_dead(crew, over)?;
                workers.show(targets);
                if now() > crew.until + PATIENCE {
                    let mut violations = violations.lock().unwrap_or_else(PoisonError::into_inner);
                    violations.extend(workers.parts.iter().map(|(worker, _)| {
                        let what = format!("worker {worker} did not end");
                        Violation::new(Checker::Alive, "", Span { from: 0, to: 0 }, what)
                    }));
                    break;
                }
            }
            Ok(())
        })?;
        let violations = violations
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        Ok((workers.killed, violations))
    }

    /// Makes the faults on the side of the servers.
    fn break_servers(
        &self,
        servers: &mut Servers,
        folder: &Path,
        has_clock: bool,
        kinds: &[&'static Kind],
        go_on: &dyn Fn() -> bool,
        log: &faults::Log,
    ) {
        let random = fastrand::Rng::with_seed(self.seed ^ 1);
        match servers {
            Servers::One(server) => {
                let url = server.url();
                let mut at = AtServer {
                    server,
                    url: &url,
                    folder,
                    has_clock,
                    clock_ahead: 0,
                    locks: faults::locks_hit(self.only),
                    random,
                };
                in_turn(&mut at, kinds, go_on, log);
            }
            Servers::Watched(group) => {
                in_turn(
                    &mut AtSeveral::new(group, self.only, random),
                    kinds,
                    go_on,
                    log,
                );
            }
            Servers::Sharded(cluster) => {
                in_turn(
                    &mut AtSeveral::new(cluster, self.only, random),
                    kinds,
                    go_on,
                    log,
                );
            }
        }
    }

    /// Picks one of the round's kinds that change a clock's rate.
    fn clock_kind(&self) -> Option<&'static Kind> {
        let clocks = self.kinds.iter().filter(|kind| kind.rate().is_some());
        let clocks: Vec<_> = clocks.copied().collect();
        fastrand::Rng::with_seed(self.seed ^ 3)
            .choice(&clocks)
            .copied()
    }

    fn own_clock(&self, stage: &Stage) -> anyhow::Result<Option<OwnClock>> {
        let Some(rate) = self.clock_kind().and_then(Kind::rate) else {
            return Ok(None);
        };
        let library = build_client_clock(&stage.folder)?;
        Ok(library.map(|library| OwnClock { library, rate }))
    }

    /// The longest time that a lock may remain after all workers have ended.
    fn longest_left(&self) -> Nanos {
        match self.topology {
            Topology::One => millis(3_000),
            _ => nanos(LONG_LEASE) + millis(2_000),
        }
    }

    /// The commits of which a killed worker cannot tell the result.
    fn commits_at_once(&self) -> usize {
        match self.only {
            None => 1,
            only => threads_of_a_worker(only),
        }
    }

    fn trades(&self) -> bool {
        !self.kinds.iter().any(|kind| kind.loses_data())
    }

    /// Keeps the evidence of a violation for analysis.
    fn keep(&self, violations: &[Violation], log: &[Fault], stage: &Stage) {
        let is_one = violations.iter().any(|violation| !violation.announced);
        let Some(to) = env::var_os("TORTURE_KEEP").filter(|_| is_one && self.bug.is_none()) else {
            return;
        };
        let to = PathBuf::from(to).join(format!("{}-{}", self.seed, self.number));
        let _ = fs::create_dir_all(&to);
        for entry in fs::read_dir(stage.folder.path())
            .into_iter()
            .flatten()
            .flatten()
        {
            let _ = fs::copy(entry.path(), to.join(entry.file_name()));
        }
        for (nth, log) in stage.logs().into_iter().flatten().enumerate() {
            let _ = fs::write(to.join(format!("log-{nth}")), log);
        }
        let said: Vec<_> = violations.iter().map(ToString::to_string).collect();
        let made = log.iter().map(|fault| {
            format!(
                "{} {} {} {:?} {:?}",
                fault.from, fault.to, fault.kind.name, fault.lock, fault.worker
            )
        });
        let _ = fs::write(to.join("faults"), made.collect::<Vec<_>>().join("\n"));
        let _ = fs::write(to.join("violations"), said.join("\n"));
    }
}

/// Picks a dozen kinds. Those that lose data or set the clock are in some rounds only: the
/// violations that they announce could hide others.
fn some(
    wanted: &[&'static Kind],
    topology: Topology,
    random: &mut fastrand::Rng,
) -> Vec<&'static Kind> {
    let (loses, sets) = (random.u32(..3) == 0, random.u32(..4) == 0);
    // With several servers, most faults may lose data.
    let loses = loses || topology != Topology::One && random.bool();
    let mut kinds: Vec<_> = wanted
        .iter()
        .copied()
        .filter(|kind| (loses || !kind.loses_data()) && (sets || !kind.sets_clock()))
        .collect();
    random.shuffle(&mut kinds);
    let mut left = [6, 7];
    kinds.retain(|kind| {
        let side = &mut left[usize::from(kind.is_at_server())];
        let is_in = *side > 0;
        *side -= usize::from(is_in);
        is_in
    });
    kinds
}

/// Returns the time of each kill. A worker that died without one is a violation.
fn by_faults(
    killed: HashMap<u32, Nanos>,
    log: &[Fault],
    violations: &mut Vec<Violation>,
) -> HashMap<u32, Nanos> {
    let kill = |worker: u32| {
        let kills = log
            .iter()
            .filter(|fault| fault.kind.name.starts_with("kill-"));
        kills
            .filter(|fault| fault.worker == Some(worker))
            .map(|fault| fault.to)
            .next()
    };
    let mut when = HashMap::new();
    for (worker, seen) in killed {
        if kill(worker).is_none() {
            let what = format!("worker {worker} died without a kill");
            violations.push(Violation::new(
                Checker::Alive,
                "",
                Span { from: 0, to: 0 },
                what,
            ));
        }
        when.insert(worker, kill(worker).unwrap_or(seen));
    }
    when
}

fn count_half(log: &[Fault]) -> BTreeMap<&'static str, u64> {
    let mut counted = BTreeMap::new();
    for fault in log.iter().filter(|fault| !fault.counts) {
        *counted.entry(fault.kind.name).or_default() += 1;
    }
    counted
}

fn count(log: &[Fault], records: &[Record]) -> BTreeMap<&'static str, u64> {
    let mut counted = BTreeMap::new();
    for fault in log.iter().filter(|fault| fault.counts) {
        *counted.entry(fault.kind.name).or_default() += 1;
    }
    for record in records {
        if let Record::Made { kind, .. } = record
            && let Some(kind) = faults::all_kinds().find(|known| known.name == kind)
        {
            *counted.entry(kind.name).or_default() += 1;
        }
    }
    counted
}
