//! From the lock to its release.

use std::{
    sync::{
        Arc,
        mpsc::{Receiver, Sender, channel},
    },
    time::Instant,
};

use leasehold::{
    Error, Events, Lease, Locks, Options,
    event::{Lost, RenewalFailed, Renewed},
};

use crate::{
    arguments::Arguments,
    busy::Busy,
    command::{self, Job},
    guard::Guard,
    loss::{Loss, Why},
    outcome::{Outcome, Report, whole},
    signals::{self, Started},
    wait::{self, Waited},
};

/// What lockrun wakes up for.
#[derive(Debug)]
pub(crate) enum Event {
    /// A signal to us.
    Signal(i32),
    /// A child of ours may have ended.
    Child,
    /// The lease was renewed.
    Renewed,
    /// The lease is lost.
    Lost,
    /// A renewal has failed.
    NotRenewed(String),
}

/// Hands on what the lock's own threads know: they must not wait for anything.
struct Heard(Sender<Event>);

impl Events for Heard {
    fn renewed(&self, _: &Renewed<'_>) {
        let _ = self.0.send(Event::Renewed);
    }

    fn renewal_failed(&self, failed: &RenewalFailed<'_>) {
        let _ = self.0.send(Event::NotRenewed(whole(failed.error())));
    }

    fn lost(&self, _: &Lost<'_>) {
        let _ = self.0.send(Event::Lost);
    }
}

/// All of it. What comes back is to be told, and the exit code is in it.
pub(crate) fn run(arguments: &Arguments) -> Report {
    let mut report = Report::new();
    let outcome = locked(arguments, &mut report);
    report.outcome = outcome.unwrap_or_else(|error| error);
    report
}

/// Every way out of it before the command has run is an `Err`.
fn locked(arguments: &Arguments, report: &mut Report) -> Result<Outcome, Outcome> {
    let (sender, events) = channel();
    let started = signals::listen(sender.clone()).map_err(Outcome::System)?;
    let options = Options::new()
        .lease(arguments.lease)
        .events(Arc::new(Heard(sender)));
    let locks = Locks::connect(&arguments.url)
        .map_err(Outcome::Failed)?
        .with(options);

    let asked = Instant::now();
    arguments.tell(|| format!("waiting for `{}`", arguments.name));
    let lock = locks.lock(&arguments.name);
    let waited = wait::acquire(&lock, arguments.wait, &events);
    report.waited = asked.elapsed();
    let lease = match waited {
        Waited::Held(lease) => lease,
        Waited::Failed(Error::Contended { .. }) => return Err(Outcome::Busy(Busy::with(&lock))),
        Waited::Failed(error) => return Err(Outcome::Failed(error)),
        Waited::Told(signal) => return Err(Outcome::Told(signal)),
    };
    let acquired = Instant::now();
    report.fencing_token = lease.fencing_token();
    let outcome = guarded(arguments, started, lease, events);
    report.held = Some(acquired.elapsed());
    outcome
}

fn guarded(
    arguments: &Arguments,
    started: Started,
    lease: Lease,
    events: Receiver<Event>,
) -> Result<Outcome, Outcome> {
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
    let command = command::start(arguments, started, &lease, &mut guard)?;
    let (ended, guard) = Job::new(arguments, &lease, guard, command, events).watch();
    let lost = let_go(arguments, lease, ended.lost);
    // Only now, since it may take a while to hear from it.
    let was_killed = guard.dismiss();
    let why = lost.or(was_killed.then_some(Why::NotRenewed));
    Ok(match (ended.status, why) {
        (Err(error), _) => Outcome::System(error),
        (Ok(status), None) => Outcome::Ended(status),
        (Ok(status), Some(why)) => Outcome::Lost(Loss {
            why,
            failure: ended.failure,
            status: Some(status),
            was_ended: was_killed || ended.lost.is_some(),
        }),
    })
}

/// Releases the lock. Says why it was not ours any more, if it was not.
fn let_go(arguments: &Arguments, lease: Lease, lost: Option<Why>) -> Option<Why> {
    if lost.is_some() {
        // Dropping takes less time where the server is silent.
        return lost;
    }
    let signal = lease.lost();
    match lease.release() {
        Ok(()) => None,
        Err(Error::Lost { .. }) => Some(Why::of(signal.reason())),
        Err(error) => {
            arguments.tell(|| format!("the lock ends with its lease: {}", whole(&error)));
            None
        }
    }
}
