//! The README's first program.

use std::{process::Stdio, sync::mpsc, thread, time::Duration};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::common::{Proxy, Server, example};

/// An interrupted connect is repeated, because no command has been sent yet.
#[test]
fn a_process_halted_while_connecting() {
    let server = Server::start().unwrap();
    let proxy = Proxy::in_front_of(&server).unwrap();
    let (tell, told) = mpsc::channel();
    proxy.at("INFO").run(move || {
        let process = told.recv().unwrap();
        for signal in [Signal::SIGSTOP, Signal::SIGCONT] {
            // Time to reach its read, and to stop before it continues.
            thread::sleep(Duration::from_millis(100));
            kill(process, signal).unwrap();
        }
        thread::sleep(Duration::from_millis(100));
    });
    let mut quick_start = example("quick_start");
    let process = quick_start
        .arg(proxy.url())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    tell.send(Pid::from_raw(process.id().cast_signed()))
        .unwrap();
    let ended = process.wait_with_output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    assert!(proxy.happened());
}
