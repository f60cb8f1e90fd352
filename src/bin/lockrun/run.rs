//! Acquires the locks, runs the command and releases the locks.

use std::{
    io, process,
    sync::{
        Arc,
        mpsc::{Receiver, channel},
    },
    thread,
    time::{Duration, Instant},
};

use leasehold::{Cancel, Error, LastRun, Lease, Lock, Locks, Once, Ran, Result as LockResult};
use parking_lot::Mutex;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::{
    arguments::Arguments,
    busy::Busy,
    command,
    events::{Event, Inbox, JobHooks},
    guard::Guard,
    held::{Guards, Held},
    job::{Ended, Job},
    loss::{Loss, Lost, Why},
    messages,
    outcome::{Conclusion, Report},
    signals::{self, SignalMask},
    speaker::Speaker,
    words::reason,
};

/// The results of the locks and the command.
enum RunResult {
    AlreadyRun(LastRun),
    NotRun(Conclusion),
    /// The command was run. The second field is the result of the release.
    Run(Ended, LockResult<()>),
}

/// Acquires the locks, runs the command and releases them.
pub(crate) fn run(arguments: &Arguments, speaker: &Speaker) -> Report {
    let mut report = Report::new();
    let outcome = locked(arguments, speaker, &mut report);
    report.outcome = outcome.unwrap_or_else(|error| error);
    report
}

/// Every outcome without a run of the command is an `Err`.
fn locked(
    arguments: &Arguments,
    speaker: &Speaker,
    report: &mut Report,
) -> Result<Conclusion, Conclusion> {
    let (sender, events) = channel();
    let events = Arc::new(Mutex::new(events));
    let cancel = Cancel::new();
    let started = signals::listen(sender.clone(), cancel.clone()).map_err(Conclusion::System)?;
    let options = arguments
        .options()
        .cancel(&cancel)
        .events(Arc::new(JobHooks::new(arguments, sender, speaker)));
    let locks = arguments.locks().map_err(Conclusion::Failed)?.with(options);

    let asked = Instant::now();
    speaker.say(&messages::acquiring(arguments));
    let under = |held: &Held<'_>| {
        let acquired = Instant::now();
        report.waited = acquired - asked;
        report.fencing_tokens = held.all().map(Lease::fencing_token).collect();
        let ended = guarded(arguments, speaker, started, held, &events.lock());
        report.held = Some(acquired.elapsed());
        if let Ok(ended) = &ended {
            bound_the_release(arguments, speaker, &events, ended, report);
        }
        ended
    };
    let done = match (arguments.once_per, &*arguments.names) {
        (Some(period), [name]) => {
            let lock = arguments.lock(&locks, name);
            once(&lock, period, arguments.wait, under)
        }
        _ => each_time(arguments, &locks, under),
    };
    if report.held.is_none() {
        report.waited = asked.elapsed();
    }
    match done {
        Ok(RunResult::AlreadyRun(run)) => Err(Conclusion::AlreadyRun(run)),
        Ok(RunResult::NotRun(outcome)) => Err(outcome),
        Ok(RunResult::Run(ended, released)) => {
            Ok(concluded(arguments, speaker, ended, released, report))
        }
        Err(Error::Contended { context, .. }) => {
            let lock = arguments.lock(&locks, &context.lock);
            Err(Conclusion::Busy(Busy::with(&lock, arguments.permits)))
        }
        Err(Error::Lost {
            context, reason, ..
        }) => {
            let lost = Lost::new(context.lock, Why::of(reason));
            Err(Conclusion::Lost(Loss::before_the_command(lost)))
        }
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
    arguments: &Arguments,
    locks: &Locks,
    under: impl FnOnce(&Held<'_>) -> Result<Ended, Conclusion>,
) -> LockResult<RunResult> {
    let guards = Guards::acquire(arguments, locks)?;
    let Some(held) = guards.held(&arguments.names) else {
        return Ok(nothing());
    };
    let ended = match under(&held) {
        Ok(ended) => ended,
        Err(outcome) => return Ok(RunResult::NotRun(outcome)),
    };
    let released = if ended.lost.is_some() {
        // If the server does not answer, a drop takes less time than a release.
        drop(guards);
        Ok(())
    } else {
        guards.release()
    };
    Ok(RunResult::Run(ended, released))
}

fn once(
    lock: &Lock,
    period: Duration,
    wait: Duration,
    under: impl FnOnce(&Held<'_>) -> Result<Ended, Conclusion>,
) -> LockResult<RunResult> {
    let once = lock.run_once(period, wait, |lease| match under(&Held::one(lease)) {
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
        _ => nothing(),
    })
}

/// For a result that the library does not return.
fn nothing() -> RunResult {
    RunResult::NotRun(Conclusion::System(io::ErrorKind::Other.into()))
}

/// Runs the command while the locks are held.
fn guarded(
    arguments: &Arguments,
    speaker: &Speaker,
    started: SignalMask,
    held: &Held<'_>,
    events: &Receiver<Event>,
) -> Result<Ended, Conclusion> {
    for lease in held.all() {
        speaker.say(&messages::acquired(arguments, lease));
    }
    let mut guard = Guard::start(started).map_err(Conclusion::System)?;
    // lockrun may have been stopped for any length of time.
    if let (Duration::ZERO, lease) = held.weakest() {
        return Err(Conclusion::Lost(Loss::before_the_command(Lost::of(lease))));
    }
    let command = command::start(arguments, started, held, &mut guard)?;
    Ok(Job::new(arguments, speaker, held, guard, command, events).watch())
}

/// Lets TERM or INT end lockrun during the release, after the grace. If the server is gone, the
/// release would last until the end of the lease.
fn bound_the_release(
    arguments: &Arguments,
    speaker: &Speaker,
    events: &Inbox,
    ended: &Ended,
    report: &Report,
) {
    let (Ok(status), None) = (&ended.status, &ended.lost) else {
        return;
    };
    let report = Report {
        outcome: Conclusion::Ended(*status),
        was_interrupted: true,
        unmarked: None,
        fencing_tokens: report.fencing_tokens.clone(),
        ..*report
    };
    let (code, message) = (report.code(), report.message(arguments));
    let (events, grace, speaker) = (Arc::clone(events), arguments.grace(), speaker.clone());
    // Without the thread, only a signal that cannot be caught ends the release sooner.
    let _ = thread::Builder::new().spawn(move || {
        let is_told = |event| matches!(event, Event::Signal(SIGTERM | SIGINT));
        if events.lock().iter().any(is_told) {
            thread::sleep(grace);
            if let Some(message) = message {
                speaker.say(&message);
            }
            speaker.finish();
            process::exit(code.into());
        }
    });
}

/// The outcome after the release.
fn concluded(
    arguments: &Arguments,
    speaker: &Speaker,
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
        // A command that ended under the lock no longer needs it, unless someone took the lock away
        // before.
        Err(Error::Lost {
            context, reason, ..
        }) if !ended.was_held || Why::of(reason) == Why::TakenAway => {
            let first = arguments.first_of(&context.lock);
            (Some(Lost::new(first, Why::of(reason))), None)
        }
        Err(error) => (None, Some(reason(&arguments.server(), &error))),
    };
    let was_ended = ended.lost.is_some();
    if let Some(lost) = ended.lost.or(lost) {
        return Conclusion::Lost(Loss {
            lost,
            failure: ended.failure,
            status: Some(status),
            was_ended,
        });
    }
    if let Some(why) = &unsaid {
        speaker.say(&messages::not_released(why));
    }
    report.was_interrupted = ended.was_interrupted;
    report.unmarked = unsaid.map(|why| format!("cannot mark the run as completed: {why}"));
    Conclusion::Ended(status)
}
