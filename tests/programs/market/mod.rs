//! The example `market` as a user runs it.

mod program;

use std::{
    collections::BTreeSet,
    env, fs,
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Output},
};

use crate::common::{Server, server::find_binary, wait::at_once};
use program::{
    Wrapper, ended, is_alive, market, run, signal, started, wait_for_trade, write_script,
};
use redis::{Commands, Connection};
use serde_json::Value;

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The single line of an error, after a check of the exit code.
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

fn keys(conn: &mut Connection) -> Vec<String> {
    conn.keys("*").unwrap()
}

/// Runs concurrently: each mostly waits.
#[test]
fn longer_runs() {
    let cases: [fn(); 3] = [
        a_default_run_reports_each_cell_and_stops_its_server,
        one_load_by_one_way_on_a_given_server_leaves_it_as_it_was,
        money_and_items_that_appear_during_a_run_are_found,
    ];
    at_once(cases, |case| case());
}

fn a_default_run_reports_each_cell_and_stops_its_server() {
    let folder = tempfile::tempdir().unwrap();
    let (json_file, chart) = (folder.path().join("a.json"), folder.path().join("a.svg"));
    let wrapper = Wrapper::new();
    let args = format!(
        "--seconds 0.1 --json {} --chart {}",
        json_file.display(),
        chart.display()
    );
    let output = ended(wrapper.run(&args));
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
            ["watch", "market-lock", "item-lock", "two-locks"]
                .map(|strategy| (listers, buyers, strategy))
        })
        .collect();
    assert_eq!(cells, expected);
    rows.iter().for_each(check_row);
    assert!(rows.iter().any(|row| row["bought"] != 0), "{rows:?}");

    let svg = fs::read_to_string(&chart).unwrap();
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    let table = stdout(&output);
    for text in [
        "WATCH",
        "market lock",
        "item lock",
        "two locks",
        "5 listers, 1 buyer",
    ] {
        assert!(table.contains(text), "{table}");
        assert!(svg.contains(text), "{svg}");
    }
    assert!(svg.contains("item lock (recommended)"), "{svg}");
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

fn one_load_by_one_way_on_a_given_server_leaves_it_as_it_was() {
    let server = Server::start().unwrap();
    let mut conn = server.connection().unwrap();
    let () = conn.hset("users:17", "funds", 97).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.json");
    let output = run(&format!(
        "--url {} --seconds 1 --listers 2 --strategy item-lock --json {}",
        server.url(),
        file.display()
    ));
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
fn a_server_that_has_a_market_is_refused_and_left_unchanged() {
    let keys_of_a_market = [
        "market:",
        "users:seller-5",
        "inventory:buyer-1",
        "lock:market",
    ];
    at_once(keys_of_a_market, |key| {
        let server = Server::start().unwrap();
        let mut conn = server.connection().unwrap();
        let () = conn.zadd(key, "ItemA.4", 35).unwrap();
        let line = failure(&run(&format!("--url {} --seconds 0.1", server.url())), 1);
        assert!(line.contains(&format!("`{key}`")), "{line}");
        assert_eq!(keys(&mut conn), [key]);
        assert_eq!(conn.zscore::<_, _, u32>(key, "ItemA.4").unwrap(), 35);
    });
}

fn money_and_items_that_appear_during_a_run_are_found() {
    let server = Server::start().unwrap();
    let mut conn = server.connection().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.json");
    let child = started(&mut market(&format!(
        "--url {} --seconds 2 --strategy market-lock --buyers 1 --json {}",
        server.url(),
        file.display()
    )));
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
        "BROKEN: 1 lister, 1 buyer, market lock: the funds are 1000000000001 in total",
        "1 items are in more than one place",
        "1 items came from nowhere",
    ] {
        assert!(table.contains(found), "{table}");
    }
    assert_eq!(json(&file)[0]["invariants_hold"], Value::Bool(false));
}

#[test]
fn ctrl_c_stops_the_private_server() {
    at_once(["INT", "TERM"], |name| {
        let wrapper = Wrapper::new();
        let child = wrapper.run("--seconds 60");
        let server = wrapper.wait_for_trade();
        signal(name, &child.id().to_string());
        assert!(failure(&ended(child), 130).contains("interrupted"));
        assert!(!is_alive(server));
    });
}

/// In a terminal Ctrl-C reaches both processes.
#[test]
fn ctrl_c_that_also_reaches_the_server_is_no_error() {
    let wrapper = Wrapper::new();
    let child = started(wrapper.command("--seconds 60").process_group(0));
    let server = wrapper.wait_for_trade();
    signal("INT", &format!("-{}", child.id()));
    assert!(failure(&ended(child), 130).contains("interrupted"));
    assert!(!is_alive(server));
}

#[test]
fn ctrl_c_leaves_nothing_on_a_given_server() {
    let server = Server::start().unwrap();
    let mut conn = server.connection().unwrap();
    let child = started(&mut market(&format!("--url {} --seconds 60", server.url())));
    wait_for_trade(&mut conn);
    signal("INT", &child.id().to_string());
    assert!(failure(&ended(child), 130).contains("interrupted"));
    assert_eq!(keys(&mut conn), [""; 0]);
}

#[test]
fn a_dead_server_ends_the_run_with_an_error() {
    let wrapper = Wrapper::new();
    let child = wrapper.run("--seconds 60");
    signal("KILL", &wrapper.wait_for_trade().to_string());
    assert!(failure(&ended(child), 1).starts_with("error: "));
}

#[test]
fn without_a_server_one_line_says_how_to_install_one() {
    let toy = tempfile::tempdir().unwrap();
    write_script(&toy.path().join("redis-server"), "echo toy 1.0");
    at_once([Path::new(""), toy.path()], |path| {
        let mut command = market("");
        command
            .env("PATH", path)
            .env("RUST_BACKTRACE", "1")
            // Only by this name: not as what `.ci/setup` has fetched.
            .env("LEASEHOLD_REDIS_SERVER", "redis-server");
        let line = failure(&ended(started(&mut command)), 1);
        assert!(line.contains("install the package redis-server"), "{line}");
    });
}

/// `.ci/setup` fetches one where it can install none.
#[test]
fn a_fetched_server_is_found_beside_the_program() {
    let target = tempfile::tempdir().unwrap();
    let [servers, programs] = ["servers", "debug"].map(|name| target.path().join(name));
    fs::create_dir(&servers).unwrap();
    fs::create_dir(&programs).unwrap();
    let (path, binary) = (env::var("PATH").unwrap(), find_binary().unwrap());
    let fetched = format!("PATH='{path}' exec '{binary}' \"$@\"");
    write_script(&servers.join("redis-server"), &fetched);
    let copied = Command::new("cp")
        .arg(market("").get_program())
        .arg(&programs)
        .status();
    assert!(copied.unwrap().success());
    let mut command = Command::new(programs.join("market"));
    command
        .args(["--seconds", "0.1", "--listers", "1", "--buyers", "1"])
        .env("PATH", "")
        .env_remove("LEASEHOLD_REDIS_SERVER");
    let output = ended(started(&mut command));
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn invalid_arguments_are_refused() {
    let options = [
        ("--seconds", "0"),
        ("--seconds", "601"),
        ("--seconds", "NaN"),
        ("--seconds", "soon"),
        ("--listers", "0"),
        ("--listers", "65"),
        ("--buyers", "0"),
        ("--buyers", "1000000"),
        ("--strategy", "hope"),
    ];
    at_once(options, |(option, value)| {
        let output = run(&format!("{option}={value}"));
        let text = String::from_utf8(output.stderr.clone()).unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(text.contains(option) && text.contains(value), "{text}");
    });
    let places = [
        ("--url nonsense", "URL"),
        ("--url redis://127.0.0.1:1/", "cannot reach redis"),
        ("--json /no/such/folder/a.json", "/no/such/folder"),
        ("--chart /", "cannot write /"),
    ];
    at_once(places, |(args, named)| {
        let line = failure(&run(args), 1);
        assert!(line.contains(named), "{line}");
    });
}
