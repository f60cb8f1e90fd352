//! The texts of errors for operators. They name Redis, its address and the lock, and nothing of the
//! library.

use std::time::Duration;

use leasehold::{
    Error,
    redis::{ErrorKind, RedisError},
};

use crate::{
    arguments::Arguments,
    speaking::text::{of_system, printable, rounded},
};

/// The library's name of a lock without permits.
const MUTEX: &str = "a mutex, or another lock by `SET NX`";

/// The error of an acquire that took this long, and what follows from it.
pub(crate) fn not_acquired(arguments: &Arguments, error: &Error, waited: Duration) -> String {
    let lock = error
        .context()
        .map(|context| arguments.first_of(&context.lock));
    let subject = lock.map_or_else(|| arguments.subject(), |it| arguments.subject_of(&it));
    // A permanent refusal, such as a wrong password, ends the wait at once.
    let within = match arguments.wait {
        Duration::ZERO => String::new(),
        wait if waited < wait / 2 => String::new(),
        wait => format!(" within {}", rounded(wait)),
    };
    let lease = rounded(arguments.lease);
    let left = match error {
        Error::Unknown { .. } => format!("; if redis granted the lock, it ends in {lease}"),
        Error::WrongKind { found, .. } if arguments.permits.is_none() && is_semaphore(found) => {
            "; use --permits as its holders do".into()
        }
        Error::WrongKind { .. } if arguments.permits.is_some() => {
            "; use --permits everywhere or nowhere for a name".into()
        }
        _ => String::new(),
    };
    let what = match arguments.permits {
        None => format!("cannot lock {subject}{within}"),
        Some(_) => format!("cannot acquire {subject}{within}"),
    };
    failed(arguments, &what, error) + &left + "; the command has not run"
}

fn is_semaphore(found: &str) -> bool {
    found.starts_with("a semaphore")
}

/// "what: why", or for an invalid argument the option and the reason.
pub(crate) fn failed(arguments: &Arguments, what: &str, error: &Error) -> String {
    match error {
        Error::Invalid {
            argument, reason, ..
        } => match flag(argument) {
            Some(flag) => format!("{flag}: {reason}"),
            None => format!("{what}: {argument}: {reason}"),
        },
        error => format!("{what}: {}", reason(&arguments.server(), error)),
    }
}

/// The flag behind an argument of the library.
fn flag(argument: &'static str) -> Option<&'static str> {
    match argument {
        flag if flag.starts_with("--") => Some(flag),
        "url" | "nodes" | "sentinels" | "master" => Some("--url, or LEASEHOLD_URL"),
        "lock name" | "locks" => Some("--name"),
        "period" => Some("--once-per"),
        "permits" => Some("--permits"),
        "lease" => Some("--lease"),
        "prefix" => Some("--prefix, or LEASEHOLD_PREFIX"),
        "certificates" => Some("--ca, --cert or --key"),
        _ => None,
    }
}

/// The text for a failure on this server.
pub(crate) fn reason(server: &str, error: &Error) -> String {
    let text = match error {
        Error::Pool { reason, source, .. } => with_cause(reason, source.as_ref()),
        Error::Redis { source, .. } if source.is_io_error() => {
            with_cause(&format!("cannot reach {server}"), Some(source))
        }
        Error::Redis { source, .. } => {
            let text = without_context(error).replace("not executed: ", "");
            let refused = text.strip_prefix("Redis").unwrap_or(&text);
            with_cause(&format!("{server}{refused}"), Some(source))
        }
        Error::Unknown { source, .. } => {
            with_cause(&format!("no answer from {server}"), Some(source))
        }
        Error::TooOld { .. } => without_context(error).replace("the server", server),
        Error::Thread { source, .. } => format!("cannot start a thread: {}", of_system(source)),
        // The failure before the loss says more: MISCONF, OOM, NOREPLICAS.
        Error::Lost {
            source: Some(source),
            ..
        } => reason(server, source),
        // Operators may not know `SET NX`.
        Error::WrongKind { .. } => without_context(error).replace(MUTEX, "a lock without permits"),
        error => without_context(error),
    };
    printable(&text)
}

/// Leaves out the function of the library and the lock.
fn without_context(error: &Error) -> String {
    let text = error.to_string();
    let Some(context) = error.context() else {
        return text;
    };
    let before = format!("{} on `{}`: ", context.operation, context.lock);
    text.strip_prefix(&before).unwrap_or(&text).to_owned()
}

/// Adds the text of the server or the system, unless it is there already.
fn with_cause(text: &str, source: Option<&RedisError>) -> String {
    match source.filter(|it| !says_it_all(text, it)) {
        Some(error) => format!("{text}: {}", cause(error)),
        None => text.into(),
    }
}

fn says_it_all(text: &str, error: &RedisError) -> bool {
    let code = error.code().unwrap_or_default();
    // A parse error says only at which byte the parser stopped.
    error.kind() == ErrorKind::Parse
        || error.is_timeout() && text.starts_with("no answer")
        || [code, "maxclients"]
            .iter()
            .any(|it| text.contains(&format!("({it})")))
}

fn cause(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some("ERR") | None, Some(words)) => words.into(),
        (Some(code), Some(words)) => format!("{words} ({code})"),
        _ => of_system(error),
    }
}
