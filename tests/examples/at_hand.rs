//! Without a server, an example starts one that ends with it, however it ends.

use std::{
    io::{BufRead, BufReader},
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
};

use nix::{
    errno::Errno,
    sys::signal::{Signal, kill},
    unistd::{Pid, getpgid},
};

use crate::common::{example, wait::comes_true};

/// An example without a URL.
fn without_a_server(name: &str) -> Command {
    let mut command = example(name);
    command.env("REDIS_URL", "");
    command
}

/// The URL that an example has printed.
fn private_url(line: &str) -> &str {
    let started = line.strip_prefix("without a server: started a private one, ");
    started
        .unwrap_or_else(|| panic!("{line}"))
        .split(',')
        .next()
        .unwrap()
}

fn is_gone(url: &str) -> bool {
    !Path::new(url.strip_prefix("redis+unix://").unwrap())
        .parent()
        .unwrap()
        .exists()
}

fn ends_by_itself(command: &mut Command) {
    let ended = command.output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    let (said, printed) = (ended.stderr, ended.stdout);
    let [said, printed] = [said, printed].map(|text| String::from_utf8(text).unwrap());
    assert!(printed.ends_with("done; the lock is free\n"), "{printed}");
    assert!(is_gone(private_url(&said)), "{said}");
}

#[test]
fn an_example_starts_a_server_and_ends_it() {
    ends_by_itself(&mut without_a_server("quick_start"));
    if TcpStream::connect("127.0.0.1:6379").is_err() {
        ends_by_itself(example("quick_start").env_remove("REDIS_URL"));
    }
}

/// The leader, once it leads, what it prints afterwards, its URL, and its private server.
fn leader() -> (Child, impl Iterator<Item = String>, String, Pid) {
    let mut leader = without_a_server("leader");
    let leader = leader.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut leader = leader.spawn().unwrap();
    let mut said = BufReader::new(leader.stderr.take().unwrap()).lines();
    let said = said.next().unwrap().unwrap();
    let url = private_url(&said).to_owned();
    let printed = BufReader::new(leader.stdout.take().unwrap()).lines();
    let mut printed = printed.map_while(Result::ok);
    assert!(printed.any(|line| line.starts_with("leading")));
    let client = redis::Client::open(url.as_str()).unwrap();
    let mut conn = client.get_connection().unwrap();
    let info: redis::InfoDict = redis::cmd("INFO").arg("server").query(&mut conn).unwrap();
    let server = Pid::from_raw(info.get("process_id").unwrap());
    assert!(kill(server, None).is_ok());
    (leader, printed, url, server)
}

#[test]
fn the_server_of_an_example_that_is_killed_ends_too() {
    let (mut leader, _, url, server) = leader();
    leader.kill().unwrap();
    leader.wait().unwrap();
    assert!(comes_true(|| kill(server, None) == Err(Errno::ESRCH)));
    assert!(comes_true(|| is_gone(&url)));
}

/// In a terminal, Ctrl-C reaches each process of the example's group.
#[test]
fn at_ctrl_c_an_example_can_still_release_its_lock() {
    let (mut leader, printed, _, server) = leader();
    let leaders = Pid::from_raw(leader.id().cast_signed());
    assert_ne!(getpgid(Some(server)), getpgid(Some(leaders)));
    kill(leaders, Signal::SIGINT).unwrap();
    assert_eq!(printed.last().as_deref(), Some("handed over"));
    assert!(leader.wait().unwrap().success());
    assert_eq!(kill(server, None), Err(Errno::ESRCH));
}
