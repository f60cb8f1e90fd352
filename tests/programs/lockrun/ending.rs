//! The command ends before the lock does.

use std::{thread, time::Instant};

use nix::sys::signal::Signal;

use crate::{
    common::{
        SLACK, Server,
        wait::{TOO_SLOW, at_once, comes_true, unless_halted},
    },
    lockrun::tool::{LONG, Tool, children, guardian, is_ignored, is_locked, ms, run, send},
};

#[test]
fn a_signal_ends_the_command_before_the_lock_is_released() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        for signal in [Signal::SIGTERM, Signal::SIGINT] {
            if is_ignored(signal) {
                continue;
            }
            let name = signal.as_str().trim_start_matches("SIG");
            let script = format!("trap 'echo told; read go; exit 7' {name}; echo in; {LONG}");
            let mut tool = Tool::start(&server, "", &script);
            tool.hear("in").signal(signal);
            tool.hear("told");
            assert!(is_locked(&server), "{signal}: the command is still running");
            assert_eq!(tool.finish().code, 7, "{signal}");
            assert!(!is_locked(&server), "{signal}");
        }
    });
}

/// Further signals are passed on, and give it no more time.
#[test]
fn a_command_that_ignores_the_signal_is_killed_after_the_grace_period() {
    at_once([1, 100], |signals| {
        let server = Server::start().unwrap();
        let script = format!("trap '' TERM; echo in; {LONG}");
        let mut tool = Tool::start(&server, "--grace 1s", &script);
        tool.hear("in");
        let asked = Instant::now();
        for _ in 0..signals {
            if tool.is_running() {
                tool.signal(Signal::SIGTERM);
                thread::sleep(ms(50));
            }
        }
        tool.ends_with(137);
        // Not later either: it does not wait for a dead process.
        let ended_after = asked.elapsed();
        assert!(
            ended_after >= ms(1_000) && ended_after < ms(4_000) + SLACK,
            "{ended_after:?}"
        );
        assert!(!is_locked(&server));
    });
}

/// The lock is lost while lockrun ends the processes that the command has left: they had no right
/// to it any more, and the command had it all the time.
#[test]
fn a_command_that_ended_under_its_lock_has_not_lost_it() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let left = format!("trap 'echo told' TERM; echo in; {LONG}; {LONG}");
        let script = format!("({left}) & read go; exit 3");
        let mut tool = Tool::start(&server, "--lease 6s --grace 2s", &script);
        tool.hear("in").tells("go");
        tool.hear("told").signal(Signal::SIGSTOP);
        assert!(comes_true(|| !is_locked(&server)));
        tool.signal(Signal::SIGCONT);
        tool.ends_with(3);
    });
}

/// The guardian is stopped before it is ready, so the command cannot start.
#[cfg(target_os = "linux")]
#[test]
fn a_command_whose_lease_ends_before_its_start_does_not_run() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let has_stopped_it = (0..20).any(|_| {
            let mut tool = Tool::start(&server, "--lease 1s", "echo in; read go");
            let Some(guardian) = children(&mut tool, 1).pop() else {
                return false;
            };
            send(guardian, Signal::SIGSTOP);
            thread::sleep(ms(300));
            if children(&mut tool, 1) != [guardian] {
                // It was ready before.
                send(guardian, Signal::SIGCONT);
                tool.hear("in").close();
                tool.ends();
                return false;
            }
            server.freeze().unwrap();
            thread::sleep(ms(1_000));
            send(guardian, Signal::SIGCONT);
            let ended = tool.ends_with(70);
            server.thaw().unwrap();
            let told = "lockrun: `a` could not be renewed in time: the command has not run";
            assert_eq!((&*ended.out, ended.last()), ("", told));
            true
        });
        assert!(has_stopped_it, "{TOO_SLOW}");
    });
}

/// Only Linux reports a stopped process this way.
#[cfg(target_os = "linux")]
#[test]
fn a_stopped_command_receives_the_signal() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let mut tool = Tool::start(&server, "", "echo $$; exec sleep 20");
        let command = tool.line();
        send(command.parse().unwrap(), Signal::SIGSTOP);
        let stat = format!("/proc/{command}/stat");
        assert!(comes_true(|| std::fs::read_to_string(&stat)
            .unwrap()
            .contains(") T ")));
        tool.signal(Signal::SIGTERM);
        tool.ends_with(143);
    });
}

#[test]
fn a_hangup_is_passed_on_and_the_guardian_survives() {
    unless_halted(|| {
        if is_ignored(Signal::SIGHUP) {
            return;
        }
        let server = Server::start().unwrap();
        let script = format!("trap 'echo told' HUP; echo in; {LONG}");
        let mut tool = Tool::start(&server, "", &script);
        tool.hear("in").signal(Signal::SIGHUP);
        tool.hear("told");
        assert!(tool.is_running() && is_locked(&server));
        tool.signal(Signal::SIGKILL);
        tool.silence();
    });
}

/// The ignored signals of a process can be read on Linux only.
#[cfg(target_os = "linux")]
#[test]
fn under_nohup_a_hangup_is_ignored() {
    unless_halted(|| {
        use crate::lockrun::tool::lockrun;

        let server = Server::start().unwrap();
        let lockrun = lockrun(&server);
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", "trap '' HUP; exec \"$@\"", "sh"]);
        shell.arg(lockrun.get_program()).args(lockrun.get_args());
        let mut tool = Tool::spawn(shell.args(["--", "sh", "-c", "echo in; exec cat"]));
        tool.hear("in").signal(Signal::SIGHUP);
        // If the signal were passed on, the command would not read the word.
        tool.echoes("one");
        assert!(tool.is_running());
        tool.signal(Signal::SIGTERM);
        tool.ends_with(143);
    });
}

/// Some parent processes ignore or block `SIGCHLD`, and children inherit that.
#[cfg(target_os = "linux")]
#[test]
fn the_exit_is_noticed_even_if_sigchld_is_ignored() {
    unless_halted(|| {
        use crate::lockrun::tool::lockrun;

        let server = Server::start().unwrap();
        let lockrun = lockrun(&server);
        for how in ["--ignore-signal=CHLD", "--block-signal=CHLD"] {
            let mut env = std::process::Command::new("env");
            env.arg(how);
            env.arg(lockrun.get_program()).args(lockrun.get_args());
            Tool::spawn(env.args(["--", "sh", "-c", "exit 3"])).ends_with(3);
            assert!(!is_locked(&server), "{how}");
        }
    });
}

#[test]
fn background_processes_end_before_the_lock_is_released() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        // A command that exits by itself gets the time that a busy machine takes.
        let leaves = [
            ("trap 'echo told; exit' TERM", "--grace 5s", "told\n"),
            ("trap '' TERM", "--grace 500ms", ""),
        ];
        for (trap, grace, said) in leaves {
            let script = format!("({trap}; echo in; {LONG}) & read go; exit 0");
            let mut tool = Tool::start(&server, grace, &script);
            tool.hear("in");
            let ended = tool.finish();
            assert_eq!((ended.code, &*ended.out), (0, said), "{trap}");
            assert!(!is_locked(&server));
        }
    });
}

#[test]
fn a_terminating_signal_is_passed_on() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        for signal in [
            Signal::SIGQUIT,
            Signal::SIGUSR1,
            Signal::SIGUSR2,
            Signal::SIGALRM,
            Signal::SIGVTALRM,
            Signal::SIGPROF,
            Signal::SIGIO,
        ] {
            if is_ignored(signal) {
                continue;
            }
            let name = signal.as_str().trim_start_matches("SIG");
            let script = format!("trap 'echo told' {name}; echo in; {LONG}");
            let mut tool = Tool::start(&server, "--grace 200ms", &script);
            tool.hear("in").signal(signal);
            tool.hear("told");
            assert!(tool.is_running() && is_locked(&server), "{signal}");
            tool.signal(Signal::SIGTERM);
            tool.ends();
        }
    });
}

#[test]
fn killing_the_guardian_does_not_affect_the_command() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let mut tool = Tool::start(&server, "--lease 3s", "echo $$; exec cat");
        let command = tool.line();
        send(guardian(&command), Signal::SIGKILL);
        tool.echoes("still here");
        assert_eq!(tool.finish().code, 0);
        assert_eq!(run(&server, "", "exit 3").code, 3);
    });
}
