//! The server's clock.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{fs, process::Command};

use redis::Connection;
use tempfile::TempDir;

use super::{
    Server,
    server::{find_binary, free_port},
};

/// The server's time in milliseconds since 1970.
pub fn millis(conn: &mut Connection) -> i64 {
    let (seconds, micros): (i64, i64) = redis::cmd("TIME").query(conn).unwrap();
    seconds * 1000 + micros / 1000
}

/// Concatenates recipe scripts and replaces their clock by `told`, a Lua expression of `real`, the
/// server's clock in microseconds.
///
/// It shadows `redis` with a table of its own, so it also works on servers that freeze `TIME`
/// within a script.
pub fn told_the_time(parts: &[&str], told: &str) -> String {
    let mut script = format!(
        "local server, told = redis, function(real) return {told} end
local redis = setmetatable({{ call = function(command, ...)
  if command ~= 'TIME' then
    return server.call(command, ...)
  end
  local at = server.call('TIME')
  local time = told(at[1] * 1000000 + at[2])
  return {{ string.format('%.0f', math.floor(time / 1000000)), string.format('%.0f', time % 1000000) }}
end }}, {{ __index = server }})\n"
    );
    for part in parts {
        let path = format!("{}/src/{part}", env!("CARGO_MANIFEST_DIR"));
        script += &fs::read_to_string(path).unwrap();
    }
    script
}

/// The same script; after `line` its clock is another `told`.
pub fn told_otherwise_after(script: &str, line: &str, told: &str) -> String {
    let (before, behind) = script.split_once(line).unwrap();
    format!("{before}{line}told = function(real) return {told} end\n{behind}")
}

/// Replaces the calls by which a server asks for the time of day.
const FROM_1970: &str = r"
#define _GNU_SOURCE
#include <stddef.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static time_t started;
int clock_gettime(clockid_t clock, struct timespec *time) {
  int failed = syscall(SYS_clock_gettime, clock, time);
  if (clock == CLOCK_REALTIME) {
    if (!started) started = time->tv_sec;
    time->tv_sec -= started;
  }
  return failed;
}
int gettimeofday(struct timeval *time, void *zone) {
  struct timespec now;
  int failed = clock_gettime(CLOCK_REALTIME, &now);
  time->tv_sec = now.tv_sec;
  time->tv_usec = now.tv_nsec / 1000;
  return failed;
}
time_t time(time_t *into) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (into) *into = now.tv_sec;
  return now.tv_sec;
}
";

/// Starts a server whose clock starts at 0, as on a machine without a clock of its own. The
/// directory must live as long.
pub fn server_in_1970() -> (Server, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let [source, library, program] =
        ["clock.c", "clock.so", "server"].map(|name| directory.path().join(name));
    fs::write(&source, FROM_1970).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).arg(&library);
    assert!(compiler.arg(&source).status().unwrap().success());
    let (library, server) = (library.display(), find_binary().unwrap());
    let script = format!("#!/bin/sh\nLD_PRELOAD={library} exec {server} \"$@\"\n");
    fs::write(&program, script).unwrap();
    let mut shell = Command::new("chmod");
    assert!(shell.arg("+x").arg(&program).status().unwrap().success());
    let program = program.to_str().unwrap();
    let server = Server::start_by(program, free_port, &[]).unwrap();
    (server, directory)
}
