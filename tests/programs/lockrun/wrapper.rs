//! lockrun compared with `env`, which also starts another program: the rows of the page's table
//! that match.

use std::{fs, os::unix::fs::PermissionsExt, process::Command};

use crate::{
    common::{Server, wait::at_once},
    lockrun::tool::{Tool, program},
};

/// In a directory with a script `plain` without `#!`, and others that cannot be run. `"$@"` is the
/// wrapper.
const SAME: [(&str, &str); 14] = [
    (
        "a script without #!",
        r#""$@" ./plain a 'b c'; PATH=$PWD:$PATH "$@" plain d"#,
    ),
    ("an empty file", r#""$@" ./empty"#),
    (
        "what cannot be run",
        r#"for it in ./no-interpreter ./missing missing ./no-permission . '' ./plain/x; do "$@" "$it"; echo $?; done"#,
    ),
    (
        "exit codes",
        r#"for n in 0 1 2 64 69 70 71 74 75 124 125 126 127 128 129 255; do "$@" sh -c "exit $n"; echo $?; done"#,
    ),
    (
        "signals that end the command",
        r#"for s in KILL SEGV ABRT TERM USR1 ALRM PIPE 40; do "$@" sh -c "kill -$s \$\$"; echo $?; done"#,
    ),
    (
        "arguments",
        r#""$@" printf '%s|' -- --help --status -x '' 'a  b' '*' "\\""#,
    ),
    ("stdin", r#"echo 'by stdin' | "$@" cat"#),
    (
        "a full disk",
        r#""$@" printf x >/dev/full; echo $?; "$@" sh -c 'echo x >&2; echo $?' 2>/dev/full"#,
    ),
    (
        "mask, priority, directory, limits",
        r#"umask 027; cd /; ulimit -n 77; "$@" sh -c 'umask; nice; pwd; ulimit -n'; nice -n 3 "$@" nice"#,
    ),
    (
        "descriptors",
        r#"exec 7</dev/null; "$@" sh -c 'for n in 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do [ -e /proc/self/fd/$n ] && echo $n; done'"#,
    ),
    (
        "ignored signals",
        r#"trap '' HUP INT QUIT TERM USR1 ALRM TSTP TTIN TTOU; "$@" sh -c 'for s in HUP INT QUIT TERM USR1 ALRM TSTP TTIN TTOU; do kill -$s $$; done; echo here'"#,
    ),
    (
        "blocked signals",
        r#"env --block-signal=USR1,TERM,CHLD "$@" grep SigBlk /proc/self/status"#,
    ),
    (
        "environment",
        r#"env -i A=1 B= "$@" /usr/bin/env | grep -v LEASEHOLD_ | sort"#,
    ),
    (
        "a command that becomes another",
        r#""$@" sh -c 'exec sh -c "exit 5"'; echo $?"#,
    ),
];

/// `--block-signal` and `/dev/full` exist on Linux only.
#[cfg(target_os = "linux")]
#[test]
fn the_command_inherits_the_environment_as_under_env() {
    let server = Server::start().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let files = [
        ("plain", "echo plain \"$@\"\n", 0o755),
        ("empty", "", 0o755),
        ("no-interpreter", "#!/no/such/shell\n", 0o755),
        ("no-permission", "#!/bin/sh\n", 0o644),
    ];
    for (name, text, mode) in files {
        let file = folder.path().join(name);
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
    }
    at_once(SAME, |(what, script)| {
        let under = |wrapper: Command| {
            let mut shell = Command::new("sh");
            shell.args(["-c", script, "sh"]).arg(wrapper.get_program());
            shell.args(wrapper.get_args()).current_dir(folder.path());
            let mut tool = Tool::spawn(&mut shell);
            tool.tells("nothing to read");
            let ended = tool.finish();
            (ended.code, ended.out)
        };
        let mut lockrun = program();
        lockrun.args(["--name", what, "--url", &server.url(), "--"]);
        assert_eq!(under(lockrun), under(Command::new("env")), "{what}");
    });
}

#[test]
fn failing_to_write_the_output_is_a_failure() {
    if !fs::exists("/dev/full").unwrap() {
        return;
    }
    let server = Server::start().unwrap();
    let asks: [&[&str]; 5] = [
        &["--status"],
        &["--status", "--json"],
        &["--force-release"],
        &["--help"],
        &["--version"],
    ];
    at_once(asks, |ask| {
        let mut shell = Command::new("sh");
        shell.args(["-c", "\"$@\" >/dev/full", "sh"]);
        shell.arg(program().get_program());
        if ask[0] != "--help" && ask[0] != "--version" {
            shell.args(["--name", "a", "--url", &server.url()]);
        }
        let ended = Tool::spawn(shell.args(ask)).ends_with(74);
        assert!(ended.err.contains("cannot write to stdout"), "{ended:?}");
    });
}
