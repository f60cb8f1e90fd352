//! Options common in crontabs, and lockrun's help and version.

use std::process::Command;

use redis::Commands;

use crate::{
    common::{
        Server,
        wait::{comes_true, unless_halted},
    },
    lockrun::tool::{Ended, KEY, Tool, program, run},
};

/// With these environment variables, on this server.
fn with(server: &Server, variables: &[(&str, &str)], args: &str) -> Command {
    let mut command = program();
    for (name, value) in variables {
        command.env(format!("LEASEHOLD_{name}"), value);
    }
    command.env("LEASEHOLD_URL", server.url() + "\n");
    command.args(args.split_whitespace());
    command
}

fn ended(command: &mut Command) -> Ended {
    Tool::spawn(command).ends()
}

#[test]
fn a_variable_applies_where_the_command_line_has_no_flag() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let mut conn = server.connection().unwrap();
        let all = [("PREFIX", "job:"), ("LEASE", "20s"), ("WAIT", "20s")];
        let mut holder = Tool::spawn(&mut with(&server, &all, "--name a -- sh -c cat"));
        holder.echoes("in");
        let left: u64 = conn.pttl("job:a").unwrap();
        assert!((10_000..=20_000).contains(&left), "{left}");
        // A query accepts the variables of all commands, and reads the same key.
        let status = ended(&mut with(&server, &all, "--name a --status"));
        assert!(status.out.starts_with("a: held\n"), "{status:?}");
        let elsewhere = ended(&mut with(&server, &all, "--name a --status --prefix lock:"));
        assert_eq!(elsewhere.out, "a: free\n");
        let mut second = Tool::spawn(&mut with(&server, &all, "--name a -- echo in"));
        let busy = ended(&mut with(&server, &all, "--name a --wait 0s -- true"));
        assert_eq!(busy.code, 75, "{busy:?}");
        assert!(second.is_running());
        assert_eq!(holder.finish().code, 0);
        second.hear("in").line();
        second.ends_with(0);

        // Those that are read from a file end with a newline.
        let all = [("PREFIX", "job:\n"), ("LEASE", "20s\n"), ("WAIT", "0s\r\n")];
        let mut holder = Tool::spawn(&mut with(&server, &all, "--name a -- sh -c cat"));
        holder.echoes("in");
        let left: u64 = conn.pttl("job:a").unwrap();
        assert!((10_000..=20_000).contains(&left), "{left}");
        assert_eq!(holder.finish().code, 0);

        let empty = [("PREFIX", ""), ("LEASE", "\n"), ("WAIT", "")];
        let mut holder = Tool::spawn(&mut with(&server, &empty, "--name a -- sh -c cat"));
        holder.echoes("in");
        assert!(conn.exists::<_, bool>(KEY).unwrap());
        assert_eq!(holder.finish().code, 0);
    });
}

#[test]
fn a_bad_value_in_a_variable_names_the_variable() {
    let server = Server::start().unwrap();
    let wrong = |variable, args| {
        let command = &mut with(&server, &[variable], args);
        Tool::spawn(command).ends_with(64).err
    };
    let named = |variable| format!("The environment sets LEASEHOLD_{variable} to this value.");
    let said = wrong(("WAIT", "soon"), "--name a -- true");
    assert!(said.contains(&named("WAIT")), "{said}");
    let said = wrong(("LEASE", "3ms"), "--name a -- true");
    assert!(said.contains(&named("LEASE")), "{said}");
    let said = wrong(("WAIT", "1s"), "--name a --wait soon -- true");
    assert!(!said.contains("environment"), "{said}");
    // An option for a command is refused without one.
    let said = wrong(("WAIT", "1s"), "--name a --status --wait 2s");
    assert!(said.contains("--wait needs a command"), "{said}");
}

/// A crontab sets them for all its lines.
#[test]
fn certificates_in_variables_are_for_urls_with_tls() {
    let server = Server::start().unwrap();
    let all = [
        ("CA", "none.pem"),
        ("CERT", "none.pem"),
        ("KEY", "none.key"),
    ];
    for args in ["--name a -- true", "--name a --status", "--list"] {
        Tool::spawn(&mut with(&server, &all, args)).ends_with(0);
    }
    let given = "--name a --ca none.pem -- true";
    Tool::spawn(&mut with(&server, &[], given)).ends_with(64);
}

#[test]
fn replicas_is_the_number_that_have_to_confirm() {
    unless_halted(|| {
        let master = Server::start_with(&["--repl-diskless-sync-delay", "0"]).unwrap();
        let few = run(&master, "--replicas 1 --lease 2s", "echo in");
        assert_eq!((few.code, &*few.out), (69, ""), "{few:?}");
        let mut conn = master.connection().unwrap();
        assert!(!conn.exists::<_, bool>(KEY).unwrap());

        let mut replica = Server::start().unwrap();
        let mut copy = replica.connection().unwrap();
        let mut of = redis::cmd("REPLICAOF");
        of.arg("127.0.0.1")
            .arg(master.port())
            .exec(&mut copy)
            .unwrap();
        let args = "--replicas 1 --lease 4s --grace 500ms --wait 10s";
        let mut holder = Tool::holding(&master, args);
        holder.hear("in");
        assert!(copy.exists::<_, bool>(KEY).unwrap());
        replica.kill().unwrap();
        // Its renewals are no longer confirmed.
        let ended = holder.ends_with(70);
        let said = "lockrun: `a` could not be renewed";
        assert!(ended.last().starts_with(said), "{ended:?}");
        assert!(comes_true(|| !conn.exists::<_, bool>(KEY).unwrap()));
        for number in ["0", "101", "-1"] {
            let refused = run(&master, &format!("--replicas {number}"), "true");
            assert!(refused.err.contains("from 1 to 100"), "{refused:?}");
            assert_eq!(refused.code, 64);
        }
    });
}

#[test]
fn a_forgotten_double_dash_gets_a_hint() {
    let said = |args: &[&str]| {
        let mut command = program();
        Tool::spawn(command.args(["--name", "a"]).args(args)).ends_with(64)
    };
    let hint = "Did you forget `--` before the command?";
    let forgotten = said(&["true", "--verbose"]).err;
    assert!(forgotten.contains(hint), "{forgotten}");
    assert!(forgotten.contains("--name <NAME> -- true\n"), "{forgotten}");
    let wrong = said(&["--bogus", "--", "true"]).err;
    assert!(!wrong.contains(hint), "{wrong}");
}

#[test]
fn short_help_and_long_help() {
    let help = |option| Tool::spawn(program().arg(option)).ends_with(0).out;
    let (short, whole) = (help("-h"), help("--help"));
    assert!(short.lines().count() < 60, "{short}");
    for part in [
        "Examples:",
        "Environment:",
        "Exit codes:",
        "The fencing tokens are numbered",
    ] {
        assert!(whole.contains(part) && !short.contains(part), "{part}");
    }
    let (_, options) = short.split_once("Options:\n").unwrap();
    let mut options = options.lines().map(str::trim_start);
    let second_line = options.find(|line| !line.starts_with('-'));
    assert_eq!(second_line, None, "an option takes one line");
    for text in [short, whole] {
        let wide = text.lines().find(|line| line.chars().count() > 100);
        assert_eq!(wide, None);
    }
}
