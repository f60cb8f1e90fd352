//! Showing the holder, force release, and the output for scripts.

use leasehold::{Locks, Options, Owner};
use redis::Commands;
use serde_json::Value;

use crate::{
    common::{Server, wait::unless_halted},
    lockrun::tool::{KEY, LONG, Tool, ask, json, lockrun, program, run},
};

#[test]
fn status_shows_the_holder() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let free = ask(&server, "--status");
        assert_eq!((free.code, &*free.out), (0, "a: free\n"));
        let free = json(&ask(&server, "--status --json").out);
        assert_eq!(free["held"], false);

        let mut tool = Tool::start(&server, "", "echo $LEASEHOLD_FENCING_TOKEN; exec cat");
        let fence = tool.line();
        let held = ask(&server, "--status");
        assert_eq!(held.code, 0);
        for text in ["a: held", "since", "ago", "unless renewed", &fence] {
            assert!(held.out.contains(text), "{text}: {}", held.out);
        }
        let held = json(&ask(&server, "--status --json").out);
        assert_eq!(held["held"], true);
        let holder = &held["holders"][0];
        let owner = holder["owner"].as_str().unwrap();
        assert!(owner.contains(&format!(":{}:", tool.pid())), "{owner}");
        assert_eq!(holder["fencing_token"].to_string(), fence);
        let left = holder["remaining_ms"].as_u64().unwrap();
        assert!((30_000..=60_000).contains(&left), "{left}");
        assert!(holder["since"].as_str().unwrap().ends_with('Z'));
        assert_eq!(tool.finish().code, 0);
    });
}

#[test]
fn a_forced_release_ends_the_command() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let script = format!("trap 'echo told; exit 3' TERM; echo in; {LONG}");
        let mut tool = Tool::start(&server, "--json", &script);
        tool.hear("in");
        let taken = ask(&server, "--force-release");
        assert_eq!(taken.code, 0);
        assert!(taken.out.starts_with("a: taken away from "), "{taken:?}");
        let ended = tool.ends_with(70);
        assert_eq!(ended.out, "told\n");
        let outcome = json(ended.last());
        assert_eq!(outcome["outcome"], "lost");
        assert_eq!(outcome["exit_code"], 70);
        assert_eq!(outcome["command_exit_code"], 3);
        assert_eq!(outcome["lost_reason"], "taken_away");
        let message = "`a` was taken away: the command was ended, exit status: 3";
        assert_eq!(outcome["message"], message);

        let taken = ask(&server, "--force-release --json");
        assert_eq!(
            (taken.code, &json(&taken.out)["released"]),
            (0, &false.into())
        );
    });
}

#[test]
fn json_reports_every_outcome() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let ended = run(&server, "--json", "echo out; exit 3");
        assert_eq!((ended.code, &*ended.out), (3, "out\n"));
        let outcome = json(&ended.err);
        assert_eq!(outcome["name"], "a");
        assert_eq!(outcome["outcome"], "ended");
        assert_eq!(outcome["command_exit_code"], 3);
        assert!(outcome["fencing_token"].as_u64() > Some(0));
        assert!(outcome["lost_reason"].is_null());
        assert_eq!(outcome["holders"], Value::Array(vec![]));
        assert!(outcome["held_ms"].is_u64() && outcome["waited_ms"].is_u64());

        let killed = json(&run(&server, "--json", "kill -KILL $$").err);
        assert_eq!(
            (&killed["command_signal"], &killed["exit_code"]),
            (&9.into(), &137.into())
        );

        let mut holder = Tool::holding(&server, "");
        holder.hear("in");
        let busy = json(&run(&server, "--json", "true").err);
        assert_eq!(
            (&busy["outcome"], &busy["exit_code"]),
            (&"busy".into(), &75.into())
        );
        let owner = busy["holders"][0]["owner"].as_str().unwrap();
        assert!(owner.contains(&format!(":{}:", holder.pid())), "{busy}");
        assert!(busy["holders"][0]["remaining_ms"].as_u64() > Some(30_000));
        assert_eq!(holder.finish().code, 0);

        let mut nothing = lockrun(&server);
        let not_run = Tool::spawn(nothing.args(["--json", "--", "/no/such/program"])).ends();
        let not_run = json(not_run.last());
        assert_eq!(
            (&not_run["outcome"], &not_run["exit_code"]),
            (&"not_run".into(), &127.into())
        );
        let nameless = |last: &[&str]| {
            let mut nameless = program();
            nameless.args(["--name", "", "--json", "--url", &server.url()]);
            Tool::spawn(nameless.args(last)).ends_with(64)
        };
        assert_eq!(json(&nameless(&["--", "true"]).err)["outcome"], "usage");
        assert_eq!(json(&nameless(&["--status"]).out)["outcome"], "usage");
    });
}

#[test]
fn a_lock_without_expiry_is_shown_and_cleared() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let mut conn = server.connection().unwrap();
        let _: () = conn.set(KEY, "somebody").unwrap();
        let busy = run(&server, "", "echo in");
        let said = "lockrun: `a` is busy: held by someone unknown; the lock never ends\n";
        assert_eq!((busy.code, &*busy.err), (75, said));
        let status = ask(&server, "--status").out;
        assert!(status.ends_with("  ends           never\n"), "{status}");
        assert_eq!(ask(&server, "--force-release").code, 0);
        assert_eq!(run(&server, "", "echo in").out, "in\n");
    });
}

#[test]
fn a_holders_name_cannot_control_the_terminal() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let owner = Owner::new("evil\u{1b}[2J\na: free").unwrap();
        let locks = Locks::connect(&server.url()).unwrap();
        let locks = locks.with(Options::new().owner(owner));
        let _lease = locks.lock("a").try_acquire().unwrap().unwrap();
        let status = ask(&server, "--status").out;
        assert!(!status.contains('\u{1b}'), "{status:?}");
        assert!(!status.lines().any(|line| line == "a: free"), "{status:?}");
        let busy = run(&server, "", "true").err;
        assert!(busy.contains("held by evil"), "{busy:?}");
        assert!(!busy.contains('\u{1b}') && busy.lines().count() == 1);
    });
}

#[test]
fn all_times_have_the_same_format() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let mut conn = server.connection().unwrap();
        // One second more than expected, because some milliseconds pass.
        for (secs, text) in [
            (43, "42s"),
            (101, "1m 40s"),
            (3 * 3_600 + 121, "3h 2m"),
            (2 * 86_400 + 4 * 3_600 + 61, "2days 4h"),
        ] {
            let _: () = conn.set_ex(KEY, "somebody", secs).unwrap();
            let status = ask(&server, "--status").out;
            let ends = format!("  ends           in {text}, unless renewed\n");
            assert!(status.ends_with(&ends), "{status}");
            let busy = run(&server, "", "true").err;
            let another = format!(" for another {text}, unless renewed\n");
            assert!(busy.ends_with(&another), "{busy}");
        }
        let _: () = conn.pset_ex(KEY, "somebody", 900).unwrap();
        let status = ask(&server, "--status").out;
        assert!(status.ends_with("ms, unless renewed\n"), "{status}");
    });
}
