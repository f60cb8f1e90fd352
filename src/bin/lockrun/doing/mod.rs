//! Locks, processes and signals. Nothing here writes to stderr, so no action waits for a reader.
//!
//! `run` acquires and releases the locks; `held` has their guards. `command` starts the command,
//! `job` watches and ends it. `guard` owns the command's process group, `family` finds what has
//! left it; the `guardian`, a second process, kills both if lockrun cannot. `signals` and `events`
//! wake lockrun; `processes` reads `/proc`.

pub(crate) mod command;
pub(crate) mod events;
pub(crate) mod family;
pub(crate) mod guard;
pub(crate) mod guardian;
pub(crate) mod held;
pub(crate) mod job;
pub(crate) mod processes;
pub(crate) mod run;
pub(crate) mod signals;
