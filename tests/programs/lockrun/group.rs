//! The command's process group, its guardian and its orphans, on Linux.

use std::{env, fs, os::unix::process::CommandExt, process::Command, thread};

use nix::{
    sys::{prctl::set_child_subreaper, signal::Signal},
    unistd::getsid,
};

use crate::{
    common::{
        Server,
        wait::{PATIENCE, at_once, comes_true, unless_halted},
    },
    lockrun::tool::{LONG, Tool, guardian, is_locked, lockrun, lockrun_at, ms, pid, send},
};

/// A command that prints the orphan's process id after its parent has exited.
const LEAVES_AN_ORPHAN: [&str; 4] = [
    "--",
    "sh",
    "-c",
    "orphan=$(sleep 20 >&- 2>&- & echo $!); echo $orphan; exec cat",
];
/// Passes the server's URL to the other process.
const URL: &str = "LOCKRUN_TEST_URL";

/// The state and parent of a process, from `/proc`.
pub(crate) fn state_and_parent(process: u32) -> Option<(String, u32)> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    Some((fields.next()?.into(), fields.next()?.parse().ok()?))
}

#[test]
fn the_guardian_survives_every_signal_that_can_be_blocked() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let script = format!("trap '' TERM; echo $$; {LONG}");
        let mut tool = Tool::apart(&server, "--lease 3s", &script);
        let guardian = guardian(&tool.line());
        // KILL and STOP cannot be blocked, 32 and 33 belong to the C library, and CONT would undo
        // the effect of a stop.
        let sent = (1..=64).filter(|number| ![9, 18, 19, 32, 33].contains(number));
        let kill = sent.map(|number| format!("kill -{number} {guardian}; "));
        let mut shell = Command::new("sh");
        shell.args(["-c", &kill.collect::<String>()]);
        assert!(shell.status().unwrap().success());
        tool.signal(Signal::SIGKILL);
        tool.silence();
    });
}

/// It is stopped as soon as it is one, and not only lockrun's child.
#[test]
fn a_guardian_that_does_not_start_is_not_waited_for() {
    let server = Server::start().unwrap();
    let is_refused = || {
        let mut tool = Tool::start(&server, "", "exit 3");
        let lockrun = tool.pid();
        let children = format!("/proc/{lockrun}/task/{lockrun}/children");
        let is_guardian = |child: &&str| {
            let words = fs::read_to_string(format!("/proc/{child}/cmdline"));
            words.is_ok_and(|words| words.starts_with("lockrun: guardian"))
        };
        while tool.is_running() {
            let children = fs::read_to_string(&children).unwrap();
            if let Some(guardian) = children.split_whitespace().find(is_guardian) {
                send(guardian.parse().unwrap(), Signal::SIGSTOP);
                break;
            }
        }
        let ended = tool.ends();
        // Otherwise it was ready before it was stopped.
        let expected = "lockrun: system error: cannot start the guardian: it says nothing";
        let is_refused = ended.code == 71;
        assert!(!is_refused || ended.err.trim() == expected, "{ended:?}");
        is_refused
    };
    assert!((0..5).any(|_| is_refused()));
    assert!(!is_locked(&server));
}

#[test]
fn a_stopped_command_is_reported_once() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        for (signal, why) in [
            (Signal::SIGTTIN, ", since it may not use the terminal"),
            (Signal::SIGSTOP, ""),
        ] {
            let mut tool = Tool::start(&server, "", "echo $$; read go; echo went on; exec cat");
            let command = tool.line().parse().unwrap();
            let said = tool.errors();
            send(command, signal);
            let expected = format!(
                "lockrun: the command was stopped by {signal}{why}; lockrun still holds `a`"
            );
            assert_eq!(said.recv_timeout(PATIENCE), Ok(expected));
            let is_stopped = || state_and_parent(command).unwrap().0 == "T";
            for _ in 0..2 {
                send(command, Signal::SIGCONT);
                assert!(comes_true(|| !is_stopped()));
                send(command, Signal::SIGSTOP);
                assert!(comes_true(is_stopped));
                thread::sleep(ms(100));
            }
            send(command, Signal::SIGCONT);
            tool.tells("go");
            tool.hear("went on");
            assert_eq!(tool.finish().code, 0);
            assert!(said.iter().next().is_none(), "it is printed once");
        }
    });
}

#[test]
fn the_end_of_the_guardian_is_reported_once() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let mut tool = Tool::start(&server, "--verbose --lease 1s", "echo $$; exec cat");
        let guardian = guardian(&tool.line());
        let said = tool.errors();
        send(guardian, Signal::SIGKILL);
        // Several renewals fail to reach it.
        thread::sleep(ms(1_500));
        assert_eq!(tool.finish().code, 0);
        let lines = said
            .iter()
            .filter(|line| line.contains("the guardian is gone"));
        assert_eq!(lines.count(), 1);
    });
}

/// The dead process is the daemon's child, so lockrun cannot reap it.
#[test]
fn dead_group_members_are_not_waited_for() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        // `setsid` leaves the group, and the daemon never reaps the child that it does not know.
        let daemon = "sh -c 'echo $$; true & exec setsid sleep 20 >&- 2>&-' & read go; exit 3";
        let mut tool = Tool::start(&server, "", daemon);
        let daemon: u32 = tool.line().parse().unwrap();
        let children = format!("/proc/{daemon}/task/{daemon}/children");
        assert!(comes_true(|| {
            let children = fs::read_to_string(&children).unwrap_or_default();
            let child = children.trim().parse().ok().and_then(state_and_parent);
            let has_left = getsid(Some(pid(daemon))) == Ok(pid(daemon));
            has_left && child.is_some_and(|(state, _)| state == "Z")
        }));
        tool.tells("go");
        assert!(
            comes_true(|| !tool.is_running()),
            "it waits for a dead process"
        );
        assert!(!is_locked(&server));
        send(daemon, Signal::SIGKILL);
        tool.ends_with(3);
    });
}

/// A process whose first thread has ended looks dead in process lists.
#[test]
#[ignore = "needs Python 3: cargo test --all-features --test programs python_program -- --ignored"]
fn the_first_thread_of_a_python_program_may_end_before_the_others() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let python = "import ctypes, os, signal, threading, time\n\
            signal.signal(signal.SIGTERM, signal.SIG_IGN)\n\
            threading.Thread(target=time.sleep, args=(20,)).start()\n\
            print(os.getpid(), flush=True)\n\
            ctypes.CDLL(None).pthread_exit(None)";
        let mut command = lockrun(&server);
        let script = "echo $$; python3 -c \"$PYTHON\" & read go; exit 3";
        command.args(["--", "sh", "-c", script]);
        let mut tool = Tool::spawn(command.env("PYTHON", python));
        let (shell, left) = (tool.line().parse().unwrap(), tool.line().parse().unwrap());
        assert!(comes_true(|| state_and_parent(left).unwrap().0 == "Z"));
        tool.tells("go");
        assert!(comes_true(|| state_and_parent(shell).is_none()));
        thread::sleep(ms(300));
        let threads = fs::read_dir(format!("/proc/{left}/task")).unwrap();
        assert_eq!(
            threads.count(),
            2,
            "it was killed before the grace period ended"
        );
        assert!(is_locked(&server));
        send(left, Signal::SIGKILL);
        tool.ends_with(3);
    });
}

#[test]
fn orphans_get_the_parent_that_they_would_get_without_lockrun() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let mut tool = Tool::spawn(lockrun(&server).args(LEAVES_AN_ORPHAN));
        let orphan = tool.line().parse().unwrap();
        let (_, parent) = state_and_parent(orphan).unwrap();
        assert_ne!(parent, tool.pid());
        send(orphan, Signal::SIGKILL);
        assert_eq!(tool.finish().code, 0);
    });
}

/// As for the first process of a container.
#[test]
fn an_adopted_orphan_is_reaped() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let mut parent = Command::new(env::current_exe().unwrap());
        parent.args(["--ignored", "--exact", "--nocapture"]);
        parent.arg("lockrun::group::becomes_lockrun_which_is_the_parent_of_orphans");
        let mut tool = Tool::spawn(parent.env(URL, server.url()));
        // The test harness prints something first.
        let mut lines = (0..20).map(|_| tool.line());
        let orphan = lines.find_map(|line| line.parse().ok()).unwrap();
        assert_eq!(state_and_parent(orphan).unwrap().1, tool.pid());
        send(orphan, Signal::SIGKILL);
        let is_reaped = comes_true(|| state_and_parent(orphan).is_none());
        assert!(is_reaped, "it stays dead");
        assert_eq!(tool.finish().code, 0);
    });
}

#[test]
#[ignore = "run by another test, in its own process"]
fn becomes_lockrun_which_is_the_parent_of_orphans() {
    let Ok(url) = env::var(URL) else { return };
    // It survives the exec.
    set_child_subreaper(true).unwrap();
    let error = lockrun_at(&url).args(LEAVES_AN_ORPHAN).exec();
    panic!("{error}");
}

/// lockrun is stopped meanwhile, so the guardian acts.
#[test]
fn a_command_that_exits_by_itself_is_not_reported_as_terminated() {
    at_once(
        ["exit 3", "(trap '' TERM; sleep 20 >&- 2>&-) & exit 3"],
        |end| {
            let server = Server::start().unwrap();
            let script = format!("echo $$; read go; {end}");
            let mut tool = Tool::start(&server, "--lease 2s", &script);
            let command = tool.line().parse().unwrap();
            tool.signal(Signal::SIGSTOP);
            tool.tells("go");
            assert!(comes_true(|| state_and_parent(command).unwrap().0 == "Z"));
            assert!(comes_true(|| !is_locked(&server)));
            tool.signal(Signal::SIGCONT);
            let ended = tool.ends_with(70);
            let said = ": the command ended by itself, exit status: 3";
            assert!(ended.last().ends_with(said), "{ended:?}");
        },
    );
}
