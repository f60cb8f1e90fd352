//! The errors of lockrun: one sentence with Redis, its address and the lock.

use std::{
    fmt::Display,
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener},
    process::Command,
    thread,
    time::Duration,
};

use redis::cmd;
use serde_json::Value;

use crate::{
    common::{
        Server,
        fake::{Fake, HANG_UP},
        server::free_port,
        wait::{at_once, unless_halted},
    },
    lockrun::tool::{Ended, Tool, lockrun_at},
};

const OLD: &[u8] = b"$22\r\nredis_version:5.0.14\r\n\r\n";
const NEW: &[u8] = b"$21\r\nredis_version:7.2.0\r\n\r\n";
const NOT_RUN: &str = "; the command has not run";

#[track_caller]
fn ends(url: &str, args: &[&str], code: i32) -> Ended {
    Tool::spawn(lockrun_at(url).args(args)).ends_with(code)
}

/// The only line, without the program's name.
#[track_caller]
fn said(url: &str, args: &[&str], code: i32) -> String {
    let ended = ends(url, args, code);
    assert_eq!(ended.err.lines().count(), 1, "{ended:?}");
    let line = ended.last().strip_prefix("lockrun: ").unwrap().to_owned();
    for word in [
        "Lock::",
        "pool",
        "not executed",
        "os error",
        "script:",
        "user_script",
    ] {
        assert!(!line.contains(word), "{line}");
    }
    line
}

fn at(user: &str, port: impl Display, path: &str) -> String {
    format!("redis://{user}127.0.0.1:{port}/{path}")
}

#[test]
fn a_failed_connection_says_why() {
    let server = Server::start_with(&["--requirepass", "right"]).unwrap();
    let port = server.port();
    let here = format!("redis at 127.0.0.1:{port}");
    let (closed, web) = (free_port().unwrap(), web_server());
    // Longer than a name can be, so no resolver is asked.
    let unknown = "x".repeat(64);
    let cases = [
        (
            at("", port, ""),
            format!("{here} requires a password (NOAUTH), and the URL has none"),
        ),
        (
            at(":wrong@", port, ""),
            format!("{here} rejects the user or the password (WRONGPASS)"),
        ),
        (
            at(":right@", port, "99"),
            format!("{here} refused the connection: DB index is out of range"),
        ),
        (
            at("", web, ""),
            format!("redis at 127.0.0.1:{web} does not answer like a Redis server"),
        ),
        (
            at("", &closed, ""),
            format!("cannot reach redis at 127.0.0.1:{closed}: connection refused"),
        ),
        (
            format!("redis://[::1]:{closed}/"),
            format!("cannot reach redis at [::1]:{closed}: "),
        ),
        (
            format!("redis://{unknown}.invalid/"),
            format!("cannot reach redis at {unknown}.invalid:6379: failed to lookup"),
        ),
        (
            format!("redis+sentinel://127.0.0.1:{closed}/m"),
            format!(
                "no sentinel of 1 has named the master `m`: 127.0.0.1:{closed} cannot be \
                 reached: connection refused"
            ),
        ),
        (
            format!("redis+cluster://127.0.0.1:{closed}/"),
            format!(
                "no node of the cluster has returned the map of slots: 127.0.0.1:{closed} cannot be \
                 reached: connection refused"
            ),
        ),
    ];
    at_once(cases, |(url, why)| {
        for (args, what) in [
            (&["--", "true"][..], "lock"),
            (&["--status"], "inspect"),
            (&["--force-release"], "release"),
        ] {
            let line = said(&url, args, 69);
            assert!(
                line.starts_with(&format!("cannot {what} `a`: {why}")),
                "{line}"
            );
            assert_eq!(line.ends_with(NOT_RUN), what == "lock", "{line}");
        }
        let to_scripts = ends(&url, &["--json", "--", "true"], 69).err;
        let to_operators = ends(&url, &["--json", "--status"], 69).out;
        for line in [to_scripts, to_operators] {
            let said: Value = serde_json::from_str(&line).unwrap();
            assert!(said["message"].as_str().unwrap().contains(&why), "{said}");
        }
    });
}

#[test]
fn a_refusal_is_a_sentence_without_a_script_hash() {
    let cases: [(&str, &[&str], &str); 6] = [
        (
            "maxmemory",
            &["CONFIG", "SET", "maxmemory", "1"],
            "has reached its maxmemory (OOM)",
        ),
        (
            "min-replicas-to-write",
            &["CONFIG", "SET", "min-replicas-to-write", "1"],
            "has fewer replicas than its min-replicas-to-write (NOREPLICAS)",
        ),
        (
            "a replica",
            &["REPLICAOF", "127.0.0.1", "1"],
            "is a replica, which accepts no writes (READONLY)",
        ),
        (
            "without its master",
            &["CONFIG", "SET", "replica-serve-stale-data", "no"],
            "is a replica without a link to its master (MASTERDOWN)",
        ),
        (
            "scripts",
            &["ACL", "SETUSER", "default", "-evalsha", "-eval"],
            "denies it (ACL): ",
        ),
        (
            "TIME",
            &["ACL", "SETUSER", "default", "-time"],
            "denies it (ACL): ",
        ),
    ];
    at_once(cases, |(case, set, refusal)| {
        let server = Server::start().unwrap();
        let mut conn = server.connection().unwrap();
        if case == "without its master" {
            let of = ["127.0.0.1", "1"];
            cmd("REPLICAOF").arg(&of).exec(&mut conn).unwrap();
        }
        cmd(set[0]).arg(&set[1..]).exec(&mut conn).unwrap();
        let url = at("", server.port(), "");
        let line = said(&url, &["--", "true"], 69);
        let why = format!(
            "cannot lock `a`: redis at 127.0.0.1:{} {refusal}",
            server.port()
        );
        assert!(line.starts_with(&why), "{case}: {line}");
        assert!(line.ends_with(NOT_RUN), "{case}: {line}");
    });
}

#[test]
fn refusals_of_other_servers_are_sentences_too() {
    let cases: [(&[u8], &[u8], i32, &str); 7] = [
        (
            b"-LOADING it\r\n",
            b"",
            69,
            "is still loading its data (LOADING)",
        ),
        (OLD, b"", 69, "is too old (version 5.0.14): "),
        (
            NEW,
            b"-MISCONF it\r\n",
            69,
            "cannot save its data to disk and accepts no writes: see its log (MISCONF)",
        ),
        (
            NEW,
            b"-MOVED 1 10.0.0.9:6379\r\n",
            69,
            "does not have this key, another node of the cluster does: in place of redis:// use \
             a redis+cluster:// URL (MOVED)",
        ),
        (
            NEW,
            b"-ERR unknown command 'EVALSHA', with args beginning with: 's3cret' \r\n",
            69,
            "has no such command: unknown command 'EVALSHA'",
        ),
        (
            NEW,
            HANG_UP,
            69,
            ": the connection was closed; if redis granted the lock, it ends in 1m",
        ),
        (
            NEW,
            b"+OK\r\n",
            69,
            "; if redis granted the lock, it ends in 1m",
        ),
    ];
    at_once(cases, |(info, others, code, what)| {
        let fake = Fake::saying(move |command, _| match command {
            "INFO" => info.to_vec(),
            _ => others.to_vec(),
        });
        let here = format!("redis at 127.0.0.1:{}", fake.port());
        let begins = if what.starts_with([':', ';']) {
            format!("cannot lock `a`: no answer from {here}{what}")
        } else {
            format!("cannot lock `a`: {here} {what}")
        };
        let line = said(&at("", fake.port(), ""), &["--", "true"], code);
        assert!(line.starts_with(&begins), "{line}");
        assert!(
            !line.contains("s3cret") && line.ends_with(NOT_RUN),
            "{line}"
        );
    });
}

#[test]
fn a_wrong_argument_names_its_flag() {
    let server = Server::start().unwrap();
    let url = at("", server.port(), "");
    for (url, args, begins) in [
        (
            "127.0.0.1:6379",
            &["--", "true"][..],
            "--url, or LEASEHOLD_URL: ",
        ),
        (
            &url,
            &["--name", "a", "--", "true"],
            "--name: `a` appears twice",
        ),
        (
            &url,
            &["--once-per", "0s", "--", "true"],
            "--once-per: it must be between",
        ),
    ] {
        let line = said(url, args, 64);
        assert!(line.starts_with(begins), "{line}");
    }
    let url = format!("redis+sentinel://127.0.0.1:{}/m", server.port());
    let line = said(&url, &["--", "true"], 64);
    assert!(
        line.contains("is not a sentinel") && !line.contains("with args"),
        "{line}"
    );
    let url = at("", server.port(), "");
    let ended = ends(&url, &["--", "/no/such"], 127);
    assert_eq!(
        ended.err,
        "lockrun: cannot run /no/such: no such file or directory\n"
    );
}

/// From the start, with a few lines for many attempts.
#[test]
fn no_part_of_a_sentinels_password_is_printed() {
    for (rest, code, names_it) in [
        ("/m?sentinel_password=p@ss/Secret7", 69, true),
        (
            "/m?protocol=resp2&sentinel_password=p?ss@x/Secret7",
            69,
            true,
        ),
        ("?sentinel_password=p@ss/Secret7", 64, false),
        ("/m?sentinel_password=p@ss&Secret7", 64, false),
        ("/m?sentinel_password=p#Secret7", 64, false),
    ] {
        let url = format!("redis+sentinel://127.0.0.1:1{rest}");
        for args in [&["--", "true"][..], &["--status"], &["-v", "--", "true"]] {
            let ended = ends(&url, args, code);
            assert!(!ended.err.contains("Secret7"), "{ended:?}");
            assert_eq!(ended.err.contains("the master `m`"), names_it, "{ended:?}");
        }
    }
}

/// Root, whom no limit of processes binds, runs it as users that have no other process.
#[test]
fn a_low_limit_of_processes_is_one_line() {
    let mut other_user = Command::new("setpriv");
    other_user.args(["--reuid=54000", "--clear-groups", "prlimit", "--version"]);
    if !other_user.output().is_ok_and(|it| it.status.success()) {
        return;
    }
    let server = Server::start().unwrap();
    at_once(1..16, |limit| {
        let mut command = Command::new("prlimit");
        let user = format!("--reuid={}", 54_000 + limit);
        command.args([
            &format!("--nproc={limit}"),
            "setpriv",
            "--clear-groups",
            &user,
        ]);
        let lockrun = lockrun_at(&server.url());
        command.arg(lockrun.get_program()).args(lockrun.get_args());
        command.args(["--prefix", &format!("{limit}:"), "--", "true"]);
        let ended = Tool::spawn(&mut command).ends();
        if ended.code != 0 {
            assert_eq!(ended.code, 71, "{limit}: {ended:?}");
            assert_eq!(ended.err.lines().count(), 1, "{limit}: {ended:?}");
            assert!(!ended.err.contains("whole buffer"), "{limit}: {ended:?}");
        }
    });
}

#[test]
fn a_wait_continues_while_redis_is_down_and_says_so() {
    unless_halted(|| {
        let mut server = Server::start().unwrap();
        server.kill().unwrap();
        let args = ["--wait", "1h", "--verbose", "--", "true"];
        let mut tool = Tool::spawn(lockrun_at(&server.url()).args(args));
        let (lines, here) = (
            tool.errors(),
            format!("redis at 127.0.0.1:{}", server.port()),
        );
        let heard = || lines.recv_timeout(Duration::from_secs(10)).unwrap();
        assert_eq!(
            heard(),
            format!("lockrun: acquiring `a` from {here}, waiting up to 1h")
        );
        let down =
            format!("lockrun: cannot reach {here}: connection refused; retrying for another 59m 5");
        for _ in 0..2 {
            let line = heard();
            assert!(line.starts_with(&down), "{line}");
        }
        server.restart().unwrap();
        let last = loop {
            let line = heard();
            if !line.contains("; retrying for another 59m 5") {
                break line;
            }
        };
        assert!(last.contains("acquired `a`"), "{last}");
        tool.ends_with(0);
    });
}

/// It says how the time was spent.
#[test]
fn a_wait_that_ends_without_redis_says_how_long_it_waited() {
    let closed = free_port().unwrap();
    let line = said(&at("", &closed, ""), &["--wait", "300ms", "--", "true"], 69);
    let why = format!(
        "cannot lock `a` within 300ms: cannot reach redis at 127.0.0.1:{closed}: connection \
         refused{NOT_RUN}"
    );
    assert_eq!(line, why);
}

#[test]
fn a_wait_ended_by_a_refusal_does_not_claim_its_whole_timeout() {
    let server = Server::start_with(&["--requirepass", "right"]).unwrap();
    let url = at(":wrong@", server.port(), "");
    let line = said(&url, &["--wait", "1h", "--", "true"], 69);
    assert!(line.starts_with("cannot lock `a`: redis at "), "{line}");
}

#[test]
fn an_outage_during_the_command_prints_a_few_lines() {
    unless_halted(|| {
        let mut server = Server::start().unwrap();
        let mut tool = Tool::holding(&server, "--lease 9s --grace 100ms --verbose");
        let lines = tool.errors();
        tool.hear("in");
        server.kill().unwrap();
        tool.silence();
        tool.ends_with(70);
        let all: Vec<_> = lines.iter().collect();
        let fails: Vec<_> = all
            .iter()
            .filter(|it| it.contains("cannot renew `a`: "))
            .collect();
        // Dozens of attempts, and two texts.
        assert!((2..10).contains(&fails.len()), "{all:?}");
        let again = fails
            .iter()
            .all(|it| it.contains("; retrying for another "));
        assert!(again, "{all:?}");
    });
}

/// Answers like a server that is often mistaken for Redis.
fn web_server() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut stream = stream;
            let _ = stream.read(&mut [0; 64]);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    port
}
