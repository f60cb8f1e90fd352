//! What the command becomes ends with it, in whatever group and session, on Linux.

use std::{fs, thread, time::Instant};

use nix::sys::signal::Signal;
use redis::Commands;

use crate::{
    common::{
        SLACK, Server,
        wait::{at_once, comes_true, unless_halted},
    },
    lockrun::tool::{KEY, LONG, Tool, children, is_locked, lockrun, ms, send},
};

/// Commands that take the job out of the group. Some end at once when they are told to.
const WRAPPERS: [&str; 6] = [
    r#"exec timeout 60 sh -c "$JOB""#,
    r#"exec setsid sh -c "$JOB""#,
    r#"setsid sh -c "$JOB"; true"#,
    r#"exec bash -c 'set -m; sh -c "$JOB" & wait'"#,
    // The parent of the job ends.
    r#"exec timeout 60 sh -c '(sh -c "$JOB" &); exec sleep 60'"#,
    r#"timeout 60 bash -c 'set -m; (setsid sh -c "$JOB"; true) & wait'; true"#,
];

/// What happens to lockrun or to its lock.
#[derive(Clone, Copy, Debug)]
enum Event {
    Killed,
    KilledInTheGrace,
    StoppedPastTheLease,
    LockLost,
    Told,
}

impl Event {
    fn happens(self, tool: &mut Tool, server: &Server) {
        match self {
            Self::Killed => tool.signal(Signal::SIGKILL),
            Self::StoppedPastTheLease => tool.signal(Signal::SIGSTOP),
            Self::Told => tool.signal(Signal::SIGTERM),
            Self::KilledInTheGrace => {
                tool.signal(Signal::SIGTERM);
                tool.hear("told").signal(Signal::SIGKILL)
            }
            Self::LockLost => {
                let _: () = server.connection().unwrap().del(KEY).unwrap();
                tool
            }
        };
    }
}

/// The job ignores TERM.
fn nothing_is_left_after(event: Event) {
    at_once(WRAPPERS, |wrapper| {
        let server = Server::start().unwrap();
        let job = format!(r#"trap "echo told" TERM; echo in; {LONG}"#);
        let script = format!("export JOB='{job}'; {wrapper}");
        let mut tool = Tool::apart(&server, "--lease 3s", &script);
        tool.hear("in");
        event.happens(&mut tool, &server);
        let since = Instant::now();
        tool.silence();
        let silent_after = since.elapsed();
        let limit = ms(4_000) + SLACK;
        assert!(silent_after < limit, "{wrapper}: {silent_after:?}");
        match event {
            Event::LockLost => drop(tool.ends_with(70)),
            Event::Told => assert!(comes_true(|| !is_locked(&server)), "{wrapper}"),
            _ => {}
        }
    });
}

#[test]
fn of_a_killed_lockrun_no_process_is_left() {
    nothing_is_left_after(Event::Killed);
}

/// It is killed as soon as the command's process exists, which leaves the group at once.
#[test]
fn of_a_lockrun_killed_at_the_start_of_its_command_no_process_is_left() {
    at_once(0..12, |_| {
        let server = Server::start().unwrap();
        let mut command = lockrun(&server);
        let mut tool = Tool::spawn(command.args(["--", "setsid", "sh", "-c", LONG]));
        // The guardian is the first of them.
        children(&mut tool, 2);
        tool.signal(Signal::SIGKILL);
        tool.silence();
    });
}

#[test]
fn of_a_lockrun_killed_in_the_grace_no_process_is_left() {
    nothing_is_left_after(Event::KilledInTheGrace);
}

#[test]
fn of_a_lockrun_stopped_past_its_lease_no_process_is_left() {
    nothing_is_left_after(Event::StoppedPastTheLease);
}

#[test]
fn of_a_lost_lock_no_process_is_left() {
    nothing_is_left_after(Event::LockLost);
}

#[test]
fn of_a_lockrun_that_is_told_to_end_no_process_is_left() {
    nothing_is_left_after(Event::Told);
}

/// The job that it leaves behind has no parent, only its group or its session.
#[test]
fn of_a_wrapper_that_ends_alone_no_process_is_left() {
    // `$$` is the shell that starts the job.
    let ends = [
        ("kill -USR2 $$", 0),
        ("kill -KILL $COMMAND", 137),
        ("kill -USR1 $LOCKRUN", 138),
    ];
    let wrappers = ["timeout 60", "setsid"];
    let cases = wrappers.map(|wrapper| ends.map(|(end, code)| (wrapper, end, code)));
    at_once(cases.concat(), |(wrapper, end, code)| {
        let server = Server::start().unwrap();
        let job = format!(r#"trap "" TERM USR1; echo in; {end}; {LONG}"#);
        let shell = format!(r#"sh -c 'trap "exit 0" USR2; ({job}) & wait'"#);
        let script = format!("export COMMAND=$$ LOCKRUN=$PPID; exec {wrapper} {shell}");
        let mut tool = Tool::apart(&server, "--lease 9s --grace 300ms", &script);
        tool.hear("in");
        let since = Instant::now();
        tool.silence();
        let late = since.elapsed();
        assert!(late < ms(4_000) + SLACK, "{wrapper} {end}: {late:?}");
        assert!(comes_true(|| !is_locked(&server)), "{wrapper} {end}");
        tool.ends_with(code);
    });
}

/// It is told to end at different moments of its start.
#[test]
fn a_process_that_leaves_the_group_while_the_command_is_told_to_end_ends_too() {
    at_once(0..12, |number| {
        let server = Server::start().unwrap();
        let script = format!("setsid sh -c 'trap \"\" TERM; {LONG}'; true");
        let mut tool = Tool::start(&server, "--grace 300ms", &script);
        // The guardian is the first of them.
        children(&mut tool, 2);
        thread::sleep(ms(number));
        tool.signal(Signal::SIGTERM);
        tool.silence();
        assert!(comes_true(|| !is_locked(&server)));
    });
}

/// Its name stands before the other fields of `/proc/PID/stat`.
#[test]
fn a_process_whose_name_has_a_parenthesis_and_a_blank_ends_too() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let script = "name=$(mktemp -d)/'a) b'; cp \"$(command -v sleep)\" \"$name\"; \
                      setsid \"$name\" 20 & echo $!; wait";
        let mut tool = Tool::apart(&server, "--lease 3s", script);
        let named = format!("/proc/{}/comm", tool.line());
        let has_its_name = || fs::read_to_string(&named).is_ok_and(|it| it == "a) b\n");
        assert!(comes_true(has_its_name));
        tool.signal(Signal::SIGKILL);
        tool.silence();
    });
}

/// The rest of its lease no longer counts.
#[test]
fn a_lockrun_that_is_stopped_after_the_loss_of_its_lock_leaves_no_command() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let script = format!("trap 'echo told' TERM; echo in; {LONG}");
        let mut tool = Tool::apart(&server, "--lease 1h --grace 2s", &script);
        tool.hear("in");
        let _: () = server.connection().unwrap().del(KEY).unwrap();
        tool.hear("told").signal(Signal::SIGSTOP);
        tool.silence();
        tool.signal(Signal::SIGCONT);
        tool.ends_with(70);
    });
}

/// What it starts after a search is found by its parent only.
#[test]
fn a_command_that_starts_processes_all_the_time_leaves_none() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let starts = "while [ $n -lt 400 ]; do n=$((n+1)); setsid sleep 20 & done";
        let script = format!("exec setsid sh -c 'n=0; echo in; {starts}'");
        for prefix in ["1:", "2:", "3:"] {
            let mut tool = Tool::apart(&server, &format!("--prefix {prefix}"), &script);
            tool.hear("in").signal(Signal::SIGKILL);
            tool.silence();
        }
    });
}

/// Its parent has ended, and it has a session of its own: it is to outlive the command.
#[test]
fn a_daemon_outlives_the_command() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        for signal in [Signal::SIGTERM, Signal::SIGKILL] {
            let script = "(setsid sh -c 'echo $$; exec sleep 20 >&-' &); read go; exec cat";
            let mut tool = Tool::apart(&server, "--lease 3s", script);
            let daemon = tool.line().parse().unwrap();
            // It is read only after the daemon's parent has ended.
            tool.tells("go");
            tool.echoes("in");
            tool.signal(signal);
            tool.silence();
            let stat = || fs::read_to_string(format!("/proc/{daemon}/stat")).unwrap();
            assert!(
                comes_true(|| stat().contains(") S ")),
                "{signal}: {}",
                stat()
            );
            send(daemon, Signal::SIGKILL);
            let is_released = || signal == Signal::SIGKILL || !is_locked(&server);
            assert!(comes_true(is_released));
        }
    });
}
