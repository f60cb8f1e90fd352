//! Signals to lockrun.

use std::{
    fs, io,
    process::{Child, Command},
    sync::mpsc::Sender,
    thread,
};

use leasehold::Cancel;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use signal_hook::{consts::SIGCHLD, iterator::Signals};

use crate::doing::events::Event;

/// Sends incoming signals to the event channel. A signal that was ignored when lockrun was started
/// stays ignored, for lockrun and for the command: `nohup` and the background jobs of a script rely
/// on this.
///
/// By default each of these signals would end lockrun, so one that arrives during the wait for the
/// lock cancels the wait.
///
/// Only a separate thread receives them. They are blocked in the calling thread and the threads
/// that it starts later: a signal during a call to the server would leave the call's outcome
/// unknown.
pub(crate) fn listen(events: Sender<Event>, cancel: Cancel) -> io::Result<SignalMask> {
    let ignored = ignored();
    // Without a handler for SIGCHLD, the exit status of a child could be lost.
    let is_wanted = |signal: &Signal| match signal {
        Signal::SIGCHLD => true,
        signal => !NOT_FOR_THE_COMMAND.contains(&signal.as_str()) && !ignored(*signal as i32),
    };
    let wanted: SigSet = Signal::iterator().filter(is_wanted).collect();
    let mut signals = Signals::new(wanted.iter().map(|signal| signal as i32))?;
    thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            // The program that started lockrun may have blocked it.
            let _ = SigSet::from(Signal::SIGCHLD).thread_unblock();
            for signal in signals.forever() {
                let event = match signal {
                    SIGCHLD => Event::Child,
                    signal => Event::Signal(signal),
                };
                let ends_the_wait = matches!(event, Event::Signal(_));
                // This fails only when lockrun ends.
                let _ = events.send(event);
                if ends_the_wait {
                    cancel.cancel();
                }
            }
        })?;
    let before = wanted.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    Ok(SignalMask { before })
}

/// The signals that cannot be caught, those that do not end a process by default, and those that
/// lockrun causes itself: a fault, a limit, a closed pipe. All others would end lockrun.
const NOT_FOR_THE_COMMAND: [&str; 20] = [
    "SIGKILL", "SIGSTOP", "SIGCHLD", "SIGCONT", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGURG",
    "SIGWINCH", "SIGINFO", "SIGILL", "SIGTRAP", "SIGABRT", "SIGBUS", "SIGFPE", "SIGSEGV", "SIGSYS",
    "SIGPIPE", "SIGXCPU", "SIGXFSZ",
];

/// The signals that were blocked when lockrun was started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SignalMask {
    before: SigSet,
}

impl SignalMask {
    /// Starts a process with the signal mask that lockrun was started with.
    pub(crate) fn spawn(self, command: &mut Command) -> io::Result<Child> {
        let now = self.before.thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
        let child = command.spawn();
        now.thread_set_mask()?;
        child
    }
}

/// Tests if this process ignores a signal, by `/proc`. Without `/proc`, no signal counts as
/// ignored.
fn ignored() -> impl Fn(i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0);
    move |signal| mask >> (signal - 1) & 1 == 1
}
