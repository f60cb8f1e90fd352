//! Signals to the tool.

use std::{
    fs, io,
    process::{Child, Command},
    sync::mpsc::Sender,
    thread,
};

use leasehold::Cancel;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use signal_hook::{
    consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

use crate::events::Event;

/// Sends those that come into the channel of events. What was ignored when we were started stays so, for us and for the
/// command: that is how `nohup` and the background jobs of a script ask for it.
///
/// One that comes while the lock is waited for calls the wait off.
///
/// They come to a thread of their own alone, not to the caller and those it starts from now on: in the middle of a call to
/// the server a signal would leave open what has become of it.
pub(crate) fn listen(events: Sender<Event>, cancel: Cancel) -> io::Result<Started> {
    let ignored = ignored();
    // Without a handler, how a child has ended might never be told.
    let wanted = [SIGCHLD, SIGTERM, SIGINT, SIGHUP];
    let is_wanted = |signal: &&i32| **signal == SIGCHLD || !ignored(**signal);
    let wanted = wanted.iter().filter(is_wanted);
    let mut signals = Signals::new(wanted.clone())?;
    thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            // The program that started us may have blocked it.
            let _ = SigSet::from(Signal::SIGCHLD).thread_unblock();
            for signal in signals.forever() {
                let event = match signal {
                    SIGCHLD => Event::Child,
                    signal => Event::Signal(signal),
                };
                let ends_the_wait = matches!(event, Event::Signal(_));
                // Only at the end nobody listens.
                let _ = events.send(event);
                if ends_the_wait {
                    cancel.cancel();
                }
            }
        })?;
    let mut blocked = SigSet::empty();
    for signal in wanted {
        blocked.add(Signal::try_from(*signal)?);
    }
    let before = blocked.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    Ok(Started { before })
}

/// How it was with signals when we were started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Started {
    before: SigSet,
}

impl Started {
    /// Starts another as we were: nothing is blocked for it that was not for us.
    pub(crate) fn spawn(self, command: &mut Command) -> io::Result<Child> {
        let now = self.before.thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
        let child = command.spawn();
        now.thread_set_mask()?;
        child
    }
}

/// Which signals this process ignores, where the system tells.
fn ignored() -> impl Fn(i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0);
    move |signal| mask >> (signal - 1) & 1 == 1
}
