//! The commands that locks need, each in a form that changes nothing.
//!
//! A server first compares the number of arguments with the command, then checks the access list,
//! and then executes. So each form has enough arguments, and does not touch a key that does not
//! exist.

use redis::{Cmd, Pipeline, RedisError, RedisResult, Value};

use super::{
    finding::{
        Finding,
        Severity::{Fails, Good, Limits},
    },
    line::words,
};
use crate::{error::may_pass, pool::is_unknown_command};

/// The commands with their arguments; `KEY` stands for the key. A lifetime of 0, a field without a
/// value, a word in place of a number and an `EXEC` without a transaction are refused. `MULTI`
/// comes last, since only closing the connection ends it.
const FORMS: &str = "eval return(1) 0, evalsha 0 0, time, get KEY, exists KEY, type KEY, pttl KEY, \
                     del KEY, pexpire KEY 1, pexpireat KEY 1, set KEY a PX 0, hget KEY a, \
                     hmget KEY a, hgetall KEY, hlen KEY, hdel KEY a, hset KEY a a a, \
                     hincrby KEY a a, zadd KEY a a, zrem KEY a, zscore KEY a, zcount KEY 0 0, \
                     zrange KEY 0 0, zrangebyscore KEY 0 0, watch KEY, unwatch, exec, ping, \
                     info server, wait 0 1, multi";

/// The features that do not work without some of these commands.
/// [`Probe::locks_work`](super::Probe::locks_work) judges by the first.
const NEEDS: [(&str, &str); 9] = [
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

/// Returns all commands, in one pipeline, and their number. It leaves the connection in a `MULTI`.
pub(super) fn all(key: &str) -> (Pipeline, usize) {
    let mut all = Pipeline::new();
    for form in FORMS.split(", ") {
        let mut command = Cmd::new();
        for word in form.split_whitespace() {
            command.arg(if word == "KEY" { key } else { word });
        }
        all.add_command(command);
    }
    (all, FORMS.split(", ").count())
}

/// Judges the replies to [`all`].
pub(super) fn judge(answers: &[RedisResult<Value>]) -> Finding {
    let names = FORMS.split(", ").filter_map(|form| form.split(' ').next());
    let refused = |answer: &RedisResult<Value>| answer.as_ref().is_err_and(is_refused);
    let missing = names.zip(answers).filter(|(_, answer)| refused(answer));
    let missing: Vec<_> = missing.map(|(name, _)| name).collect();
    let mut errors = answers.iter().filter_map(|it| it.as_ref().err());
    if missing.is_empty() {
        let refused = errors.find(|it| may_pass(it)).map(words);
        let (severity, consequence) = if refused.is_some() {
            let consequence = "No kind of lock works until the server accepts them again.";
            (Fails, consequence)
        } else {
            (Good, "All kinds of locks work.")
        };
        let found = refused.as_deref().unwrap_or("none missing");
        return Finding::new("commands", severity, found, consequence);
    }
    let without = |(what, commands): &(&str, &str)| {
        let gaps = commands.split_whitespace();
        let gaps: Vec<_> = gaps.filter(|name| missing.contains(name)).collect();
        (!gaps.is_empty()).then(|| format!("no {what} ({})", gaps.join(", ")))
    };
    let lost: Vec<_> = NEEDS.iter().filter_map(without).collect();
    let severity = without(&NEEDS[0]).map_or(Limits, |_| Fails);
    let found = format!("missing: {}", missing.join(", "));
    let consequence = format!("Without them: {}.", lost.join("; "));
    Finding::new("commands", severity, found, consequence)
}

/// Returns true if the server does not know the command, or the access list forbids it for any key.
/// A refused key has another text, and `EXEC` another code.
fn is_refused(error: &RedisError) -> bool {
    let is_of_command = (error.detail()).is_some_and(|words| words.contains("to run the"));
    let is_forbidden = matches!(error.code(), Some("NOPERM" | "EXECABORT")) && is_of_command;
    is_forbidden || is_unknown_command(error)
}
