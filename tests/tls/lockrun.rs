//! `lockrun --ca --cert --key`.

use std::process::{Command, Output};

use crate::TlsServer;

/// Runs `true` under a lock on this server, with these files.
fn lockrun(server: &TlsServer, files: &[(&str, &str)]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockrun"));
    for variable in ["LEASEHOLD_CA", "LEASEHOLD_CERT", "LEASEHOLD_KEY"] {
        command.env_remove(variable);
    }
    for (argument, file) in files {
        match argument.strip_prefix("--") {
            Some(_) => command.args([*argument, &server.file(file)]),
            None => command.env(argument, server.file(file)),
        };
    }
    command.args(["--name", "a", "--url", &server.url("localhost")]);
    let Output { status, stderr, .. } = command.args(["--", "true"]).output().unwrap();
    (status.code(), String::from_utf8(stderr).unwrap())
}

const CA: (&str, &str) = ("--ca", "ca.pem");
const CERT: (&str, &str) = ("--cert", "client.pem");
const KEY: (&str, &str) = ("--key", "client.key");

#[test]
fn a_private_ca_comes_from_a_file() {
    let Some(server) = TlsServer::start() else {
        return;
    };
    for ca in [CA, ("LEASEHOLD_CA", "ca.pem")] {
        assert_eq!(lockrun(&server, &[ca]), (Some(0), String::new()));
    }
    let (code, why) = lockrun(&server, &[]);
    assert_eq!(code, Some(69), "{why}");
    assert!(why.contains("UnknownIssuer"), "{why}");
}

#[test]
fn a_client_certificate_comes_from_files() {
    let Some(server) = TlsServer::start_by("yes") else {
        return;
    };
    let by_environment = [
        ("LEASEHOLD_CA", "ca.pem"),
        ("LEASEHOLD_CERT", "client.pem"),
        ("LEASEHOLD_KEY", "client.key"),
    ];
    for files in [[CA, CERT, KEY], by_environment] {
        assert_eq!(lockrun(&server, &files), (Some(0), String::new()));
    }
    let (code, why) = lockrun(&server, &[CA]);
    assert_eq!(code, Some(69), "{why}");
}

#[test]
fn unusable_files_are_invalid_arguments() {
    let Some(server) = TlsServer::start() else {
        return;
    };
    for (files, expected) in [
        (&[("--ca", "none.pem")][..], "none.pem: no such file"),
        (&[("--ca", "key.pem")], "the CA"),
        (&[CA, CERT], "--key <FILE>"),
        (&[CA, KEY], "--cert <FILE>"),
        (&[CA, CERT, ("--key", "key.pem")], "its private key"),
    ] {
        let (code, why) = lockrun(&server, files);
        assert_eq!(code, Some(64), "{why}");
        assert!(why.contains(expected), "{expected}: {why}");
    }
}
