//! A command under several locks at once: `--name a --name b`.

use leasehold::{Lease, Locks, Options, Owner};
use redis::Commands;
use serde_json::{Value, json};

use crate::{
    common::{
        Server, tell,
        wait::{comes_true, unless_halted},
    },
    lockrun::tool::{Tool, ask, has_asked, json, lockrun_at, program, run},
};

/// In addition to the lock `a`.
const BOTH: &str = "--name b";
const KEYS: [&str; 2] = ["lock:a", "lock:b"];

/// The keys of the held locks.
fn held(server: &Server) -> Vec<String> {
    let mut conn = server.connection().unwrap();
    let mut keys: Vec<String> = conn.keys("lock:*").unwrap();
    keys.sort();
    keys
}

fn by_somebody(server: &Server, name: &str) -> Lease {
    let owner = Owner::new("somebody").unwrap();
    let locks = Locks::connect(&server.url()).unwrap();
    let locks = locks.with(Options::new().owner(owner));
    locks.lock(name).try_acquire().unwrap().unwrap()
}

fn delete(server: &Server, key: &str) {
    let deleted = server.connection().unwrap().del(key);
    assert_eq!(deleted, Ok(1), "{key}");
}

#[test]
fn the_command_runs_under_all_locks_and_they_are_released_after_it() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let mut tool = Tool::holding(&server, BOTH);
        tool.hear("in");
        assert_eq!(held(&server), KEYS);
        let ended = tool.finish();
        assert_eq!((ended.code, &*ended.err), (0, ""));
        assert_eq!(held(&server), [""; 0]);
        assert_eq!(run(&server, BOTH, "exit 4").code, 4);
    });
}

#[test]
fn a_busy_lock_is_named_with_its_holder_and_no_lock_is_held() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let _held = by_somebody(&server, "b");
        let refused = |args: &str| {
            let refused = run(&server, &format!("{BOTH} --name c {args}"), "echo in");
            assert_eq!((refused.code, &*refused.out), (75, ""), "{refused:?}");
            assert_eq!(held(&server), ["lock:b"]);
            refused.err
        };
        let said = refused("");
        let begins = "lockrun: `b` is busy: held by somebody for another ";
        assert!(said.starts_with(begins), "{said}");
        assert_eq!(refused("--quiet"), "");
        // After a wait the holder may hang.
        let said = refused("--wait 300ms --quiet");
        assert!(said.starts_with(begins), "{said}");
        let told = json(&refused("--json"));
        assert_eq!(told["name"], "b");
        assert_eq!(told["names"], json!(["a", "b", "c"]));
        assert_eq!(told["holders"][0]["owner"], "somebody");
        assert_eq!(told["fencing_tokens"], json!([]));
    });
}

#[test]
fn locks_are_held_while_it_waits_for_the_next() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let other = by_somebody(&server, "b");
        let mut waits = Tool::holding(&server, &format!("{BOTH} --wait 20s"));
        assert!(comes_true(|| held(&server) == KEYS));
        has_asked(&server, 2);
        other.release().unwrap();
        waits.hear("in");
        assert_eq!(held(&server), KEYS);
        assert_eq!(waits.finish().code, 0);
    });
}

#[test]
fn losing_one_lock_ends_the_command_and_releases_the_others() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        for (name, key) in [("a", "lock:a"), ("b", "lock:b")] {
            let mut tool = Tool::holding(&server, &format!("{BOTH} --json"));
            tool.hear("in");
            delete(&server, key);
            let told = json(tool.ends_with(70).last());
            assert_eq!(told["name"], name);
            assert_eq!(told["lost_reason"], "taken_away");
            let said = told["message"].as_str().unwrap();
            let begins = format!("`{name}` was taken away: the command was ended, ");
            assert!(said.starts_with(&begins), "{said}");
            assert_eq!(held(&server), [""; 0]);
        }
    });
}

/// The loss is noticed before the release, or by it.
#[test]
fn locks_lost_just_before_the_end_are_reported() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        for (keys, name) in [(&KEYS[1..], "b"), (&KEYS[..], "a")] {
            let mut tool = Tool::start(&server, BOTH, "echo in; read go; exit 0");
            tool.hear("in");
            for key in keys {
                delete(&server, key);
            }
            tool.tells("go");
            let ended = tool.ends_with(70);
            let said = ended.last();
            let is_told = |name| said.starts_with(&format!("lockrun: `{name}` was taken away: "));
            // Either of two lost locks may be found first.
            assert!(is_told(name) || (keys.len() == 2 && is_told("b")), "{said}");
            assert_eq!(held(&server), [""; 0]);
        }
    });
}

/// Inherited tokens belong to other locks.
#[test]
fn fencing_tokens_follow_the_order_of_the_names() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let locks = Locks::connect(&server.url()).unwrap();
        // So the tokens differ.
        locks
            .lock("a")
            .try_acquire()
            .unwrap()
            .unwrap()
            .release()
            .unwrap();
        let inherited = ["", "_1", "_2", "_3", "_17", "_OF_OURS"];
        let shown = inherited.map(|end| format!("${{LEASEHOLD_FENCING_TOKEN{end}-none}}"));
        let shown = format!("echo {}; exec cat", shown.join(" "));
        let started = |names: &[&str]| {
            let mut command = program();
            command.args(["--url", &server.url()]);
            command.args(names.iter().flat_map(|name| ["--name", name]));
            for end in inherited {
                command.env(format!("LEASEHOLD_FENCING_TOKEN{end}"), "7");
            }
            Tool::spawn(command.args(["--", "sh", "-c", &shown]))
        };
        let fence = |name: &str| {
            let seen = locks.lock(name).inspect().unwrap();
            seen.holders()[0].fencing_token().unwrap().to_string()
        };
        let mut tool = started(&["b = 1", "a"]);
        let line = tool.line();
        let (first, second) = (fence("b = 1"), fence("a"));
        assert_ne!(first, second);
        assert_eq!(line, format!("none {first} {second} none none 7"));
        assert_eq!(tool.finish().code, 0);
        let mut tool = started(&["a"]);
        let line = tool.line();
        assert_eq!(line, format!("{} none none none none 7", fence("a")));
        assert_eq!(tool.finish().code, 0);
    });
}

#[test]
fn text_and_json_report_each_lock() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let said = run(&server, &format!("{BOTH} --verbose"), "true").err;
        let lines: Vec<_> = said.lines().collect();
        let port = server.port();
        let asks = format!("lockrun: acquiring `a`, `b` from redis at 127.0.0.1:{port}");
        assert_eq!(lines[0], asks);
        for (line, name) in lines[1..3].iter().zip(["a", "b"]) {
            let begins = format!("lockrun: acquired `{name}`, fencing token ");
            assert!(line.starts_with(&begins), "{said}");
        }
        let told = json(&run(&server, &format!("{BOTH} --json"), "exit 3").err);
        assert_eq!(told["exit_code"], 3);
        assert_eq!(told["names"], json!(["a", "b"]));
        assert_eq!(
            (&told["name"], &told["fencing_token"]),
            (&Value::Null, &Value::Null)
        );
        let fences = told["fencing_tokens"].as_array().unwrap();
        assert!(
            fences.len() == 2 && fences.iter().all(Value::is_u64),
            "{told}"
        );
        let told = json(&run(&server, "--json", "true").err);
        assert_eq!(
            (&told["name"], &told["names"]),
            (&json!("a"), &json!(["a"]))
        );
        assert_eq!(told["fencing_tokens"][0], told["fencing_token"]);
    });
}

#[test]
fn operator_commands_answer_for_each_lock() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let mut tool = Tool::holding(&server, BOTH);
        tool.hear("in");
        let status = ask(&server, "--name c --name b --status");
        assert_eq!((status.code, &*status.err), (0, ""));
        let lines = status.out.lines();
        let lines: Vec<_> = lines.filter(|line| !line.starts_with(' ')).collect();
        assert_eq!(lines, ["a: held", "c: free", "b: held"]);
        let status = json(&ask(&server, "--name c --status --json").out);
        let of = |what: &str| -> Vec<_> {
            let all = status.as_array().unwrap().iter();
            all.map(|lock| lock[what].clone()).collect()
        };
        assert_eq!(of("name"), ["a", "c"]);
        assert_eq!(of("held"), [true, false]);

        let taken = ask(&server, "--name b --name c --force-release");
        assert_eq!(taken.code, 0);
        let lines: Vec<_> = taken.out.lines().collect();
        assert!(lines[0].starts_with("a: taken away from "), "{taken:?}");
        assert!(lines[1].starts_with("b: taken away from "), "{taken:?}");
        assert_eq!(lines[2..], ["c: was not held"]);
        tool.ends_with(70);
        let taken = json(&ask(&server, "--name b --force-release --json").out);
        assert_eq!(
            (&taken[1]["name"], &taken[1]["released"]),
            (&json!("b"), &json!(false))
        );
    });
}

#[test]
fn a_key_that_is_not_a_lock_is_reported_and_the_others_are_not_held() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let mut conn = server.connection().unwrap();
        let _: () = conn.rpush("lock:b", "something").unwrap();
        let refused = run(&server, &format!("{BOTH} --wait 20s"), "echo in");
        assert_eq!((refused.code, &*refused.out), (64, ""), "{refused:?}");
        assert!(refused.err.contains("`b`"), "{refused:?}");
        assert_eq!(held(&server), ["lock:b"]);

        let names = format!("{BOTH} --name c --force-release");
        let taken = ask(&server, &names);
        assert_eq!(taken.code, 64);
        assert_eq!(taken.out, "a: was not held\nc: was not held\n");
        assert!(
            taken.err.starts_with("lockrun: cannot release `b`: "),
            "{taken:?}"
        );
        assert_eq!(taken.err.lines().count(), 1);
        let taken = ask(&server, &format!("{names} --json"));
        assert_eq!(taken.code, 64);
        let taken = json(&taken.out);
        assert_eq!(taken[0]["released"], false);
        assert_eq!(
            (&taken[1]["name"], &taken[1]["exit_code"]),
            (&json!("b"), &json!(64))
        );
        assert_eq!(taken[2]["released"], false);

        // The code is that of the first failure.
        tell(&mut conn, "ACL SETUSER default resetkeys ~*a* ~*b*");
        for (names, code) in [("b --name c", 64), ("c --name b", 69)] {
            let status = ask(&server, &format!("--name {names} --status"));
            let taken = ask(&server, &format!("--name {names} --force-release"));
            assert_eq!(taken.code, code, "{taken:?}");
            // A look at a key that is no lock is no failure.
            assert_eq!(status.code, 69, "{status:?}");
        }
    });
}

#[test]
fn options_that_do_not_fit_several_locks_are_refused() {
    let cases = [
        ("a", "--wait 1h -- true", "`a` appears twice"),
        (
            "b",
            "--once-per 1h -- true",
            "--once-per and --permits need a single --name",
        ),
        (
            "b",
            "--permits 2 -- true",
            "--once-per and --permits need a single --name",
        ),
        (
            "b",
            "--permits 2 --status",
            "--once-per and --permits need a single --name",
        ),
        (
            "b",
            "--permits 2 --force-release",
            "--once-per and --permits need a single --name",
        ),
        (
            "",
            "--wait 1h -- true",
            "--name: it must be 1 to 512 bytes long",
        ),
    ];
    for (name, args, reason) in cases {
        let mut command = lockrun_at("redis://127.0.0.1:1/");
        command.args(["--name", name]);
        let ended = Tool::spawn(command.args(args.split(' '))).ends_with(64);
        assert_eq!(ended.out, "");
        assert!(ended.err.contains(reason), "{args}: {ended:?}");
    }
}
