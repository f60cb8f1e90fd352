//! Signals that come while the lock is being given back.

use std::{
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
};

use nix::sys::signal::Signal;

use crate::{
    common::{
        Proxy, Server,
        wait::{at_once, comes_true},
    },
    lockrun::tool::{Tool, is_locked, lockrun_at, ms, run},
};

/// lockrun at a server that takes its time to do the release. How many scripts have come since the lock was acquired is counted.
fn slowly(server: &Server, run: impl FnOnce(Command, &AtomicUsize)) {
    let proxy = Proxy::in_front_of(server).unwrap();
    let came = Arc::new(AtomicUsize::new(0));
    // The second script, unless the watchdog has looked at the lock before.
    for nth in 2..=3 {
        let came = Arc::clone(&came);
        proxy.at("EVALSHA").nth(nth).run(move || {
            came.fetch_add(1, SeqCst);
            thread::sleep(ms(400));
        });
    }
    run(lockrun_at(&proxy.url()), &came);
    assert!(!is_locked(server), "it was not given back");
}

/// A signal that any thread may have comes to one of them by chance: so there are several.
#[test]
fn neither_the_guardians_end_nor_a_signal_costs_the_release() {
    at_once(0..4, |_| {
        let server = Server::start().unwrap();
        // The scripts are known from then on.
        assert_eq!(run(&server, "", "exit 0").code, 0);
        slowly(&server, |mut command, _| {
            Tool::spawn(command.args(["--", "/no/such/program"])).ends_with(127);
        });
        slowly(&server, |mut command, came| {
            let script = ["--", "sh", "-c", "echo in; read go; exit 3"];
            let mut tool = Tool::spawn(command.args(script));
            tool.hear("in");
            let before = came.load(SeqCst);
            tool.tells("go");
            // It is being given back.
            assert!(comes_true(|| came.load(SeqCst) > before));
            tool.signal(Signal::SIGTERM);
            tool.ends_with(3);
        });
    });
}

/// What the tool does about signals is not for its command.
#[cfg(target_os = "linux")]
#[test]
fn the_command_has_no_other_signal_blocked_than_the_tool_was_started_with() {
    let server = Server::start().unwrap();
    // Not by a shell, which may unblock them itself.
    let mut command = lockrun_at(&server.url());
    let ended = Tool::spawn(command.args(["--", "grep", "SigBlk", "/proc/self/status"])).ends();
    let ours = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let ours = ours.lines().find(|line| line.starts_with("SigBlk"));
    assert_eq!(ended.out.lines().next(), ours);
}
