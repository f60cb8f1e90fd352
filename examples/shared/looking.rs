//! Reads keys, formats them as `redis-cli` does, and notices changes.

use leasehold::redis::{self, Connection, RedisError, RedisResult, Value};

/// The difference in milliseconds below which two lease ends count as the same. A command sent
/// twice in a row sets its lease slightly later, and later still on a busy machine.
const CLOCK_ERROR: i64 = 250;

/// One key that a scene shows.
#[derive(Debug)]
pub(crate) struct Watched {
    key: &'static str,
    kind: Shown,
    last: Option<State>,
}

/// The part of a key that is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    /// Its value and its `PTTL`, for a lock.
    Lock,
    /// Its value.
    Data,
}

#[derive(Debug, PartialEq)]
struct State {
    lines: Vec<String>,
    /// The `PTTL`: -1 without an expiry, -2 if the key does not exist.
    left: i64,
    /// The server's clock at that moment, in milliseconds.
    at: i64,
}

impl Watched {
    pub(crate) fn new(key: &'static str, kind: Shown) -> Self {
        Self {
            key,
            kind,
            last: None,
        }
    }

    /// Returns the lines to print if the key has changed.
    pub(crate) fn look(&mut self, conn: &mut Connection) -> RedisResult<Vec<String>> {
        let now = self.state(conn)?;
        let changed = match &self.last {
            None => now.left != -2,
            Some(last) => now.differs_from(last),
        };
        let lines = if changed {
            self.lines(&now)
        } else {
            Vec::new()
        };
        self.last = Some(now);
        Ok(lines)
    }

    fn state(&self, conn: &mut Connection) -> RedisResult<State> {
        let kind: String = redis::cmd("TYPE").arg(self.key).query(conn)?;
        let mut all = redis::pipe();
        all.atomic().cmd("TIME").cmd("PTTL").arg(self.key);
        match kind.as_str() {
            "hash" => all.cmd("HGETALL").arg(self.key),
            "set" => all.cmd("SMEMBERS").arg(self.key),
            "zset" => all
                .cmd("ZRANGE")
                .arg(self.key)
                .arg("0 -1 WITHSCORES".split(' ').collect::<Vec<_>>()),
            "list" => all.cmd("LRANGE").arg(self.key).arg(0).arg(-1),
            _ => all.cmd("GET").arg(self.key),
        };
        let ((seconds, micros), left, value): ((i64, i64), i64, Value) = all.query(conn)?;
        Ok(State {
            lines: as_redis_cli(&value),
            left,
            at: seconds * 1_000 + micros / 1_000,
        })
    }

    fn lines(&self, now: &State) -> Vec<String> {
        let mut lines = now.lines.clone();
        let mut names = vec![self.key];
        if self.kind == Shown::Lock && now.left != -2 {
            names.resize(lines.len(), "");
            names.push("PTTL");
            lines.push(format!("(integer) {}", now.left));
        }
        names.resize(lines.len(), "");
        let width = self.key.len().max(4);
        names
            .iter()
            .zip(lines)
            .map(|(name, line)| format!("{name:<width$}  {line}"))
            .collect()
    }
}

impl State {
    fn differs_from(&self, last: &Self) -> bool {
        if self.lines != last.lines || (self.left < 0 || last.left < 0) && self.left != last.left {
            return true;
        }
        let end = |state: &Self| state.at + state.left;
        self.left >= 0 && (end(self) - end(last)).abs() > CLOCK_ERROR
    }
}

/// Formats a reply as `redis-cli` prints it, line by line.
pub(crate) fn as_redis_cli(value: &Value) -> Vec<String> {
    let quoted = |text: &[u8]| format!("\"{}\"", String::from_utf8_lossy(text));
    match value {
        Value::Nil => vec!["(nil)".to_owned()],
        Value::Okay => vec!["OK".to_owned()],
        Value::Int(number) => vec![format!("(integer) {number}")],
        Value::SimpleString(text) => vec![text.clone()],
        Value::BulkString(text) => vec![quoted(text)],
        Value::Array(values) if values.is_empty() => vec!["(empty array)".to_owned()],
        Value::Array(values) => {
            let lines = values.iter().map(as_redis_cli).map(|lines| lines.join(" "));
            lines
                .enumerate()
                .map(|(n, line)| format!("{}) {line}", n + 1))
                .collect()
        }
        other => vec![format!("{other:?}")],
    }
}

/// Formats an error reply as `redis-cli` prints it.
pub(crate) fn refusal(error: &RedisError) -> String {
    let code = error.code().unwrap_or("ERR");
    // Of a script's error, keep the reason and drop its position.
    let detail = error.detail().unwrap_or_default();
    let what = detail.split(" script: ").next().unwrap_or(detail);
    format!("(error) {code} {what}")
}
