//! Signals to the tool.

use std::{
    fs, io,
    process::{Child, Command},
    sync::mpsc::Sender,
    thread,
};

use leasehold::Cancel;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use signal_hook::{consts::SIGCHLD, iterator::Signals};

use crate::events::Event;

/// Sends those that come into the channel of events. What was ignored when we were started stays
/// so, for us and for the command: that is how `nohup` and the background jobs of a script ask for
/// it.
///
/// Each of them would end lockrun: one that comes while the lock is waited for calls the wait off.
///
/// They come to a thread of their own alone, not to the caller and those it starts from now on: in
/// the middle of a call to the server a signal would leave open what has become of it.
pub(crate) fn listen(events: Sender<Event>, cancel: Cancel) -> io::Result<SignalMask> {
    let ignored = ignored();
    // Without a handler for SIGCHLD, how a child has ended might never be told.
    let is_wanted = |signal: &Signal| match signal {
        Signal::SIGCHLD => true,
        signal => !NOT_FOR_THE_COMMAND.contains(&signal.as_str()) && !ignored(*signal as i32),
    };
    let wanted: SigSet = Signal::iterator().filter(is_wanted).collect();
    let mut signals = Signals::new(wanted.iter().map(|signal| signal as i32))?;
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
    let before = wanted.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    Ok(SignalMask { before })
}

/// Those that cannot be caught, that end nobody, and that are of lockrun's own making: a fault, a
/// limit, a pipe that nobody reads. The rest would end lockrun.
const NOT_FOR_THE_COMMAND: [&str; 20] = [
    "SIGKILL", "SIGSTOP", "SIGCHLD", "SIGCONT", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGURG",
    "SIGWINCH", "SIGINFO", "SIGILL", "SIGTRAP", "SIGABRT", "SIGBUS", "SIGFPE", "SIGSEGV", "SIGSYS",
    "SIGPIPE", "SIGXCPU", "SIGXFSZ",
];

/// The signals that were blocked when we were started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SignalMask {
    before: SigSet,
}

impl SignalMask {
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
