//! Acquires the locks, runs the command and releases the locks.

use std::{
    io, process,
    sync::{Arc, mpsc::channel},
    thread,
    time::{Duration, Instant},
};

use leasehold::{Cancel, Error, Lease, Locks, Once, Ran, Result as LockResult};
use parking_lot::Mutex;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::{
    arguments::Arguments,
    deciding::{
        loss::{Loss, Why},
        outcome::{Conclusion, Report},
    },
    doing::{
        command,
        events::{Event, Inbox, JobHooks},
        guard::Guard,
        held::{self, Held},
        job::{self, Ended},
        signals::{self, SignalMask},
    },
    speaking::{busy::Busy, messages, speaker::Speaker, words::reason},
};

/// `Ok`: the command was run; with the result of the release. `Err`: it was not run.
type Worked = Result<(Ended, LockResult<()>), Conclusion>;

/// Acquires the locks, runs the command and releases them.
pub(crate) fn run(arguments: &Arguments, speaker: &Speaker) -> Report {
    let mut report = Report::new();
    let outcome = Run::new(arguments, speaker).and_then(|run| run.work(&mut report));
    report.outcome = outcome.unwrap_or_else(|error| error);
    report
}

/// A run of lockrun. Every outcome without a run of the command is an `Err`.
struct Run<'a> {
    arguments: &'a Arguments,
    speaker: &'a Speaker,
    locks: Locks,
    started: SignalMask,
    events: Inbox,
}

impl<'a> Run<'a> {
    fn new(arguments: &'a Arguments, speaker: &'a Speaker) -> Result<Self, Conclusion> {
        let ((sender, events), cancel) = (channel(), Cancel::new());
        let started = signals::listen(sender.clone(), cancel.clone());
        let started = started.map_err(Conclusion::System)?;
        let hooks = JobHooks::new(arguments, sender, speaker);
        let options = arguments.options().cancel(&cancel);
        let options = options.events(Arc::new(hooks));
        Ok(Self {
            arguments,
            speaker,
            locks: arguments.locks().map_err(Conclusion::Failed)?.with(options),
            started,
            events: Arc::new(Mutex::new(events)),
        })
    }

    fn work(&self, report: &mut Report) -> Result<Conclusion, Conclusion> {
        let asked = Instant::now();
        self.speaker.say(&messages::acquiring(self.arguments));
        let under = |held: &Held<'_>| {
            let acquired = Instant::now();
            report.waited = acquired - asked;
            report.fencing_tokens = held.all().map(Lease::fencing_token).collect();
            let ended = self.guarded(held);
            report.held = Some(acquired.elapsed());
            if let Ok(ended) = &ended {
                self.bound_the_release(ended, report);
            }
            ended
        };
        let done = match (self.arguments.once_per, &*self.arguments.names) {
            (Some(period), [name]) => self.once(name, period, under),
            _ => self.each_time(under),
        };
        if report.held.is_none() {
            report.waited = asked.elapsed();
        }
        let (ended, released) = done.map_err(|error| self.not_acquired(error))??;
        Ok(self.concluded(ended, released, report))
    }

    fn each_time(
        &self,
        under: impl FnOnce(&Held<'_>) -> Result<Ended, Conclusion>,
    ) -> LockResult<Worked> {
        let leases = held::acquire(self.arguments, &self.locks)?;
        let held = Held::of(&leases, &self.arguments.names);
        let ended = held.ok_or_else(nothing).and_then(|held| under(&held));
        Ok(ended.map(|ended| {
            let released = if ended.lost.is_some() {
                // If the server does not answer, a drop takes less time than a release.
                drop(leases);
                Ok(())
            } else {
                leases.release()
            };
            (ended, released)
        }))
    }

    fn once(
        &self,
        name: &str,
        period: Duration,
        under: impl FnOnce(&Held<'_>) -> Result<Ended, Conclusion>,
    ) -> LockResult<Worked> {
        let lock = self.arguments.lock(&self.locks, name);
        let once = lock.run_once(period, self.arguments.wait, |lease| {
            match under(&Held::one(lease)) {
                Ok(ended) if ended.should_be_marked() => Ok(ended),
                not_marked => Err(not_marked),
            }
        })?;
        Ok(match once {
            Once::AlreadyRun(run) => Err(Conclusion::AlreadyRun(run)),
            Once::Ran(Ran {
                value, released, ..
            }) => Ok((value, released)),
            Once::Failed(Ran {
                value, released, ..
            }) => value.map(|ended| (ended, released)),
            _ => Err(nothing()),
        })
    }

    fn not_acquired(&self, error: Error) -> Conclusion {
        match error {
            Error::Contended { context, .. } => {
                let lock = self.arguments.lock(&self.locks, &context.lock);
                Conclusion::Busy(Busy::with(&lock, self.arguments.permits))
            }
            Error::Lost {
                context, reason, ..
            } => Conclusion::Lost(Loss::new(context.lock, Why::of(reason))),
            error @ Error::Cancelled { .. } => {
                let signal = self.events.lock().try_iter().find_map(|event| match event {
                    Event::Signal(signal) => Some(signal),
                    _ => None,
                });
                signal.map_or(Conclusion::Failed(error), Conclusion::Told)
            }
            error => Conclusion::Failed(error),
        }
    }

    /// Runs the command while the locks are held.
    fn guarded(&self, held: &Held<'_>) -> Result<Ended, Conclusion> {
        for lease in held.all() {
            self.speaker.say(&messages::acquired(self.arguments, lease));
        }
        let mut guard = Guard::start(self.started).map_err(Conclusion::System)?;
        let command = command::start(self.arguments, self.started, held, &mut guard)?;
        Ok(job::watch(
            (self.arguments, self.speaker),
            held,
            (guard, command),
            &self.events.lock(),
        ))
    }

    /// Lets TERM or INT end lockrun during the release, after the grace. If the server is gone, the
    /// release would last until the end of the lease.
    fn bound_the_release(&self, ended: &Ended, report: &Report) {
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
        let (code, message) = (report.code(), report.message(self.arguments));
        let (events, grace) = (Arc::clone(&self.events), self.arguments.grace());
        let speaker = self.speaker.clone();
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
    fn concluded(&self, ended: Ended, released: LockResult<()>, report: &mut Report) -> Conclusion {
        let status = match ended.status {
            Ok(status) => status,
            Err(error) => return Conclusion::System(error),
        };
        let (lost, unsaid) = match released {
            Ok(()) => (None, None),
            // If only the lease ended, after the command had ended under the lock, nothing is lost.
            // If someone took the lock away, that may have happened while the command ran.
            Err(Error::Lost {
                context, reason, ..
            }) if !ended.was_held || Why::of(reason) == Why::TakenAway => {
                let first = self.arguments.first_of(&context.lock);
                (Some(Loss::new(first, Why::of(reason))), None)
            }
            Err(error) => (None, Some(reason(&self.arguments.server(), &error))),
        };
        let was_ended = ended.lost.is_some();
        if let Some(lost) = ended.lost.or(lost) {
            return Conclusion::Lost(Loss {
                failure: ended.failure,
                status: Some(status),
                was_ended,
                ..lost
            });
        }
        if let Some(why) = &unsaid {
            self.speaker.say(&messages::not_released(why));
        }
        report.was_interrupted = ended.was_interrupted;
        report.unmarked = unsaid.map(|why| format!("cannot mark the run as completed: {why}"));
        Conclusion::Ended(status)
    }
}

/// The outcome for a result that the library does not return.
fn nothing() -> Conclusion {
    Conclusion::System(io::ErrorKind::Other.into())
}
