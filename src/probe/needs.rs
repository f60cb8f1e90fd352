//! The commands that locks need, each in a form that changes nothing.
//!
//! A server first compares the number of arguments with the command, then checks the access list,
//! and then executes. So each form has enough arguments, and does not touch a key that does not
//! exist.

use redis::{Cmd, Pipeline, RedisError, RedisResult, Value};

use super::finding::{Finding, Severity};
use crate::pool::is_unknown_command;

/// The commands, each with the arguments after the key. The key is omitted if they begin with `-`.
const FORMS: [(&str, &str); 31] = [
    ("eval", "- return(1) 0"),
    ("evalsha", "- 0000000000000000000000000000000000000000 0"),
    ("time", "-"),
    ("get", ""),
    ("exists", ""),
    ("type", ""),
    ("pttl", ""),
    ("del", ""),
    ("pexpire", "1"),
    ("pexpireat", "1"),
    // A lifetime of 0 is refused.
    ("set", "a PX 0"),
    ("hget", "a"),
    ("hmget", "a"),
    ("hgetall", ""),
    ("hlen", ""),
    ("hdel", "a"),
    // A field without a value.
    ("hset", "a a a"),
    // Not a number.
    ("hincrby", "a a"),
    ("zadd", "a a"),
    ("zrem", "a"),
    ("zscore", "a"),
    ("zcount", "0 0"),
    ("zrange", "0 0"),
    ("zrangebyscore", "0 0"),
    ("watch", ""),
    ("unwatch", "-"),
    // No transaction is open.
    ("exec", "-"),
    ("ping", "-"),
    ("info", "- server"),
    ("wait", "- 0 1"),
    // This comes last, since only closing the connection ends it.
    ("multi", "-"),
];

/// The features that do not work without some of these commands.
/// [`Probe::locks_work`](super::Probe::locks_work) judges by the first.
pub(super) const NEEDS: [(&str, &str); 9] = [
    (
        "lock",
        "eval evalsha time get hget exists hset pexpire set pttl del",
    ),
    (
        "reentrant lock",
        "eval evalsha time hlen hgetall del hset hdel pttl pexpire hincrby hget",
    ),
    (
        "read-write lock",
        "eval evalsha time hgetall hset hdel del pexpire exists hmget pttl",
    ),
    (
        "semaphore",
        "eval evalsha time exists type zrange zscore zcount zrangebyscore hmget pexpireat hdel \
         hset pttl zadd zrem del",
    ),
    (
        "job once in a period",
        "eval evalsha hmget exists time hset pexpire",
    ),
    ("commit or transaction", "watch unwatch multi exec"),
    (
        "commit, unless under a mutex",
        "eval del set pexpireat exists",
    ),
    ("wait for replicas", "wait"),
    (
        "check of an idle connection and of the version",
        "ping info",
    ),
];

/// The number of commands.
pub(super) const COUNT: usize = FORMS.len();

/// Returns all commands, in one pipeline. It leaves the connection in a `MULTI`.
pub(super) fn all(key: &str) -> Pipeline {
    let mut all = Pipeline::new();
    for (name, words) in FORMS {
        let mut command = Cmd::new();
        command.arg(name);
        let without_key = words.strip_prefix('-');
        if without_key.is_none() {
            command.arg(key);
        }
        let words = without_key.unwrap_or(words);
        for word in words.split_whitespace() {
            command.arg(word);
        }
        all.add_command(command);
    }
    all
}

/// Judges the replies to [`all`].
pub(super) fn judge(answers: &[RedisResult<Value>]) -> Finding {
    let finding = |severity, found: &str, consequence: &str| {
        Finding::new("commands", severity, found, consequence)
    };
    let missing: Vec<_> = FORMS
        .iter()
        .zip(answers)
        .filter(|(_, answer)| answer.as_ref().is_err_and(is_refused))
        .map(|((name, _), _)| *name)
        .collect();
    if missing.is_empty() {
        return finding(Severity::Good, "none missing", "All kinds of locks work.");
    }
    let without = |(what, commands): &(&str, &str)| {
        let gaps = commands.split_whitespace();
        let gaps: Vec<_> = gaps.filter(|name| missing.contains(name)).collect();
        (!gaps.is_empty()).then(|| format!("no {what} ({})", gaps.join(", ")))
    };
    let lost: Vec<_> = NEEDS.iter().filter_map(without).collect();
    let severity = match without(&NEEDS[0]) {
        Some(_) => Severity::Fails,
        None => Severity::Limits,
    };
    finding(
        severity,
        &format!("missing: {}", missing.join(", ")),
        &format!("Without them: {}.", lost.join("; ")),
    )
}

/// Returns true if the server does not know the command, or the access list forbids it for any key.
/// A refused key has another text, and `EXEC` another code.
fn is_refused(error: &RedisError) -> bool {
    let is_of_command = (error.detail()).is_some_and(|words| words.contains("to run the"));
    let is_forbidden = matches!(error.code(), Some("NOPERM" | "EXECABORT")) && is_of_command;
    is_forbidden || is_unknown_command(error)
}
