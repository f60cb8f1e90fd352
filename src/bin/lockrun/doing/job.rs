//! Watches the running command, and carries out what `deciding` decides: acts first, and reports
//! afterwards.

use std::{
    io, mem,
    os::unix::process::ExitStatusExt,
    process::{Child, ExitStatus},
    sync::mpsc::Receiver,
    time::{Duration, Instant},
};

use leasehold::Lease;
use nix::sys::signal::Signal;

use crate::{
    arguments::Arguments,
    deciding::{
        ending::Ending,
        loss::{Loss, Why},
    },
    doing::{events::Event, guard::Guard, held::Held, processes},
    speaking::{messages, repeats::Repeats, speaker::Speaker, words::reason},
};

const KILL: Option<i32> = Some(Signal::SIGKILL as i32);
/// The pause between the first two checks for processes that remain in the group.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
/// The pause between later checks, each of which may read the state of every process in `/proc`.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// The result of a command that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: io::Result<ExitStatus>,
    /// The lock that was lost, if the command was ended for that reason.
    pub(crate) lost: Option<Loss>,
    /// The failure of the last renewal, if it failed: of the lost lock, or of the one whose lease
    /// ends first.
    pub(crate) failure: Option<String>,
    /// True if lockrun got TERM or INT meanwhile.
    pub(crate) was_interrupted: bool,
    /// True if the lock was held, as far as lockrun knew, when the command ended.
    pub(crate) was_held: bool,
}

impl Ended {
    pub(crate) fn should_be_marked(&self) -> bool {
        let is_success = self.status.as_ref().is_ok_and(ExitStatus::success);
        is_success && self.lost.is_none() && !self.was_interrupted
    }
}

/// Watches the command until none of its processes is left, the guardian included.
pub(crate) fn watch<'a>(
    (arguments, speaker): (&'a Arguments, &'a Speaker),
    held: &'a Held<'a>,
    (guard, command): (Guard, Child),
    events: &'a Receiver<Event>,
) -> Ended {
    let job = Job {
        arguments,
        speaker,
        held,
        guard,
        command,
        events,
        status: None,
        ending: Ending::new(arguments.grace(), arguments.margin(), Instant::now()),
        lost: None,
        was_interrupted: false,
        was_held: false,
        stop_is_reported: false,
        outage: Repeats::default(),
        next_pause: FIRST_PAUSE,
    };
    job.watch()
}

/// A running command.
#[derive(Debug)]
struct Job<'a> {
    arguments: &'a Arguments,
    speaker: &'a Speaker,
    held: &'a Held<'a>,
    guard: Guard,
    command: Child,
    events: &'a Receiver<Event>,
    status: Option<io::Result<ExitStatus>>,
    ending: Ending,
    lost: Option<Loss>,
    was_interrupted: bool,
    was_held: bool,
    stop_is_reported: bool,
    /// The reports of failed renewals.
    outage: Repeats,
    next_pause: Duration,
}

impl Job<'_> {
    fn watch(mut self) -> Ended {
        loop {
            self.check_lease();
            self.kill_if_due();
            let pause = self.pause();
            match self.events.recv_timeout(pause) {
                Ok(Event::Signal(number)) => self.pass_on(number),
                Ok(Event::Renewed) => self.was_renewed(),
                Ok(Event::NotRenewed(lock, why)) => self.was_not_renewed(&lock, &why),
                Ok(Event::Child) => {
                    self.guard.reap_orphans(&self.command);
                    self.report_stop();
                }
                Ok(Event::Lost) | Err(_) => {}
            }
            self.check_command();
            if self.status.is_some() && self.guard.is_empty() {
                return self.ended();
            }
        }
    }

    fn ended(self) -> Ended {
        let nothing = || Err(io::ErrorKind::NotFound.into());
        let status = self.status.unwrap_or_else(nothing);
        // The command may have ended by itself before the guardian acted.
        let may_be_killed = status.as_ref().is_ok_and(|status| status.signal() == KILL);
        let was_killed = self.guard.dismiss() && may_be_killed;
        let (_, weakest) = self.held.weakest();
        let killed = was_killed.then(|| Loss::new(weakest.name(), Why::NotRenewed));
        let lost = self.lost.or(killed);
        let is_lost = |lease: &&Lease| lost.as_ref().is_some_and(|it| it.lock == lease.name());
        let failed = self.held.all().find(is_lost).unwrap_or(weakest);
        Ended {
            status,
            failure: (failed.failure()).map(|error| reason(&self.arguments.server(), &error)),
            lost,
            was_interrupted: self.was_interrupted,
            was_held: self.was_held,
        }
    }

    fn check_lease(&mut self) {
        let (left, weakest) = self.held.weakest();
        if !self.ending.is_due(left, Instant::now()) {
            return;
        }
        // lockrun may have been stopped; the command may have ended by itself meanwhile.
        self.check_command();
        if self.ending.is_running() {
            let lost = if left.is_zero() {
                Loss::of(weakest)
            } else {
                Loss::new(weakest.name(), Why::NotRenewed)
            };
            let subject = self.arguments.subject_of(&lost.lock);
            let message = messages::ending(&subject, lost.why);
            self.lost = Some(lost);
            self.end(Signal::SIGTERM);
            self.speaker.say(&message);
        }
    }

    fn kill_if_due(&mut self) {
        if self.ending.kill_is_due(Instant::now()) {
            self.guard.kill(self.unreaped());
            self.ending.was_killed();
            self.speaker.say(&messages::killing());
        }
    }

    /// The time until lockrun must act even without an event.
    fn pause(&mut self) -> Duration {
        if self.status.is_some() {
            let next = (2 * self.next_pause).min(LONGEST_PAUSE);
            return mem::replace(&mut self.next_pause, next);
        }
        let next = self.ending.next();
        next.map_or(FIRST_PAUSE, |next| {
            next.saturating_duration_since(Instant::now())
        })
    }

    fn pass_on(&mut self, number: i32) {
        let Ok(signal) = Signal::try_from(number) else {
            return;
        };
        let ends = matches!(signal, Signal::SIGTERM | Signal::SIGINT);
        self.was_interrupted |= ends;
        if ends && self.ending.is_running() {
            self.end(signal);
        } else {
            self.send(signal);
        }
        self.speaker.say(&messages::passed_on(signal));
    }

    fn check_command(&mut self) {
        if self.status.is_some() || !processes::has_ended(&mut self.command) {
            return;
        }
        self.was_held = self.held.is_held();
        if self.ending.is_running() {
            // Ends the processes that the command has left running.
            self.end(Signal::SIGTERM);
        }
        self.status = self.command.try_wait().transpose();
    }

    /// Reports once that the command is stopped. A command that waits for the terminal would hold
    /// the lock without a visible reason.
    fn report_stop(&mut self) {
        // To end the command, lockrun stops its processes first: that needs no report.
        if self.stop_is_reported || !self.ending.is_running() {
            return;
        }
        let Some(signal) = processes::stopped_by(&self.command) else {
            return;
        };
        self.stop_is_reported = true;
        let subject = self.arguments.subject();
        self.speaker.say(&messages::stopped(&subject, signal));
    }

    fn end(&mut self, signal: Signal) {
        self.ending.was_told(Instant::now());
        if self.lost.is_some() {
            // The lost lock may have another holder already, so the guardian must not wait for the
            // end of the lease.
            let left = self.pause();
            let _ = self.guard.end_in(|| left, Duration::ZERO);
        }
        self.guard.end(&self.command, signal);
    }

    fn send(&self, signal: Signal) {
        self.guard.send(self.unreaped(), signal);
    }

    fn unreaped(&self) -> Option<&Child> {
        self.status.is_none().then_some(&self.command)
    }

    fn was_not_renewed(&mut self, lock: &str, why: &str) {
        if self.ending.is_running() && self.outage.is_due(why, Instant::now()) {
            let left = self.ending.to_spare(self.held.remaining());
            let subject = self.arguments.subject_of(lock);
            self.speaker
                .say(&messages::not_renewed(&subject, why, left));
        }
    }

    fn was_renewed(&mut self) {
        let (held, margin) = (self.held, self.arguments.margin());
        // After the loss of a lock the guardian has the deadline of the command's end.
        if self.lost.is_none()
            && held.is_held()
            && self.guard.end_in(|| held.remaining(), margin).is_err()
        {
            self.speaker.say(&messages::guardian_gone());
        }
        // The renewals of other locks may still fail.
        if held.all().all(|lease| lease.failure().is_none()) && self.outage.end() {
            let subject = self.arguments.subject();
            self.speaker.say(&messages::renewed_again(&subject));
        }
    }
}
