//! The server's features as reported to an operator.

use serde_json::Value;

use crate::{
    common::{Fake, Server},
    lockrun::tool::{Ended, Tool, program},
};

fn probe(url: &str, args: &[&str]) -> Ended {
    let mut probe = program();
    Tool::spawn(probe.arg("--probe").args(args).env("LEASEHOLD_URL", url)).ends()
}

fn json(text: &str) -> Value {
    assert_eq!(text.lines().count(), 1, "{text}");
    serde_json::from_str(text).unwrap()
}

fn severity<'a>(told: &'a Value, topic: &str) -> &'a str {
    let findings = told["findings"].as_array().unwrap();
    let finding = findings.iter().find(|it| it["topic"] == topic).unwrap();
    assert!(finding["found"].is_string() && finding["consequence"].is_string());
    finding["severity"].as_str().unwrap()
}

#[test]
fn a_server_on_which_locks_work() {
    let server = Server::start().unwrap();
    let table = probe(&server.url(), &[]);
    assert_eq!((table.code, &*table.err), (0, ""), "{table:?}");
    assert!(
        table.out.starts_with("good      server       "),
        "{table:?}"
    );
    assert!(table.out.ends_with("\nLocks work here.\n"), "{table:?}");
    let told = probe(&server.url(), &["--json"]);
    let told = (told.code, json(&told.out));
    assert_eq!(
        (told.0, &told.1["locks_work"], &told.1["exit_code"]),
        (0, &true.into(), &0.into())
    );
    assert_eq!(severity(&told.1, "wake-ups"), "good");
    assert_eq!(severity(&told.1, "persistence"), "limits");
    assert!(told.1["message"].is_null());
}

#[test]
fn a_server_on_which_locks_do_not_work() {
    let server = Server::start_with(&["--rename-command", "EVAL", ""]).unwrap();
    let table = probe(&server.url(), &[]);
    assert_eq!((table.code, &*table.err), (78, ""), "{table:?}");
    assert!(
        table.out.ends_with("\nLocks do not work here.\n"),
        "{table:?}"
    );
    let told = probe(&server.url(), &["--json"]);
    assert_eq!(
        (told.code, &json(&told.out)["locks_work"]),
        (78, &false.into())
    );
    let old = Fake::saying(|_, _| b"$19\r\nredis_version:6.0.1\r\n".to_vec());
    let old = probe(&format!("redis://127.0.0.1:{}/", old.port()), &[]);
    assert_eq!((old.code, &*old.out), (78, ""), "{old:?}");
    assert!(old.err.contains("too old"), "{old:?}");
}

#[test]
fn an_unreachable_server() {
    let nobody = probe("redis://:sEcret@127.0.0.1:1/", &[]);
    assert_eq!((nobody.code, &*nobody.out), (69, ""), "{nobody:?}");
    assert!(nobody.err.contains("127.0.0.1:1") && !nobody.err.contains("sEcret"));
    let nobody = probe("redis://:sEcret@127.0.0.1:1/", &["--json"]);
    assert_eq!((nobody.code, &*nobody.err), (69, ""), "{nobody:?}");
    let told = json(&nobody.out);
    assert_eq!(
        (&told["locks_work"], &told["exit_code"]),
        (&false.into(), &69.into())
    );
    assert!(told["message"].as_str().unwrap().contains("127.0.0.1:1"));
    assert!(!nobody.out.contains("sEcret"));
    assert_eq!(probe("127.0.0.1:1", &[]).code, 64);
}

#[test]
fn probe_takes_no_name_and_no_command() {
    let server = Server::start().unwrap();
    for args in [
        &["--name", "a"][..],
        &["--permits", "3"],
        &["--status"],
        &["--", "true"],
    ] {
        assert_eq!(probe(&server.url(), args).code, 64, "{args:?}");
    }
}
