//! The command: started under a guard, watched, and ended in time.

use std::{
    io,
    os::unix::process::CommandExt,
    process::{Child, Command, ExitStatus},
    sync::mpsc::Receiver,
    time::{Duration, Instant},
};

use leasehold::Lease;
use nix::sys::signal::Signal;

use crate::{
    arguments::Arguments, events::Event, guard::Guard, loss::Why, outcome::Outcome,
    signals::Started,
};

const FENCING_TOKEN: &str = "LEASEHOLD_FENCING_TOKEN";
/// Between two looks whether something of the group still runs.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// Starts the command in the guard's group.
pub(crate) fn start(
    arguments: &Arguments,
    started: Started,
    lease: &Lease,
    guard: &mut Guard,
) -> Result<Child, Outcome> {
    let Some((program, args)) = arguments.command.split_first() else {
        return Err(Outcome::NotRun(io::ErrorKind::NotFound.into()));
    };
    let mut command = Command::new(program);
    command.args(args).process_group(guard.group());
    if let Some(fence) = lease.fencing_token() {
        command.env(FENCING_TOKEN, fence.to_string());
    }
    guard
        .end_in(|| lease.remaining(), arguments.margin())
        .map_err(Outcome::System)?;
    started.spawn(&mut command).map_err(Outcome::NotRun)
}

/// How the command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: io::Result<ExitStatus>,
    /// Why the lock was lost, if the command was ended for that reason.
    pub(crate) lost: Option<Why>,
    /// Why the last renewal failed, if it did.
    pub(crate) failure: Option<String>,
}

impl Ended {
    /// Whether the command has exited with 0, and was not ended because of the lock.
    pub(crate) fn has_succeeded(&self) -> bool {
        self.lost.is_none() && self.status.as_ref().is_ok_and(ExitStatus::success)
    }
}

/// A command that runs.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    arguments: &'a Arguments,
    lease: &'a Lease,
    guard: Guard,
    command: Child,
    events: &'a Receiver<Event>,
    /// The end of the lease, as last known. Once the lock is lost it does not change any more.
    lease_end: Instant,
    status: Option<io::Result<ExitStatus>>,
    ending: Ending,
    lost: Option<Why>,
    failure: Option<String>,
}

/// How far the ending of the command has come.
#[derive(Clone, Copy, Debug)]
enum Ending {
    NotYet,
    /// A signal was sent to the command, which is killed at this moment, or earlier if the lease ends.
    By(Instant),
    Killed,
}

impl<'a> Job<'a> {
    pub(crate) fn new(
        arguments: &'a Arguments,
        lease: &'a Lease,
        guard: Guard,
        command: Child,
        events: &'a Receiver<Event>,
    ) -> Self {
        Self {
            arguments,
            lease,
            guard,
            command,
            events,
            lease_end: Instant::now(),
            status: None,
            ending: Ending::NotYet,
            lost: None,
            failure: None,
        }
    }

    /// Watches the command until nothing of its process group runs any more.
    pub(crate) fn watch(mut self) -> (Ended, Guard) {
        loop {
            // The clock comes first: we may have been stopped for any time.
            self.look_at_the_lease();
            self.kill_in_time();
            match self.events.recv_timeout(self.pause()) {
                Ok(Event::Signal(number)) => self.pass_on(number),
                Ok(Event::Renewed) => {
                    self.failure = None;
                    self.tell_the_guardian();
                }
                Ok(Event::NotRenewed(why)) => {
                    self.arguments.tell(|| format!("cannot renew: {why}"));
                    self.failure = Some(why);
                }
                Ok(Event::Child | Event::Lost) | Err(_) => {}
            }
            self.look_at_the_command();
            if self.status.is_some() && self.guard.is_empty() {
                break;
            }
        }
        let nothing = || Err(io::ErrorKind::NotFound.into());
        let status = self.status.unwrap_or_else(nothing);
        let ended = Ended {
            status,
            lost: self.lost,
            failure: self.failure,
        };
        (ended, self.guard)
    }

    /// Ends the command if no more of the lease is left than the grace between TERM and KILL and the margin take.
    fn look_at_the_lease(&mut self) {
        let now = Instant::now();
        let left = self.lease.remaining();
        if !left.is_zero() {
            self.lease_end = now + left;
        }
        let needed = self.arguments.grace() + self.arguments.margin();
        if left <= needed && matches!(self.ending, Ending::NotYet) {
            let why = if left.is_zero() {
                Why::of(self.lease.lost().reason())
            } else {
                Why::NotRenewed
            };
            self.arguments
                .tell(|| format!("the lock {why}: ending the command"));
            self.lost = Some(why);
            self.end(Signal::SIGTERM);
        }
    }

    fn kill_in_time(&mut self) {
        if let Ending::By(moment) = self.ending
            && Instant::now() >= self.latest(moment)
        {
            self.arguments.tell(|| "killing what still runs".into());
            self.send(Signal::SIGKILL);
            self.ending = Ending::Killed;
        }
    }

    /// When a command that may run until `moment` has to be killed: then, or the margin before the end of the lease if that is earlier.
    fn latest(&self, moment: Instant) -> Instant {
        let of_lease = self.lease_end.checked_sub(self.arguments.margin());
        of_lease.map_or(moment, |of_lease| moment.min(of_lease))
    }

    /// How long to wait for an event before there is something to do without one.
    fn pause(&self) -> Duration {
        let next = match self.ending {
            _ if self.status.is_some() => return LOOK_AGAIN,
            Ending::Killed => return LOOK_AGAIN,
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
        self.arguments.tell(|| format!("passing {signal} on"));
        match (signal, self.ending) {
            (Signal::SIGTERM | Signal::SIGINT, Ending::NotYet) => self.end(signal),
            _ => self.send(signal),
        }
    }

    fn look_at_the_command(&mut self) {
        if self.status.is_some() {
            return;
        }
        self.status = self.command.try_wait().transpose();
        if self.status.is_some() && matches!(self.ending, Ending::NotYet) {
            // Ends the processes that the command has left running.
            self.end(Signal::SIGTERM);
        }
    }

    fn end(&mut self, signal: Signal) {
        self.guard.stand_aside();
        self.send(signal);
        // Somebody may have stopped it.
        self.send(Signal::SIGCONT);
        self.ending = Ending::By(Instant::now() + self.arguments.grace());
    }

    fn send(&self, signal: Signal) {
        self.guard.send(signal);
        if self.status.is_none() {
            self.guard.send_after(&self.command, signal);
        }
    }

    fn tell_the_guardian(&mut self) {
        let (lease, margin) = (self.lease, self.arguments.margin());
        // Once the lock is lost, the guardian keeps the deadline that it has.
        if lease.is_held() && self.guard.end_in(|| lease.remaining(), margin).is_err() {
            self.arguments.tell(|| "the guardian is gone".into());
        }
    }
}
