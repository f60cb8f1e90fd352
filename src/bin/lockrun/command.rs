//! Starts the command under a guard, watches it, and ends it in time.

use std::{
    env,
    ffi::{OsStr, OsString},
    io, mem,
    os::unix::process::{CommandExt, ExitStatusExt},
    process::{Child, Command, ExitStatus},
    sync::mpsc::Receiver,
    time::{Duration, Instant},
};

use leasehold::Lease;
use nix::{errno::Errno, sys::signal::Signal};

use crate::{
    arguments::Arguments,
    events::Event,
    guard::Guard,
    held::Held,
    loss::{Lost, Why},
    outcome::Conclusion,
    processes,
    repeats::Repeats,
    signals::SignalMask,
    text::{rounded, say},
    words::reason,
};

const KILL: Option<i32> = Some(Signal::SIGKILL as i32);
const FENCING_TOKEN: &str = "LEASEHOLD_FENCING_TOKEN";
/// The pause between the first two checks for processes that remain in the group.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
/// The pause between later checks, each of which may read the state of every process in `/proc`.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// Runs a file without `#!` as a shell script, and searches `PATH` for it, as `execvp` does.
const AS_A_SCRIPT: [&str; 3] = ["/bin/sh", "-c", r#"exec "$0" "$@""#];

/// Starts the command in the guard's group.
pub(crate) fn start(
    arguments: &Arguments,
    started: SignalMask,
    held: &Held<'_>,
    guard: &mut Guard,
) -> Result<Child, Conclusion> {
    guard
        .end_in(|| held.remaining(), arguments.margin())
        .map_err(Conclusion::System)?;
    let spawn = |before: &[&str]| {
        let words = before.iter().map(OsStr::new);
        let mut words = words.chain(arguments.command.iter().map(OsString::as_os_str));
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).process_group(guard.group());
        pass_fencing_tokens(&mut command, held);
        started.spawn(&mut command)
    };
    let command = match spawn(&[]) {
        Err(error) if error.raw_os_error() == Some(Errno::ENOEXEC as i32) => spawn(&AS_A_SCRIPT),
        command => command,
    };
    let command = command.map_err(Conclusion::NotRun)?;
    guard.take_in(&command);
    Ok(command)
}

/// Numbers the tokens of several locks in the order of `--name`: a lock's name may contain
/// characters that a variable's name cannot.
fn pass_fencing_tokens(command: &mut Command, held: &Held<'_>) {
    // The command would take the tokens of an outer lockrun for those of its own locks.
    command.env_remove(FENCING_TOKEN);
    let inherited = env::vars_os().map(|(variable, _)| variable);
    for variable in inherited.filter(|it| it.to_str().is_some_and(is_numbered)) {
        command.env_remove(variable);
    }
    let is_one = held.all().count() == 1;
    for (number, lease) in (1..).zip(held.all()) {
        let variable = if is_one {
            FENCING_TOKEN.to_owned()
        } else {
            format!("{FENCING_TOKEN}_{number}")
        };
        if let Some(fence) = lease.fencing_token() {
            command.env(variable, fence.to_string());
        }
    }
}

fn is_numbered(variable: &str) -> bool {
    let number = variable.strip_prefix(FENCING_TOKEN);
    let number = number.and_then(|rest| rest.strip_prefix('_'));
    number.is_some_and(|number| number.parse::<usize>().is_ok())
}

/// The result of a command that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: io::Result<ExitStatus>,
    /// The lock that was lost, if the command was ended for that reason.
    pub(crate) lost: Option<Lost>,
    /// Why the last renewal failed, if it did: of the lost lock, or of the one that ends first.
    pub(crate) failure: Option<String>,
    /// True if lockrun got TERM or INT meanwhile.
    pub(crate) was_interrupted: bool,
    /// True if the lock was held, as far as lockrun knew, when the command ended.
    pub(crate) was_held: bool,
}

impl Ended {
    pub(crate) fn should_be_marked(&self) -> bool {
        self.lost.is_none() && !self.was_interrupted && self.exited_with_0()
    }

    pub(crate) fn exited_with_0(&self) -> bool {
        self.status.as_ref().is_ok_and(ExitStatus::success)
    }
}

/// A running command.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    arguments: &'a Arguments,
    held: &'a Held<'a>,
    guard: Guard,
    command: Child,
    events: &'a Receiver<Event>,
    /// The last known end of the lease that ends first. It does not change after a lock is lost.
    lease_end: Instant,
    status: Option<io::Result<ExitStatus>>,
    ending: Ending,
    lost: Option<Lost>,
    was_interrupted: bool,
    was_held: bool,
    stop_is_reported: bool,
    /// The reports of failed renewals.
    outage: Repeats,
    next_pause: Duration,
}

/// The stages of ending the command.
#[derive(Clone, Copy, Debug)]
enum Ending {
    NotYet,
    /// A signal was sent to the command. It is killed at this moment, or before the end of the
    /// lease if that is earlier.
    By(Instant),
    Killed,
}

impl<'a> Job<'a> {
    pub(crate) fn new(
        arguments: &'a Arguments,
        held: &'a Held<'a>,
        guard: Guard,
        command: Child,
        events: &'a Receiver<Event>,
    ) -> Self {
        Self {
            arguments,
            held,
            guard,
            command,
            events,
            lease_end: Instant::now(),
            status: None,
            ending: Ending::NotYet,
            lost: None,
            was_interrupted: false,
            was_held: false,
            stop_is_reported: false,
            outage: Repeats::default(),
            next_pause: FIRST_PAUSE,
        }
    }

    /// Watches the command until no process of its group is left, the guardian included.
    pub(crate) fn watch(mut self) -> Ended {
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
        let killed = was_killed.then(|| Lost::new(weakest.name(), Why::NotRenewed));
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

    /// Ends the command if the rest of the lease is not longer than the grace plus the margin.
    fn check_lease(&mut self) {
        let now = Instant::now();
        let (left, weakest) = self.held.weakest();
        if !left.is_zero() {
            self.lease_end = now + left;
        }
        let needed = self.arguments.grace() + self.arguments.margin();
        if left > needed {
            return;
        }
        // lockrun may have been stopped; the command may have ended by itself meanwhile.
        self.check_command();
        if matches!(self.ending, Ending::NotYet) {
            let lost = if left.is_zero() {
                Lost::of(weakest)
            } else {
                Lost::new(weakest.name(), Why::NotRenewed)
            };
            let (lock, why) = (self.arguments.subject_of(&lost.lock), lost.why);
            self.arguments
                .tell(|| format!("{lock} {why}: ending the command"));
            self.lost = Some(lost);
            self.end(Signal::SIGTERM);
        }
    }

    fn kill_if_due(&mut self) {
        if let Ending::By(moment) = self.ending
            && Instant::now() >= self.latest(moment)
        {
            self.arguments
                .tell(|| "killing the remaining processes".into());
            self.guard
                .kill(self.status.is_none().then_some(&self.command));
            self.ending = Ending::Killed;
        }
    }

    /// The time to kill a command that may run until `moment`: at `moment`, or at the end of the
    /// lease less the margin if that is earlier.
    fn latest(&self, moment: Instant) -> Instant {
        let of_lease = self.lease_end.checked_sub(self.arguments.margin());
        of_lease.map_or(moment, |of_lease| moment.min(of_lease))
    }

    /// The time until lockrun must act even without an event.
    fn pause(&mut self) -> Duration {
        let next = match self.ending {
            _ if self.status.is_some() => {
                let next = (2 * self.next_pause).min(LONGEST_PAUSE);
                return mem::replace(&mut self.next_pause, next);
            }
            Ending::Killed => return FIRST_PAUSE,
            Ending::By(moment) => self.latest(moment),
            Ending::NotYet => {
                let needed = self.arguments.grace() + self.arguments.margin();
                self.lease_end.checked_sub(needed).unwrap_or(self.lease_end)
            }
        };
        next.saturating_duration_since(Instant::now())
    }

    fn pass_on(&mut self, number: i32) {
        let Ok(signal) = Signal::try_from(number) else {
            return;
        };
        self.arguments
            .tell(|| format!("passing {signal} on to the command"));
        let ends = matches!(signal, Signal::SIGTERM | Signal::SIGINT);
        self.was_interrupted |= ends;
        match self.ending {
            Ending::NotYet if ends => self.end(signal),
            _ => self.send(signal),
        }
    }

    fn check_command(&mut self) {
        if self.status.is_some() {
            return;
        }
        self.status = self.command.try_wait().transpose();
        if self.status.is_none() {
            return;
        }
        self.was_held = self.held.is_held();
        if matches!(self.ending, Ending::NotYet) {
            // For the processes that the command has left running.
            self.end(Signal::SIGTERM);
        }
    }

    /// Reports once that the command is stopped. A command that waits for the terminal would hold
    /// the lock without a visible reason.
    fn report_stop(&mut self) {
        // A command is stopped before it is killed.
        let is_killed = matches!(self.ending, Ending::Killed);
        if self.stop_is_reported || is_killed || self.status.is_some() {
            return;
        }
        let Some(signal) = processes::stopped_by(self.command.id()) else {
            return;
        };
        self.stop_is_reported = true;
        let why = match signal {
            Signal::SIGTTIN | Signal::SIGTTOU => ", since it may not use the terminal",
            _ => "",
        };
        let held = self.arguments.subject();
        let text =
            format!("lockrun: the command was stopped by {signal}{why}; it still holds {held}");
        say(&mut io::stderr(), &text);
    }

    fn end(&mut self, signal: Signal) {
        let running = self.status.is_none().then_some(&self.command);
        self.guard.end(running, signal);
        self.ending = Ending::By(Instant::now() + self.arguments.grace());
    }

    fn send(&self, signal: Signal) {
        let running = self.status.is_none().then_some(&self.command);
        self.guard.send(running, signal);
    }

    fn was_not_renewed(&mut self, lock: &str, why: &str) {
        if !matches!(self.ending, Ending::NotYet) || !self.outage.is_due(why, Instant::now()) {
            return;
        }
        let needed = self.arguments.grace() + self.arguments.margin();
        let left = rounded(self.held.remaining().saturating_sub(needed));
        let subject = self.arguments.subject_of(lock);
        self.arguments
            .tell(|| format!("cannot renew {subject}: {why}; retrying for another {left}"));
    }

    fn was_renewed(&mut self) {
        // The renewals of other locks may still fail.
        if self.held.all().all(|lease| lease.failure().is_none()) && self.outage.end() {
            let subject = self.arguments.subject();
            self.arguments
                .tell(|| format!("{subject} is renewed again"));
        }
        self.update_guardian();
    }

    fn update_guardian(&mut self) {
        let (held, margin) = (self.held, self.arguments.margin());
        // After the loss of a lock the guardian keeps its last deadline.
        if held.is_held() && self.guard.end_in(|| held.remaining(), margin).is_err() {
            self.arguments.tell(|| "the guardian is gone".into());
        }
    }
}
