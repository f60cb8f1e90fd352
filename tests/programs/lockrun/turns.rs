//! Several lockruns in turn, and the final message of each.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

use nix::sys::signal::Signal;

use crate::{
    common::{
        Server,
        wait::{at_once, unless_halted},
    },
    lockrun::tool::{Tool, ask, has_asked, is_ignored, is_locked, lockrun, program, run},
};

#[test]
fn the_second_of_two_reports_busy_and_names_the_holder() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let mut first = Tool::holding(&server, "--lease 30s");
        first.hear("in");
        let second = run(&server, "--quiet", "echo in");
        assert_eq!((second.code, &*second.out, &*second.err), (75, "", ""));
        for args in ["", "--wait 100ms", "--wait 300ms --verbose"] {
            let second = run(&server, args, "echo in");
            assert_eq!((second.code, &*second.out), (75, ""), "{args}");
            // The holder: host, process and thread. The remaining time: of 30 s, renewed at 20 s
            // left.
            let said = second.last();
            let who = format!(":{}:main for another ", first.pid());
            let (is_held_by, left) = said.split_once(&who).unwrap();
            assert!(is_held_by.starts_with("lockrun: `a` is busy: held by "));
            let seconds = left.strip_suffix("s, unless renewed").unwrap();
            let seconds: u64 = seconds.parse().unwrap();
            assert!((15..=30).contains(&seconds), "{said}");
        }
        first.echoes("still here");
        let first = first.finish();
        assert_eq!((first.code, &*first.err), (0, ""));
        assert!(!is_locked(&server));
    });
}

#[test]
fn a_waiting_lockrun_runs_after_the_first_ends() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let mut first = Tool::holding(&server, "");
        first.hear("in");
        let mut second = Tool::start(&server, "--wait 10s", "echo in; exit 4");
        has_asked(&server, 2);
        assert!(second.is_running());
        assert_eq!(first.finish().code, 0);
        second.hear("in");
        second.ends_with(4);
    });
}

#[test]
fn a_signal_ends_the_waiting_and_leaves_nothing_behind() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let mut first = Tool::holding(&server, "");
        first.hear("in");
        let second = Tool::start(&server, "--wait 10s", "echo in");
        has_asked(&server, 2);
        second.signal(Signal::SIGTERM);
        assert_eq!(second.ends_with(143).out, "");
        first.finish();
        assert!(!is_locked(&server));
    });
}

#[test]
fn the_commands_exit_status_is_passed_on() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let cases = [
            ("exit 0", 0, None),
            ("exit 3", 3, Some("exit status: 3")),
            ("exit 75", 75, Some("exit status: 75")),
            ("kill -KILL $$", 137, Some("signal: 9 (SIGKILL)")),
            ("kill -TERM $$", 143, Some("signal: 15 (SIGTERM)")),
            ("kill -HUP $$", 129, Some("signal: 1 (SIGHUP)")),
        ];
        for (script, code, why) in cases {
            if script.contains("HUP") && is_ignored(Signal::SIGHUP) {
                continue;
            }
            let line = |why| format!("lockrun: `a`: the command failed, {why}\n");
            let said = why.map_or_else(String::new, line);
            // What cron mails does not depend on --quiet.
            for args in ["", "--quiet"] {
                let ended = run(&server, args, script);
                assert_eq!((ended.code, ended.err), (code, said.clone()), "{script}");
            }
            assert!(!is_locked(&server));
        }
    });
}

#[test]
fn the_command_gets_its_arguments_and_pipes_unchanged() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let mut command = lockrun(&server);
        let script = r#"cat; [ "$1" = "$(printf '\377')" ] && shift; printf '%s|' "$@""#;
        command.args(["--", "sh", "-c", script, "sh"]);
        command.arg(OsStr::from_bytes(b"\xff"));
        command.args(["a b", "", "*", "'\"", "--status", "--", "$HOME\\n"]);
        let mut tool = Tool::spawn(&mut command);
        tool.tells("by stdin");
        let ended = tool.finish();
        let out = "by stdin\na b||*|'\"|--status|--|$HOME\\n|";
        assert_eq!((ended.code, &*ended.out), (0, out));
    });
}

#[test]
fn a_closed_pipeline_ends_it_like_any_command() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let mut tool = Tool::start(&server, "", "exec yes");
        tool.hear("y").deaf();
        tool.ends_with(141);
        assert!(!is_locked(&server));
    });
}

#[test]
fn a_command_that_cannot_run_exits_as_in_a_shell() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        for (command, code) in [("/no/such/program", 127), ("/etc/passwd", 126)] {
            let ended = Tool::spawn(lockrun(&server).args(["--", command])).ends();
            assert_eq!(ended.code, code, "{ended:?}");
            assert!(ended.err.contains(command), "{ended:?}");
            assert!(!is_locked(&server));
        }
    });
}

#[test]
fn invalid_arguments_are_refused_before_the_command_runs() {
    let server = Server::start().unwrap();
    at_once(
        [
            "--lease 100ms",
            "--lease 30",
            "--lease 3s --grace 2s",
            "--bogus",
            "--status",
            "--wait soon",
        ],
        |args| {
            let ended = run(&server, args, "echo in");
            assert_eq!((ended.code, &*ended.out), (64, ""), "{args}");
            assert!(!ended.err.is_empty());
            let is_time = args == "--lease 30" || args == "--wait soon";
            assert_eq!(ended.err.contains("such as 500ms, 30s"), is_time, "{args}");
        },
    );
    let nothing = ask(&server, "");
    assert_eq!(nothing.code, 64, "no command");
    let usages = [
        "Usage: lockrun [OPTIONS] --name <NAME>... -- <COMMAND>...\n",
        "lockrun [OPTIONS] --name <NAME>... <--status|--force-release>\n",
    ];
    for usage in usages {
        assert!(nothing.err.contains(usage), "{nothing:?}");
    }
}

#[test]
fn an_empty_url_variable_counts_as_unset() {
    unless_halted(|| {
        let status = |args: &[&str]| {
            let mut command = program();
            command.args(["--name", "a", "--status"]).args(args);
            Tool::spawn(command.env("LEASEHOLD_URL", "")).ends()
        };
        // The default address may have a server.
        let usual = status(&[]);
        assert!([0, 69].contains(&usual.code), "{usual:?}");
        // An empty URL is an error: a script's variable may be unset.
        let named = status(&["--url", ""]);
        assert_eq!(named.code, 64, "{named:?}");
    });
}
