//! What lockrun says of what went wrong: the cause too.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener},
    thread,
};

use redis::cmd;
use serde_json::Value;

use crate::{
    common::{
        Server,
        server::free_port,
        wait::{at_once, unless_halted},
    },
    lockrun::tool::{Ended, Tool, lockrun_at},
};

#[track_caller]
fn refused(url: &str, args: &[&str]) -> Ended {
    Tool::spawn(lockrun_at(url).args(args)).ends_with(69)
}

#[test]
fn who_cannot_connect_is_told_why() {
    let server = Server::start_with(&["--requirepass", "right"]).unwrap();
    let with = |user: &str, path: &str| format!("redis://{user}127.0.0.1:{}/{path}", server.port());
    let closed = free_port().unwrap();
    // Longer than a name can be, so that no resolver is asked.
    let unknown = "x".repeat(64);
    let cases = [
        (with("", ""), "NOAUTH"),
        (with(":wrong@", ""), "invalid username-password pair"),
        (with(":right@", "99"), "out of range"),
        (
            format!("redis://127.0.0.1:{}/", web_server()),
            "Parse error",
        ),
        (format!("redis://127.0.0.1:{closed}/"), "onnection refused"),
        (format!("redis://{unknown}.invalid/"), "lookup"),
    ];
    at_once(cases, |(url, why)| {
        for args in [&["--", "true"][..], &["--status"], &["--force-release"]] {
            let ended = refused(&url, args);
            assert!(ended.err.contains(why), "{url}: {ended:?}");
            assert_eq!(ended.err.lines().count(), 1, "{ended:?}");
        }
        let to_scripts = refused(&url, &["--json", "--", "true"]).err;
        let to_operators = refused(&url, &["--json", "--status"]).out;
        for line in [to_scripts, to_operators] {
            let said: Value = serde_json::from_str(&line).unwrap();
            assert!(said["message"].as_str().unwrap().contains(why), "{said}");
        }
    });
}

#[test]
fn who_may_not_lock_is_told_so() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let mut conn = server.connection().unwrap();
        let user = [
            "SETUSER",
            "reader",
            "on",
            ">word",
            "~*",
            "+@all",
            "-@scripting",
        ];
        let () = cmd("ACL").arg(&user[..]).query(&mut conn).unwrap();
        let url = format!("redis://reader:word@127.0.0.1:{}/", server.port());
        let ended = refused(&url, &["--", "true"]);
        assert!(ended.err.contains("no permissions"), "{ended:?}");
    });
}

/// Answers as many do that are taken for a Redis server.
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
