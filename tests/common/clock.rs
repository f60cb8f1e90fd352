//! The server's clock.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;

use redis::Connection;

/// What it says, in milliseconds since 1970.
pub fn millis(conn: &mut Connection) -> i64 {
    let (seconds, micros): (i64, i64) = redis::cmd("TIME").query(conn).unwrap();
    seconds * 1000 + micros / 1000
}

/// The recipes' scripts, one after another, which learn the time from `told`: Lua of `real`, the
/// server's clock, in microseconds.
///
/// `redis` is another table there. So it works on servers whose `TIME` stands still within a script
/// as well.
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

/// The same script, which learns the time from `told` from this line on.
pub fn told_otherwise_after(script: &str, line: &str, told: &str) -> String {
    let (before, behind) = script.split_once(line).unwrap();
    format!("{before}{line}told = function(real) return {told} end\n{behind}")
}
