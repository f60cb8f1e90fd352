//! From the lock to its release.

use std::{
    sync::{
        Arc,
        mpsc::{Receiver, channel},
    },
    time::Instant,
};

use leasehold::{Error, Lease, Locks, Options};

use crate::{
    arguments::Arguments,
    busy::Busy,
    command::{self, Job},
    events::{Event, Hooks},
    guard::Guard,
    loss::{Loss, Why},
    outcome::{Outcome, Report},
    signals::{self, Started},
    text::whole,
    wait::{self, Waited},
};

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
        .events(Arc::new(Hooks(sender)));
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
