//! Signals during the release of the lock.

use std::{
    process::Command,
    sync::mpsc::{Receiver, channel},
    thread,
};

use nix::sys::signal::Signal;

use crate::{
    common::{
        Proxy, Server,
        wait::{PATIENCE, at_once},
    },
    lockrun::tool::{Tool, is_locked, lockrun_at, ms, run},
};

/// Matches a release, but neither the acquire nor the watchdog's read: the lock is its only key.
const ONE_KEY: &str = "\r\n$1\r\n1\r\n$6\r\nlock:a\r\n";

/// Runs lockrun on a server that delays the release and reports its arrival.
fn slowly(server: &Server, run: impl FnOnce(Command, &Receiver<()>)) {
    let proxy = Proxy::in_front_of(server).unwrap();
    let (come, has_come) = channel();
    proxy.at("EVALSHA").about(ONE_KEY).run(move || {
        come.send(()).unwrap();
        thread::sleep(ms(400));
    });
    run(lockrun_at(&proxy.url()), &has_come);
    assert!(!is_locked(server), "it was not released");
    assert!(proxy.happened(), "the release was not slow");
}

/// Any thread may receive the signal, by chance: so there are several.
#[test]
fn the_lock_is_released_despite_signals_and_the_guardians_death() {
    at_once(0..4, |_| {
        let server = Server::start().unwrap();
        // From now on the scripts are cached.
        assert_eq!(run(&server, "", "exit 0").code, 0);
        slowly(&server, |mut command, _| {
            Tool::spawn(command.args(["--", "/no/such/program"])).ends_with(127);
        });
        slowly(&server, |mut command, has_come| {
            let script = ["--", "sh", "-c", "echo in; read go; exit 3"];
            let mut tool = Tool::spawn(command.args(script));
            tool.hear("in");
            tool.tells("go");
            has_come.recv_timeout(PATIENCE).unwrap();
            tool.signal(Signal::SIGTERM);
            tool.ends_with(3);
        });
    });
}

/// The tool's signal handling does not affect its command.
#[cfg(target_os = "linux")]
#[test]
fn the_command_inherits_the_signal_mask_unchanged() {
    let server = Server::start().unwrap();
    // Without a shell, which may unblock them itself.
    let mut command = lockrun_at(&server.url());
    let ended = Tool::spawn(command.args(["--", "grep", "SigBlk", "/proc/self/status"])).ends();
    let ours = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let ours = ours.lines().find(|line| line.starts_with("SigBlk"));
    assert_eq!(ended.out.lines().next(), ours);
}
