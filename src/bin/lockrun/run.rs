//! From the lock to its release.

use std::{
    sync::{
        Arc,
        mpsc::{Receiver, channel},
    },
    time::{Duration, Instant},
};

use leasehold::{Cancel, Error, LastRun, Lease, Lock, Locks, Once, Options, Ran, Result as Held};

use crate::{
    arguments::Arguments,
    busy::Busy,
    command::{self, Ended, Job},
    events::{Event, Hooks},
    guard::Guard,
    loss::{Loss, Why},
    outcome::{Outcome, Report},
    signals::{self, Started},
    text::whole,
};

/// A command that has ended, and the guard of what it may have left running.
struct Finished {
    ended: Ended,
    guard: Guard,
}

/// What has become of the lock and the command.
enum Done {
    HasBeenRun(LastRun),
    NotRun(Outcome),
    /// The command was run. With the result of letting the lock go.
    Run(Finished, Held<()>),
}

/// Acquires the lock, runs the command and lets the lock go. The report has the exit code and what is to be printed.
pub(crate) fn run(arguments: &Arguments) -> Report {
    let mut report = Report::new();
    let outcome = locked(arguments, &mut report);
    report.outcome = outcome.unwrap_or_else(|error| error);
    report
}

/// Every way out of it before the command has run is an `Err`.
fn locked(arguments: &Arguments, report: &mut Report) -> Result<Outcome, Outcome> {
    let (sender, events) = channel();
    let cancel = Cancel::new();
    let started = signals::listen(sender.clone(), cancel.clone()).map_err(Outcome::System)?;
    let options = Options::new()
        .lease(arguments.lease)
        .cancel(&cancel)
        .events(Arc::new(Hooks(sender)));
    let locks = Locks::connect(&arguments.url)
        .map_err(Outcome::Failed)?
        .with(options);

    let asked = Instant::now();
    arguments.tell(|| format!("waiting for `{}`", arguments.name));
    let lock = locks.lock(&arguments.name);
    let mut acquired = None;
    let under = |lease: &Lease| {
        acquired = Some((Instant::now(), lease.fencing_token()));
        guarded(arguments, started, lease, &events)
    };
    let done = match arguments.once_per {
        None => each_time(&lock, arguments.wait, under),
        Some(period) => once(&lock, period, arguments.wait, under),
    };
    report.waited = acquired.map_or_else(|| asked.elapsed(), |(moment, _)| moment - asked);
    report.held = acquired.map(|(moment, _)| moment.elapsed());
    report.fencing_token = acquired.and_then(|(_, fence)| fence);
    match done {
        Ok(Done::HasBeenRun(run)) => Err(Outcome::HasBeenRun(run)),
        Ok(Done::NotRun(outcome)) => Err(outcome),
        Ok(Done::Run(finished, released)) => Ok(concluded(arguments, finished, released, report)),
        Err(Error::Contended { .. }) => Err(Outcome::Busy(Busy::with(&lock))),
        Err(error @ Error::Cancelled { .. }) => {
            let signal = events.try_iter().find_map(|event| match event {
                Event::Signal(signal) => Some(signal),
                _ => None,
            });
            Err(signal.map_or(Outcome::Failed(error), Outcome::Told))
        }
        Err(error) => Err(Outcome::Failed(error)),
    }
}

fn each_time(
    lock: &Lock,
    wait: Duration,
    under: impl FnOnce(&Lease) -> Result<Finished, Outcome>,
) -> Held<Done> {
    let lease = lock.acquire(wait)?;
    let finished = match under(&lease) {
        Ok(finished) => finished,
        Err(outcome) => return Ok(Done::NotRun(outcome)),
    };
    let released = if finished.ended.lost.is_some() {
        // Dropping takes less time where the server is silent.
        drop(lease);
        Ok(())
    } else {
        lease.release()
    };
    Ok(Done::Run(finished, released))
}

fn once(
    lock: &Lock,
    period: Duration,
    wait: Duration,
    under: impl FnOnce(&Lease) -> Result<Finished, Outcome>,
) -> Held<Done> {
    let once = lock.run_once(period, wait, |lease| match under(lease) {
        Ok(finished) if finished.ended.has_succeeded() => Ok(finished),
        not_marked => Err(not_marked),
    })?;
    Ok(match once {
        Once::HasBeenRun(run) => Done::HasBeenRun(run),
        Once::Ran(Ran {
            value, released, ..
        }) => Done::Run(value, released),
        Once::Failed(Ran {
            value: Ok(finished),
            released,
            ..
        }) => Done::Run(finished, released),
        Once::Failed(Ran {
            value: Err(outcome),
            ..
        }) => Done::NotRun(outcome),
        _ => Done::NotRun(Outcome::System(std::io::ErrorKind::Other.into())),
    })
}

/// Runs the command while the lock is held.
fn guarded(
    arguments: &Arguments,
    started: Started,
    lease: &Lease,
    events: &Receiver<Event>,
) -> Result<Finished, Outcome> {
    arguments.tell(|| match lease.fencing_token() {
        Some(fence) => format!("`{}` is ours, fencing token {fence}", arguments.name),
        None => format!("`{}` is ours", arguments.name),
    });
    let mut guard = Guard::start(started).map_err(Outcome::System)?;
    // We may have been stopped for any time.
    if !lease.is_held() {
        let why = Why::of(lease.lost().reason());
        return Err(Outcome::Lost(Loss::before_the_command(why)));
    }
    let command = command::start(arguments, started, lease, &mut guard)?;
    let (ended, guard) = Job::new(arguments, lease, guard, command, events).watch();
    Ok(Finished { ended, guard })
}

/// The outcome, once the lock is let go.
fn concluded(
    arguments: &Arguments,
    Finished { ended, guard }: Finished,
    released: Held<()>,
    report: &mut Report,
) -> Outcome {
    let lost = ended.lost.or(match released {
        Ok(()) => None,
        Err(Error::Lost { reason, .. }) => Some(Why::of(reason)),
        Err(error) if arguments.once_per.is_some() && ended.has_succeeded() => {
            report.unmarked = Some(error);
            None
        }
        Err(error) => {
            arguments.tell(|| format!("the lock ends with its lease: {}", whole(&error)));
            None
        }
    });
    // The guardian is dismissed after the release, since its answer may take a while.
    let was_killed = guard.dismiss();
    let why = lost.or(was_killed.then_some(Why::NotRenewed));
    match (ended.status, why) {
        (Err(error), _) => Outcome::System(error),
        (Ok(status), None) => Outcome::Ended(status),
        (Ok(status), Some(why)) => Outcome::Lost(Loss {
            why,
            failure: ended.failure,
            status: Some(status),
            was_ended: was_killed || ended.lost.is_some(),
        }),
    }
}
