//! The lock cannot be kept: the command ends before the lease does.

use std::{thread, time::Instant};

use nix::sys::signal::Signal;

use crate::{
    common::{
        Server,
        wait::{at_once, until},
    },
    tool::{LONG, Tool, guardian, is_locked, ms, send},
};

/// How the server goes.
#[derive(Clone, Copy, Debug)]
enum Gone {
    Killed,
    Silent,
}

#[test]
fn without_the_server_the_command_is_told_and_ends_before_the_lease() {
    at_once([Gone::Killed, Gone::Silent], |gone| {
        let script = format!("trap 'echo told; exit 3' TERM; echo in; {LONG}");
        assert_eq!(said_after(gone, &script), "told\n", "{gone:?}");
    });
}

#[test]
fn without_the_server_who_does_not_listen_is_killed_before_the_lease_ends() {
    at_once([Gone::Killed, Gone::Silent], |gone| {
        let script = format!("trap 'echo told' TERM; echo in; {LONG}");
        assert_eq!(said_after(gone, &script), "told\n", "{gone:?}");
    });
}

/// What the command says before it ends, once the server is gone. In time: the last renewal was sent before that.
fn said_after(gone: Gone, script: &str) -> String {
    let mut server = Server::start().unwrap();
    let lease = ms(3_000);
    let mut tool = Tool::apart(&server, "--lease 3s --grace 500ms", script);
    tool.hear("in");
    match gone {
        Gone::Killed => server.kill().unwrap(),
        Gone::Silent => server.freeze().unwrap(),
    }
    let since = Instant::now();
    let said = tool.silence();
    assert!(since.elapsed() < lease, "{:?}", since.elapsed());
    // An attempt that was under way ends with the connection.
    server.kill().unwrap();
    let ended = tool.ends_with(70);
    assert!(ended.err.contains("`a` was lost"), "{ended:?}");
    said
}

#[test]
fn an_outage_that_is_shorter_than_the_lease_is_survived() {
    let server = Server::start().unwrap();
    let mut tool = Tool::holding(&server, "--lease 2s --grace 200ms --verbose");
    tool.hear("in");
    server.freeze().unwrap();
    // Past the first renewal and far from the last moment.
    thread::sleep(ms(900));
    server.thaw().unwrap();
    thread::sleep(ms(1_200));
    tool.echoes("still here");
    assert_eq!(tool.finish().code, 0);
}

#[test]
fn a_stopped_tools_command_ends_before_the_lease() {
    let server = Server::start().unwrap();
    let script = format!("trap '' TERM; echo in; {LONG}");
    let mut tool = Tool::apart(&server, "--lease 2s", &script);
    tool.hear("in").signal(Signal::SIGSTOP);
    // It has ended at the margin; so has nobody else by then got the lock.
    tool.silence();
    assert!(is_locked(&server), "the lease has ended first");
    tool.signal(Signal::SIGCONT);
    tool.ends_with(70);
}

#[test]
fn a_tool_that_was_stopped_past_the_lease_ends_its_command_at_once() {
    let server = Server::start().unwrap();
    let script = format!("trap '' TERM; echo $$; {LONG}");
    let mut tool = Tool::apart(&server, "--lease 1s", &script);
    let command = tool.line();
    let guardian = guardian(&command);
    // The whole machine, as it were; but the guardian stays so.
    tool.signal(Signal::SIGSTOP);
    send(guardian, Signal::SIGSTOP);
    until(|| Ok(!is_locked(&server))).unwrap();
    let went_on = Instant::now();
    tool.signal(Signal::SIGCONT);
    tool.silence();
    assert!(went_on.elapsed() < ms(500), "{:?}", went_on.elapsed());
    tool.ends_with(70);
}
