//! At most N commands at once: `--permits N`.

use std::time::Duration;

use leasehold::{Lease, Lock, Locks, Options, Owner};
use redis::Commands;
use serde_json::{Value, json};

use crate::{
    common::{Server, wait::unless_halted},
    lockrun::tool::{KEY, Tool, ask, has_asked, json, lockrun, program, run},
};

const THREE: &str = "--permits 3";

/// This many lockruns at work at the same time.
fn all(server: &Server, args: &str, number: usize) -> Vec<Tool> {
    let all = (0..number).map(|_| {
        let mut tool = Tool::holding(server, args);
        tool.hear("in");
        tool
    });
    all.collect()
}

fn semaphore(server: &Server, permits: u32) -> Lock {
    let locks = Locks::connect(&server.url()).unwrap();
    locks.semaphore("a", permits)
}

/// Acquires a permit with this owner name, for this many seconds.
fn held_by(name: &str, seconds: u64, lock: &Lock) -> Lease {
    let options = Options::new()
        .owner(Owner::new(name).unwrap())
        .lease(Duration::from_secs(seconds))
        .renewal(false);
    let lock = lock.clone().with(options);
    lock.try_acquire().unwrap().unwrap()
}

#[test]
fn three_of_four_run_at_once_and_the_fourth_runs_after_one_ends() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let mut held = all(&server, THREE, 3);
        let fourth = run(&server, &format!("{THREE} --quiet"), "echo in");
        assert_eq!((fourth.code, &*fourth.out, &*fourth.err), (75, "", ""));
        let mut fourth = Tool::start(
            &server,
            &format!("{THREE} --wait 20s"),
            "echo in; read go; exit 4",
        );
        has_asked(&server, 4);
        let mut conn = server.connection().unwrap();
        assert_eq!(conn.zcard::<_, u64>(KEY).unwrap(), 3);
        assert_eq!(held.remove(1).finish().code, 0);
        fourth.hear("in");
        assert_eq!(conn.zcard::<_, u64>(KEY).unwrap(), 3);
        for tool in &mut held {
            tool.echoes("still here");
        }
        fourth.tells("go");
        fourth.ends_with(4);
        for tool in held {
            assert_eq!(tool.finish().code, 0);
        }
        let left: Vec<String> = conn.keys("*").unwrap();
        assert_eq!(left, [""; 0]);
    });
}

#[test]
fn losing_a_permit_ends_only_its_own_command() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let mut held = all(&server, THREE, 3);
        let loser = held.remove(1);
        let seen = semaphore(&server, 3).inspect().unwrap();
        let process = format!(":{}:", loser.pid());
        let is_loser = |owner: &Owner| owner.as_str().contains(&process);
        let mut holders = seen.holders().iter();
        let theirs = holders.find(|holder| holder.owner().is_some_and(is_loser));
        let theirs = theirs.unwrap().token().unwrap().to_string();
        let mut conn = server.connection().unwrap();
        assert_eq!(conn.zrem::<_, _, u64>(KEY, theirs).unwrap(), 1);
        let ended = loser.ends_with(70);
        let said = "lockrun: a permit of `a` was taken away: the command was ended, ";
        assert!(ended.last().starts_with(said), "{ended:?}");
        for tool in &mut held {
            tool.echoes("still here");
        }

        let taken = ask(&server, "--permits 3 --force-release").out;
        let (begin, holders) = taken.trim_end().split_once(": taken away from ").unwrap();
        assert_eq!(begin, "a");
        let (number, names) = holders.split_once(" holders: ").unwrap();
        assert_eq!((number, names.split(", ").count()), ("2", 2), "{taken}");
        for tool in held {
            tool.ends_with(70);
        }
        assert_eq!(ask(&server, "--force-release").out, "a: was not held\n");
    });
}

#[test]
fn status_names_all_holders_and_counts_free_permits() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let status = |args: &str| {
            let status = ask(&server, &format!("--status {args}"));
            assert_eq!(status.code, 0, "{status:?}");
            status.out
        };
        assert_eq!(status(THREE), "a: free: 3 of 3 permits\n");
        let _first = held_by("first", 30, &semaphore(&server, 3));
        let second = held_by("second", 60, &semaphore(&server, 5));

        let seen = status(THREE);
        assert!(seen.starts_with("a: free: 1 of 3 permits\n"), "{seen}");
        for value in ["first", "since", "unless renewed", "second"] {
            assert!(seen.contains(value), "{value}: {seen}");
        }
        // Only those with another number.
        let counted = |seen: &str| -> Vec<String> {
            let counted = seen
                .lines()
                .filter_map(|it| it.trim().strip_prefix("--permits "));
            counted.map(|it| it.trim().to_owned()).collect()
        };
        assert_eq!(counted(&seen), ["5"]);

        assert!(status("--permits 2").starts_with("a: held: 2 of 2 permits\n"));
        assert!(status("--permits 1").starts_with("a: held: 2 permits, more than 1\n"));
        let seen = status("");
        assert!(
            seen.starts_with("a: held: a semaphore, permits taken: 2\n"),
            "{seen}"
        );
        assert!(seen.contains("first") && seen.contains("second"), "{seen}");
        assert_eq!(counted(&seen), ["3", "5"]);
        let taken = {
            second.release().unwrap();
            ask(&server, "--force-release").out
        };
        assert_eq!(taken, "a: taken away from 1 holder: first\n");
        assert_eq!(status(""), "a: free\n");
    });
}

/// A script asks whether a command would run now.
#[test]
fn json_reports_a_semaphore_without_free_permits_as_held() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let status = |args: &str| json(&ask(&server, &format!("--status --json {args}")).out);
        let _held = held_by("first", 30, &semaphore(&server, 2));
        let cases = [
            (THREE, json!([false, 3, 2, true])),
            ("--permits 1", json!([true, 1, 0, true])),
            ("", json!([true, null, null, true])),
        ];
        for (args, expected) in cases {
            let seen = status(args);
            let parts = ["held", "permits", "free_permits", "semaphore"];
            assert_eq!(
                Value::from_iter(parts.map(|part| seen[part].clone())),
                expected
            );
            assert_eq!(seen["holders"][0]["owner"], "first");
            assert_eq!(seen["holders"][0]["permits"], 2);
        }
        let taken = json(&ask(&server, "--force-release --json").out);
        assert_eq!(taken["released"], true);
        assert_eq!(taken["semaphore"], true);
        assert_eq!(taken["holders"].as_array().map(Vec::len), Some(1));
        assert_eq!(status("")["semaphore"], false);
    });
}

#[test]
fn a_refusal_names_the_holders_and_when_a_permit_becomes_free() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let lock = semaphore(&server, 9);
        let owners = ["first", "second", "third", "fourth"];
        let _held = [0, 1, 2, 3].map(|at| held_by(owners[at], 630 + 100 * at as u64, &lock));
        let refused = |args: &str| {
            let refused = run(&server, args, "echo in");
            assert_eq!((refused.code, &*refused.out), (75, ""), "{refused:?}");
            refused.err
        };
        let named = "first, second, third and 1 more; the next is free in";
        let all = refused("--permits 4");
        let said = format!("lockrun: `a` is busy: others hold 4 of 4 permits: {named} 10m ");
        assert!(all.starts_with(&said), "{all}");
        // Three must end before fewer than two are held.
        let more = refused("--permits 2");
        let said =
            format!("lockrun: `a` is busy: others hold 4 permits, more than 2: {named} 13m ");
        assert!(more.starts_with(&said), "{more}");
        let told = json(&refused("--permits 4 --json"));
        assert_eq!(told["permits"], 4);
        assert_eq!(told["holders"].as_array().map(Vec::len), Some(4));
    });
}

#[test]
fn options_that_do_not_fit_permits_are_refused() {
    let refused = |args: &str| {
        let mut command = program();
        command.args(["--name", "a", "--url", "redis://127.0.0.1:1/"]);
        let command = command.args(args.split(' '));
        let ended = Tool::spawn(command).ends_with(64);
        assert_eq!(ended.out, "");
        ended.err
    };
    for number in ["0", "10001", "99999999999", "-1", "1.5", "three", ""] {
        for what in ["-- true", "--status", "--force-release"] {
            let said = refused(&format!("--permits {number} {what}"));
            let reason = "must be a whole number from 1 to 10000";
            assert!(said.contains(reason), "{number}: {said}");
        }
    }
    let said = refused("--permits 1 --once-per 1h -- true");
    assert!(
        said.contains("'--permits <N>' cannot be used with '--once-per"),
        "{said}"
    );
}

/// An inherited token belongs to another lock.
#[test]
fn a_command_with_a_permit_gets_no_fencing_token() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let mut command = lockrun(&server);
        command.args(["--permits", "10000", "--verbose", "--", "sh", "-c"]);
        command.arg("echo ${LEASEHOLD_FENCING_TOKEN-none}");
        let ended = Tool::spawn(command.env("LEASEHOLD_FENCING_TOKEN", "7")).ends_with(0);
        assert_eq!(ended.out, "none\n");
        let said = "acquired a permit of `a` (--permits 10000), without a fencing token";
        assert!(ended.err.contains(said), "{ended:?}");
        let ended = json(&run(&server, "--permits 2 --json", "true").err);
        assert!(ended["fencing_token"].is_null(), "{ended}");
    });
}

#[test]
fn a_semaphore_and_a_lock_with_the_same_name_refuse_each_other() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let refused = |args: &str, found: &str| {
            let refused = run(&server, args, "echo in");
            assert_eq!((refused.code, &*refused.out), (64, ""), "{refused:?}");
            assert!(refused.err.contains(found), "{refused:?}");
        };
        let mut lock = Tool::holding(&server, "");
        lock.hear("in");
        refused("--permits 1 --wait 20s", "a lock without permits");
        let seen = ask(&server, "--permits 1 --status").out;
        assert!(
            seen.starts_with("a: held: a lock without permits\n"),
            "{seen}"
        );
        let seen = json(&ask(&server, "--permits 1 --status --json").out);
        assert_eq!(
            (&seen["held"], &seen["free_permits"]),
            (&true.into(), &Value::Null)
        );
        assert_eq!(lock.finish().code, 0);
        let mut permit = Tool::holding(&server, "--permits 1");
        permit.hear("in");
        refused("--wait 20s", "a semaphore");
        assert_eq!(permit.finish().code, 0);
    });
}
