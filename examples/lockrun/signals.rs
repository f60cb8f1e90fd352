//! Signals to the tool.

use std::{
    fs, io,
    sync::{Arc, mpsc::Sender},
    thread,
};

use signal_hook::{
    consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM},
    flag,
    iterator::Signals,
};

use crate::run::Event;

/// Sends those that come to whoever waits for events. What was ignored when we were started stays so, for us and for the
/// command: that is how `nohup` and the background jobs of a script ask for it.
pub(crate) fn listen(events: Sender<Event>) -> io::Result<()> {
    let ignored = ignored();
    if ignored(SIGCHLD) {
        // Else how a child has ended is never told, and the wait for it ends only with the last of them.
        flag::register(SIGCHLD, Arc::default())?;
    }
    let wanted = [SIGTERM, SIGINT, SIGHUP];
    let mut signals = Signals::new(wanted.iter().filter(|&&signal| !ignored(signal)))?;
    thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            for signal in signals.forever() {
                // Only at the end nobody listens.
                let _ = events.send(Event::Signal(signal));
            }
        })?;
    Ok(())
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
