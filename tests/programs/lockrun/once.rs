//! A command that runs once per period, on any host.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use redis::cmd;

use crate::{
    common::{
        Server,
        wait::{at_once, comes_true},
    },
    lockrun::tool::{LONG, Tool, ask, is_ignored, is_locked, ms, run},
};

const ONCE: &str = "--once-per 20h";

/// The age and the host of the last run, if the text contains them.
fn ago_by(said: &str) -> Option<(Duration, &str)> {
    let (_, run) = said.split_once("was run ")?;
    let (ago, by) = run.split_once(" ago by ")?;
    Some((humantime::parse_duration(ago).ok()?, by))
}

#[test]
fn the_first_host_runs_it_and_the_others_say_so_and_exit_0() {
    let server = Server::start().unwrap();
    let began = Instant::now();
    let first = run(&server, ONCE, "echo made");
    assert_eq!((first.code, &*first.out, &*first.err), (0, "made\n", ""));
    assert!(!is_locked(&server));
    let second = run(&server, ONCE, "echo made");
    assert_eq!((second.code, &*second.out), (0, ""));
    let said = second.last();
    let (ago, by) = ago_by(said).unwrap();
    assert!(
        said.starts_with("lockrun: `a` was run ") && by.ends_with(":main"),
        "{said}"
    );
    assert!(ago <= began.elapsed(), "{said}");
    let third = run(&server, &format!("{ONCE} --quiet"), "echo made");
    assert_eq!((third.code, &*third.out, &*third.err), (0, "", ""));
    let told = run(&server, &format!("{ONCE} --json"), "echo made").err;
    for part in [
        r#""outcome":"has_been_run""#,
        r#""exit_code":0"#,
        r#""last_run":{"ago_ms":"#,
        r#""command_exit_code":null"#,
    ] {
        assert!(told.contains(part), "{told}");
    }
    let status = ask(&server, "--status").out;
    let (ago, _) = ago_by(&status).unwrap();
    assert!(
        status.contains("a: was run ") && ago <= began.elapsed(),
        "{status}"
    );
    let status = ask(&server, "--status --json").out;
    assert!(status.contains(r#""last_run":{"ago_ms":"#), "{status}");
    // Without a period, or after the period, it runs again.
    assert_eq!(run(&server, "", "echo again").out, "again\n");
    thread::sleep(ms(20));
    assert_eq!(run(&server, "--once-per 10ms", "echo again").out, "again\n");
}

#[test]
fn a_run_that_failed_was_terminated_or_lost_its_lock_runs_again() {
    let server = Server::start().unwrap();
    assert_eq!(run(&server, ONCE, "exit 3").code, 3);
    assert_eq!(run(&server, ONCE, "kill -9 $$").code, 128 + 9);
    let mut tool = Tool::start(&server, ONCE, &format!("echo in; {LONG}"));
    tool.hear("in").signal(Signal::SIGTERM);
    tool.ends_with(128 + 15);
    let mut tool = Tool::start(
        &server,
        ONCE,
        &format!("trap 'exit 0' TERM; echo in; {LONG}"),
    );
    tool.hear("in");
    assert_eq!(ask(&server, "--force-release").code, 0);
    tool.ends_with(70);
    let mut command = crate::lockrun::tool::lockrun(&server);
    command.args(["--once-per", "20h", "--", "/no/such/program"]);
    Tool::spawn(&mut command).ends_with(127);
    assert!(!ask(&server, "--status").out.contains("was run"));
    assert_eq!(run(&server, ONCE, "echo made").out, "made\n");
}

#[test]
fn a_terminated_run_is_not_marked_as_done_whatever_its_exit_code() {
    let server = Server::start().unwrap();
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        if is_ignored(signal) {
            continue;
        }
        let name = signal.as_str().trim_start_matches("SIG");
        let script = format!("trap 'exit 0' {name}; echo in; {LONG}");
        let mut tool = Tool::start(&server, ONCE, &script);
        tool.hear("in").signal(signal);
        let ended = tool.ends_with(0);
        let said = "lockrun: `a` may be run again: lockrun got TERM or INT";
        assert_eq!(ended.last(), said);
        assert!(!is_locked(&server));
    }
    assert_eq!(run(&server, ONCE, "echo made").out, "made\n");
}

/// On a server that is gone, and on a silent one.
#[test]
fn a_command_that_exits_by_itself_keeps_its_exit_code() {
    let cases = [true, false].map(|is_gone| ["", ONCE].map(|once| (is_gone, once)));
    at_once(cases.concat(), |(is_gone, once)| {
        let mut server = Server::start().unwrap();
        let mut tool = Tool::holding(&server, &format!("--lease 3s --grace 500ms {once}"));
        tool.hear("in");
        if is_gone {
            server.kill().unwrap();
        } else {
            server.freeze().unwrap();
        }
        let ended = tool.finish();
        assert_eq!(ended.code, 0, "{is_gone} {once}: {ended:?}");
        let (said, begins) = (
            ended.last(),
            "lockrun: `a` may be run again: cannot mark the run as completed",
        );
        assert!(said.starts_with(begins) == (once == ONCE), "{ended:?}");
    });
}

/// The server refuses from the middle of the run until after the lease. One that is short of memory
/// does not refuse a mark.
#[test]
fn a_run_that_ended_well_keeps_its_exit_code_if_its_mark_is_refused() {
    type Refusal = (&'static str, fn(&Server));
    let refusals: [Refusal; 2] = [
        ("(MISCONF)", |server| {
            fs::remove_dir_all(server.directory()).unwrap();
            set(server, &["save", "1000 1"]);
            let mut conn = server.connection().unwrap();
            let cannot_save = || {
                let _ = cmd("BGSAVE").query::<()>(&mut conn);
                let state: String = cmd("INFO").arg("persistence").query(&mut conn).unwrap();
                state.contains("rdb_last_bgsave_status:err")
            };
            assert!(comes_true(cannot_save));
        }),
        ("(NOREPLICAS)", |server| {
            set(server, &["min-replicas-to-write", "1"]);
        }),
    ];
    let leases = ["1500ms", "2s", "2500ms"];
    let cases = refusals.map(|case| leases.map(|lease| (case, lease)));
    at_once(cases.concat(), |((name, refuse), lease)| {
        let server = Server::start().unwrap();
        let mut tool = Tool::holding(&server, &format!("--lease {lease} {ONCE}"));
        tool.hear("in");
        refuse(&server);
        let ended = tool.finish();
        assert_eq!(ended.code, 0, "{ended:?}");
        let begins = "lockrun: `a` may be run again: cannot mark the run as completed: ";
        let said = ended.last();
        assert!(said.starts_with(begins) && said.contains(name), "{said}");
    });
}

fn set(server: &Server, what: &[&str]) {
    let mut set = cmd("CONFIG");
    set.arg("SET").arg(what);
    set.query::<()>(&mut server.connection().unwrap()).unwrap();
}
