//! The server's clock.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;

use redis::Connection;

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
        let path = format!("{}/src/recipes/{part}", env!("CARGO_MANIFEST_DIR"));
        script += &fs::read_to_string(path).unwrap();
    }
    script
}

/// The same script; after `line` its clock is another `told`.
pub fn told_otherwise_after(script: &str, line: &str, told: &str) -> String {
    let (before, behind) = script.split_once(line).unwrap();
    format!("{before}{line}told = function(real) return {told} end\n{behind}")
}
