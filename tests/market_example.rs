//! The example `market` as a user runs it. `cargo test` builds it first; before `cargo test --test market_example`,
//! `cargo build --example market` does.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod common;

use std::{
    collections::BTreeSet,
    env, fs,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::Path,
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use common::{Server, server::find_binary};
use redis::{Client, Commands, Connection};
use serde_json::Value;
use tempfile::TempDir;

/// Longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(30);

fn market(args: &[&str]) -> Command {
    let tests = env::current_exe().unwrap();
    let program = tests.ancestors().nth(2).unwrap().join("examples/market");
    assert!(program.exists(), "run `cargo build --example market` first");
    let mut command = Command::new(program);
    command.args(args);
    command
}

/// Starts it; to be ended by [`ended`].
fn started(command: &mut Command) -> Child {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits until it has ended; what it prints fits into a pipe.
fn ended(mut child: Child) -> Output {
    let ends = wait_until(|| child.try_wait().unwrap().is_some());
    if !ends {
        child.kill().unwrap();
    }
    let output = child.wait_with_output().unwrap();
    assert!(ends, "it hangs: {output:?}");
    output
}

fn run(args: &[&str]) -> Output {
    ended(started(&mut market(args)))
}

fn wait_until(mut condition: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while start.elapsed() < LIMIT {
        if condition() {
            return true;
        }
        thread::sleep(Duration::from_millis(5));
    }
    false
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The one line of an error, after its exit code was checked.
#[track_caller]
fn failure(output: &Output, code: i32) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

fn json(file: &Path) -> Vec<Value> {
    serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap()
}

/// To a process or, with a minus, to a whole group.
fn signal(name: &str, process: &str) {
    let status = Command::new("kill")
        .args(["-s", name, "--", process])
        .status();
    assert!(status.unwrap().success());
}

/// Waits until a simulation is under way.
fn wait_for_trade(conn: &mut Connection) {
    assert!(wait_until(|| conn
        .exists::<_, bool>("inventory:buyer-1")
        .unwrap()));
}

fn keys(conn: &mut Connection) -> Vec<String> {
    conn.keys("*").unwrap()
}

/// A stand-in for the redis-server on the PATH, which notes the process and the port of the real one that it becomes.
struct Wrapper {
    folder: TempDir,
}

impl Wrapper {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("server");
        let script = format!(
            "#!/bin/sh\n[ \"$1\" = --port ] && echo \"$$ $2\" >'{}'\nexec '{}' \"$@\"\n",
            folder.path().join("note").display(),
            find_binary().unwrap(),
        );
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Self { folder }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = market(args);
        command.env("LEASEHOLD_REDIS_SERVER", self.folder.path().join("server"));
        command
    }

    fn run(&self, args: &[&str]) -> Child {
        started(&mut self.command(args))
    }

    fn note(&self) -> Option<(u32, u16)> {
        let note = fs::read_to_string(self.folder.path().join("note")).ok()?;
        let (process, port) = note.strip_suffix('\n')?.split_once(' ')?;
        Some((process.parse().ok()?, port.parse().ok()?))
    }

    /// Waits until the simulation is under way on it. Returns the server's process.
    fn wait_for_trade(&self) -> u32 {
        assert!(wait_until(|| self.note().is_some()));
        let (process, port) = self.note().unwrap();
        let client = Client::open(format!("redis://127.0.0.1:{port}/")).unwrap();
        let mut connection = None;
        assert!(wait_until(|| {
            connection = client.get_connection().ok();
            connection.is_some()
        }));
        wait_for_trade(&mut connection.unwrap());
        process
    }
}

/// A process that was waited for by its parent is gone at once.
fn is_alive(process: u32) -> bool {
    let kill = Command::new("kill")
        .args(["-0", &process.to_string()])
        .stderr(Stdio::null())
        .status();
    kill.unwrap().success()
}

#[test]
fn a_default_run_reports_nine_cells_and_stops_its_server() {
    let folder = tempfile::tempdir().unwrap();
    let (json_file, chart) = (folder.path().join("a.json"), folder.path().join("a.svg"));
    let wrapper = Wrapper::new();
    let output = ended(wrapper.run(&[
        "--seconds",
        "0.1",
        "--json",
        json_file.to_str().unwrap(),
        "--chart",
        chart.to_str().unwrap(),
    ]));
    assert!(output.status.success(), "{output:?}");
    assert!(!is_alive(wrapper.note().unwrap().0));

    let rows = json(&json_file);
    let cells: Vec<_> = rows
        .iter()
        .map(|row| {
            let number = |field: &str| row[field].as_u64().unwrap();
            let strategy = row["strategy"].as_str().unwrap();
            (number("listers"), number("buyers"), strategy)
        })
        .collect();
    let expected: Vec<_> = [(1, 1), (5, 1), (5, 5)]
        .into_iter()
        .flat_map(|(listers, buyers)| {
            ["watch", "market-lock", "item-lock"].map(|strategy| (listers, buyers, strategy))
        })
        .collect();
    assert_eq!(cells, expected);
    rows.iter().for_each(check_row);
    assert!(rows.iter().any(|row| row["bought"] != 0), "{rows:?}");

    let svg = fs::read_to_string(&chart).unwrap();
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    let table = stdout(&output);
    for text in ["WATCH", "market lock", "item lock", "5 listers, 1 buyer"] {
        assert!(table.contains(text), "{table}");
        assert!(svg.contains(text), "{svg}");
    }
    assert!(table.contains("is in exactly one place"), "{table}");
}

fn check_row(row: &Value) {
    let fields: BTreeSet<_> = row
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(
        fields,
        BTreeSet::from([
            "strategy",
            "listers",
            "buyers",
            "seconds",
            "listed",
            "bought",
            "retries",
            "wait_mean_ms",
            "wait_p99_ms",
            "invariants_hold",
        ])
    );
    assert_eq!(row["seconds"].as_f64(), Some(0.1));
    assert_eq!(row["invariants_hold"], Value::Bool(true));
    let [_, bought, _] = ["listed", "bought", "retries"].map(|field| row[field].as_u64().unwrap());
    for wait in [&row["wait_mean_ms"], &row["wait_p99_ms"]] {
        assert_eq!(wait.as_f64().is_some(), bought > 0, "{row}");
        assert_eq!(wait.is_null(), bought == 0, "{row}");
    }
}

#[test]
fn one_load_by_one_way_on_a_given_server_leaves_it_as_it_was() {
    let server = Server::start().unwrap();
    let mut conn = server.connection().unwrap();
    let () = conn.hset("users:17", "funds", 97).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.json");
    let output = run(&[
        "--url",
        &server.url(),
        "--seconds",
        "1",
        "--listers",
        "2",
        "--strategy",
        "item-lock",
        "--json",
        file.to_str().unwrap(),
    ]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(output.stderr, b"");

    let rows = json(&file);
    assert_eq!(rows.len(), 1);
    let row = &rows[0];
    assert_eq!((&row["listers"], &row["buyers"]), (&2.into(), &1.into()));
    assert!(row["bought"].as_u64().unwrap() > 0, "{row}");
    assert_eq!(row["retries"], 0);
    assert_eq!(keys(&mut conn), ["users:17"]);
    assert_eq!(conn.hget::<_, _, u32>("users:17", "funds").unwrap(), 97);
}

#[test]
fn a_server_with_a_market_is_refused_and_not_touched() {
    let server = Server::start().unwrap();
    let mut conn = server.connection().unwrap();
    for key in [
        "market:",
        "users:seller-5",
        "inventory:buyer-1",
        "lock:market",
    ] {
        let () = conn.zadd(key, "ItemA.4", 35).unwrap();
        let line = failure(&run(&["--url", &server.url(), "--seconds", "0.1"]), 1);
        assert!(line.contains(&format!("`{key}`")), "{line}");
        assert_eq!(keys(&mut conn), [key]);
        assert_eq!(conn.zscore::<_, _, u32>(key, "ItemA.4").unwrap(), 35);
        let () = conn.del(key).unwrap();
    }
}

#[test]
fn money_and_items_that_appear_during_a_run_are_found() {
    let server = Server::start().unwrap();
    let mut conn = server.connection().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.json");
    let url = server.url();
    let child = started(&mut market(&[
        "--url",
        &url,
        "--seconds",
        "1",
        "--strategy",
        "market-lock",
        "--buyers",
        "1",
        "--json",
        file.to_str().unwrap(),
    ]));
    wait_for_trade(&mut conn);
    let bought: String = conn.srandmember("inventory:buyer-1").unwrap();
    redis::pipe()
        .hincr("users:seller-1", "funds", 1)
        .sadd("inventory:seller-1", bought)
        .sadd("inventory:buyer-1", "ItemA")
        .exec(&mut conn)
        .unwrap();

    let output = ended(child);
    failure(&output, 1);
    let table = stdout(&output);
    for found in [
        "BROKEN: 1 lister, 1 buyer, market lock: the funds are 1000000000001 together",
        "1 items are in more than one place",
        "1 items came from nowhere",
    ] {
        assert!(table.contains(found), "{table}");
    }
    assert_eq!(json(&file)[0]["invariants_hold"], Value::Bool(false));
}

#[test]
fn ctrl_c_stops_the_private_server() {
    for name in ["INT", "TERM"] {
        let wrapper = Wrapper::new();
        let child = wrapper.run(&["--seconds", "60"]);
        let server = wrapper.wait_for_trade();
        signal(name, &child.id().to_string());
        assert!(failure(&ended(child), 130).contains("interrupted"));
        assert!(!is_alive(server));
    }
}

/// In a terminal Ctrl-C reaches both.
#[test]
fn ctrl_c_that_also_reaches_the_server_is_no_error() {
    let wrapper = Wrapper::new();
    let child = started(wrapper.command(&["--seconds", "60"]).process_group(0));
    let server = wrapper.wait_for_trade();
    signal("INT", &format!("-{}", child.id()));
    assert!(failure(&ended(child), 130).contains("interrupted"));
    assert!(!is_alive(server));
}

#[test]
fn ctrl_c_leaves_nothing_on_a_given_server() {
    let server = Server::start().unwrap();
    let mut conn = server.connection().unwrap();
    let child = started(&mut market(&["--url", &server.url(), "--seconds", "60"]));
    wait_for_trade(&mut conn);
    signal("INT", &child.id().to_string());
    assert!(failure(&ended(child), 130).contains("interrupted"));
    assert_eq!(keys(&mut conn), [""; 0]);
}

#[test]
fn a_server_that_dies_ends_the_run_with_an_error() {
    let wrapper = Wrapper::new();
    let child = wrapper.run(&["--seconds", "60"]);
    signal("KILL", &wrapper.wait_for_trade().to_string());
    assert!(failure(&ended(child), 1).starts_with("error: "));
}

#[test]
fn without_a_server_one_line_says_how_to_get_one() {
    let toy = tempfile::tempdir().unwrap();
    fs::write(toy.path().join("redis-server"), "#!/bin/sh\necho toy 1.0\n").unwrap();
    let executable = fs::Permissions::from_mode(0o755);
    fs::set_permissions(toy.path().join("redis-server"), executable).unwrap();
    for path in [Path::new(""), toy.path()] {
        let mut command = market(&[]);
        command
            .env("PATH", path)
            .env("RUST_BACKTRACE", "1")
            .env_remove("LEASEHOLD_REDIS_SERVER");
        let line = failure(&ended(started(&mut command)), 1);
        assert!(line.contains("install the package redis-server"), "{line}");
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    for (option, value) in [
        ("--seconds", "0"),
        ("--seconds", "601"),
        ("--seconds", "NaN"),
        ("--seconds", "soon"),
        ("--listers", "0"),
        ("--listers", "65"),
        ("--buyers", "0"),
        ("--buyers", "1000000"),
        ("--strategy", "hope"),
    ] {
        let output = run(&[&format!("{option}={value}")]);
        let text = String::from_utf8(output.stderr.clone()).unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(text.contains(option) && text.contains(value), "{text}");
    }
    for (args, named) in [
        (["--url", "nonsense"], "URL"),
        (["--url", "redis://127.0.0.1:1/"], "could not connect"),
        (["--json", "/no/such/folder/a.json"], "/no/such/folder"),
        (["--chart", "/"], "cannot write /"),
    ] {
        let line = failure(&run(&args), 1);
        assert!(line.contains(named), "{line}");
    }
}
