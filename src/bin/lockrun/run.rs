//! Acquires the lock, runs the command and releases the lock.

use std::{
    process,
    sync::{
        Arc,
        mpsc::{Receiver, channel},
    },
    thread,
    time::{Duration, Instant},
};

use leasehold::{
    Cancel, Error, LastRun, Lease, Lock, Locks, Once, Options, Ran, Result as LockResult,
};
use parking_lot::Mutex;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::{
    arguments::Arguments,
    busy::Busy,
    command::{self, Ended, Job},
    events::{Event, Hooks, Inbox},
    guard::Guard,
    loss::{Loss, Why},
    outcome::{Conclusion, Report},
    signals::{self, SignalMask},
    text::whole,
};

/// Why a successful run is not marked as done.
const TOLD: &str = "lockrun was told to end";

/// The results of the lock and the command.
enum RunResult {
    AlreadyRun(LastRun),
    NotRun(Conclusion),
    /// The command was run. The second field is the result of the release.
    Run(Ended, LockResult<()>),
}

/// Acquires the lock, runs the command and releases the lock. The report has the exit code and the
/// text to print.
pub(crate) fn run(arguments: &Arguments) -> Report {
    let mut report = Report::new();
    let outcome = locked(arguments, &mut report);
    report.outcome = outcome.unwrap_or_else(|error| error);
    report
}

/// Every outcome without a run of the command is an `Err`.
fn locked(arguments: &Arguments, report: &mut Report) -> Result<Conclusion, Conclusion> {
    let (sender, events) = channel();
    let events = Arc::new(Mutex::new(events));
    let cancel = Cancel::new();
    let started = signals::listen(sender.clone(), cancel.clone()).map_err(Conclusion::System)?;
    let options = Options::new()
        .lease(arguments.lease)
        .cancel(&cancel)
        .events(Arc::new(Hooks(sender)));
    let locks = Locks::connect(&arguments.url)
        .map_err(Conclusion::Failed)?
        .with(options);

    let asked = Instant::now();
    arguments.tell(|| format!("waiting for {}", arguments.subject()));
    let lock = arguments.lock(&locks);
    let under = |lease: &Lease| {
        let acquired = Instant::now();
        report.waited = acquired - asked;
        report.fencing_token = lease.fencing_token();
        let ended = guarded(arguments, started, lease, &events.lock());
        report.held = Some(acquired.elapsed());
        if let Ok(ended) = &ended {
            bound_the_release(arguments, &events, ended, report);
        }
        ended
    };
    let done = match arguments.once_per {
        None => each_time(&lock, arguments.wait, under),
        Some(period) => once(&lock, period, arguments.wait, under),
    };
    if report.held.is_none() {
        report.waited = asked.elapsed();
    }
    match done {
        Ok(RunResult::AlreadyRun(run)) => Err(Conclusion::AlreadyRun(run)),
        Ok(RunResult::NotRun(outcome)) => Err(outcome),
        Ok(RunResult::Run(ended, released)) => Ok(concluded(arguments, ended, released, report)),
        Err(Error::Contended { .. }) => Err(Conclusion::Busy(Busy::with(&lock, arguments.permits))),
        Err(error @ Error::Cancelled { .. }) => {
            let signal = events.lock().try_iter().find_map(|event| match event {
                Event::Signal(signal) => Some(signal),
                _ => None,
            });
            Err(signal.map_or(Conclusion::Failed(error), Conclusion::Told))
        }
        Err(error) => Err(Conclusion::Failed(error)),
    }
}

fn each_time(
    lock: &Lock,
    wait: Duration,
    under: impl FnOnce(&Lease) -> Result<Ended, Conclusion>,
) -> LockResult<RunResult> {
    let lease = lock.acquire(wait)?;
    let ended = match under(&lease) {
        Ok(ended) => ended,
        Err(outcome) => return Ok(RunResult::NotRun(outcome)),
    };
    let released = if ended.lost.is_some() {
        // If the server does not answer, a drop takes less time than a release.
        drop(lease);
        Ok(())
    } else {
        lease.release()
    };
    Ok(RunResult::Run(ended, released))
}

fn once(
    lock: &Lock,
    period: Duration,
    wait: Duration,
    under: impl FnOnce(&Lease) -> Result<Ended, Conclusion>,
) -> LockResult<RunResult> {
    let once = lock.run_once(period, wait, |lease| match under(lease) {
        Ok(ended) if ended.should_be_marked() => Ok(ended),
        not_marked => Err(not_marked),
    })?;
    Ok(match once {
        Once::AlreadyRun(run) => RunResult::AlreadyRun(run),
        Once::Ran(Ran {
            value, released, ..
        }) => RunResult::Run(value, released),
        Once::Failed(Ran {
            value: Ok(ended),
            released,
            ..
        }) => RunResult::Run(ended, released),
        Once::Failed(Ran {
            value: Err(outcome),
            ..
        }) => RunResult::NotRun(outcome),
        _ => RunResult::NotRun(Conclusion::System(std::io::ErrorKind::Other.into())),
    })
}

/// Runs the command while the lock is held.
fn guarded(
    arguments: &Arguments,
    started: SignalMask,
    lease: &Lease,
    events: &Receiver<Event>,
) -> Result<Ended, Conclusion> {
    arguments.tell(|| match (lease.fencing_token(), arguments.permits) {
        (Some(fence), _) => format!("{} is ours, fencing token {fence}", arguments.subject()),
        (None, Some(permits)) => {
            let subject = arguments.subject();
            format!("{subject} is ours, one of {permits}, without a fencing token")
        }
        (None, None) => format!("{} is ours", arguments.subject()),
    });
    let mut guard = Guard::start(started).map_err(Conclusion::System)?;
    // lockrun may have been stopped for any length of time.
    if !lease.is_held() {
        let why = Why::of(lease.lost().reason());
        return Err(Conclusion::Lost(Loss::before_the_command(why)));
    }
    let command = command::start(arguments, started, lease, &mut guard)?;
    Ok(Job::new(arguments, lease, guard, command, events).watch())
}

/// Lets TERM or INT end lockrun during the release, which lasts until the end of the lease if the
/// server is gone. A request in progress may take the grace to get its reply.
fn bound_the_release(arguments: &Arguments, events: &Inbox, ended: &Ended, report: &Report) {
    let (Ok(status), None) = (&ended.status, ended.lost) else {
        return;
    };
    let report = Report {
        outcome: Conclusion::Ended(*status),
        unmarked: (arguments.once_per.is_some() && status.success()).then(|| TOLD.into()),
        ..*report
    };
    let (code, told) = (report.code(), report.told(arguments));
    let (events, grace) = (Arc::clone(events), arguments.grace());
    // Without the thread, only a signal that cannot be caught ends the release sooner.
    let _ = thread::Builder::new().spawn(move || {
        let is_told = |event| matches!(event, Event::Signal(SIGTERM | SIGINT));
        if events.lock().iter().any(is_told) {
            thread::sleep(grace);
            let _ = told.print();
            process::exit(code.into());
        }
    });
}

/// The outcome after the release.
fn concluded(
    arguments: &Arguments,
    ended: Ended,
    released: LockResult<()>,
    report: &mut Report,
) -> Conclusion {
    let status = match ended.status {
        Ok(status) => status,
        Err(error) => return Conclusion::System(error),
    };
    let (lost, unsaid) = match released {
        Ok(()) => (None, None),
        // A command that has ended under the lock no longer needs it, unless somebody had taken it
        // away before.
        Err(Error::Lost { reason, .. }) if !ended.was_held || Why::of(reason) == Why::TakenAway => {
            (Some(Why::of(reason)), None)
        }
        Err(error) => (None, Some(whole(&error))),
    };
    if let Some(why) = ended.lost.or(lost) {
        return Conclusion::Lost(Loss {
            why,
            failure: ended.failure,
            status: Some(status),
            was_ended: ended.lost.is_some(),
        });
    }
    if let Some(error) = &unsaid {
        arguments.tell(|| format!("the lock ends with its lease: {error}"));
    }
    if arguments.once_per.is_some() && status.success() {
        let error = unsaid.map(|error| format!("it could not be marked: {error}"));
        report.unmarked = if ended.was_interrupted {
            Some(TOLD.into())
        } else {
            error
        };
    }
    Conclusion::Ended(status)
}
