//! Refusals by the server: their codes, and texts that explain them.

use std::{error::Error as StdError, io, sync::Arc};

use redis::{ErrorKind, RedisError, Value};

const ACCESS_LIST: &str = "denies it (ACL)";

/// Returns the error's code, or an empty text. Before Redis 7 a script's error has it inside its
/// message. A script that a node of a cluster refuses a key gets no code: the key is no longer
/// there, or the cluster is down.
pub(crate) fn code(error: &RedisError) -> &str {
    let message = message(error);
    let (_, hidden) = message.split_once(": -").unwrap_or_default();
    match error.code() {
        Some("ERR") | None if message.contains("access a non local key") => "TRYAGAIN",
        Some("ERR") | None if message.contains("while the cluster is down") => "CLUSTERDOWN",
        Some("ERR") | None => hidden.split(' ').next().unwrap_or_default(),
        Some(code) => code,
    }
}

/// Returns the server's text after the code.
pub(super) fn message(error: &RedisError) -> &str {
    error.detail().unwrap_or_default()
}

/// Returns a text that explains the refusal, to follow the server's name.
///
/// It ends with the code in brackets if the server's own text adds nothing.
pub(crate) fn refusal(error: &RedisError) -> &'static str {
    let message = message(error);
    match code(error) {
        "LOADING" => "is still loading its data (LOADING)",
        "BUSY" => "is busy with a script (BUSY)",
        "OOM" => "has reached its maxmemory (OOM)",
        "MISCONF" => "cannot save its data to disk and accepts no writes: see its log (MISCONF)",
        "READONLY" => "is a replica, which accepts no writes (READONLY)",
        "MASTERDOWN" => "is a replica without a link to its master (MASTERDOWN)",
        "NOREPLICAS" => "has fewer replicas than its min-replicas-to-write (NOREPLICAS)",
        "CLUSTERDOWN" => "does not serve this key: its cluster is down or incomplete (CLUSTERDOWN)",
        "TRYAGAIN" => "is moving this key to another node of the cluster (TRYAGAIN)",
        "MOVED" => {
            "does not have this key, another node of the cluster does: in place of redis:// use a \
             redis+cluster:// URL (MOVED)"
        }
        "ASK" => "is moving this key to another node of the cluster (ASK)",
        "CROSSSLOT" => {
            "needs all keys of a call in one slot: give them a common hash tag (CROSSSLOT)"
        }
        "NOAUTH" => "requires a password (NOAUTH)",
        "WRONGPASS" => "rejects the user or the password (WRONGPASS)",
        "NOPERM" => ACCESS_LIST,
        // The refusal of a script: first the text before Redis 8, then the text since.
        _ if message.contains("can't run this command") => ACCESS_LIST,
        _ if message.contains("has no permissions") => ACCESS_LIST,
        // Among the supported servers, only Redis 6.2 has this setting.
        _ if message.contains("after non deterministic commands") => {
            "needs its setting lua-replicate-commands to be yes, the default"
        }
        _ if message.starts_with("unknown command") => "has no such command",
        _ if message.contains("max number of clients") => "accepts no more clients (maxclients)",
        _ => "refused",
    }
}

/// Says that the other side closed the connection, which the standard library calls an "unexpected
/// end of file" or a "broken pipe".
pub(crate) fn in_words(error: RedisError) -> RedisError {
    match io_error(&error).map(io::Error::kind) {
        Some(kind @ (io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe)) => {
            io::Error::new(kind, "the connection was closed").into()
        }
        _ => error,
    }
}

/// redis-rs keeps it in an `Arc`, and does not return it.
fn io_error(error: &RedisError) -> Option<&io::Error> {
    let kept: &Arc<dyn StdError + Send + Sync> = StdError::source(error)?.downcast_ref()?;
    kept.downcast_ref()
}

/// Removes secrets and noise from the error.
///
/// The server echoes the arguments of an unknown command, and one of them may be a token. It names
/// a failed script by its hash. The operating system calls a time-out "resource temporarily
/// unavailable".
pub(super) fn cleaned(error: RedisError) -> RedisError {
    if error.is_timeout() {
        return io::Error::new(io::ErrorKind::TimedOut, "no reply in time").into();
    }
    let error = in_words(error);
    let message = message(&error);
    if let Some((command, _)) = message.split_once(", with args beginning with") {
        return saying(&error, command);
    }
    // Before version 7, Redis puts a script's error into a text of its own.
    if message.starts_with("Error running script") {
        return match (
            message.rsplit_once(": -"),
            message.rsplit_once("@user_script: "),
        ) {
            (Some((_, text)), _) => answer(text),
            (_, Some((_, text))) => saying(&error, text.trim_start_matches(|c| c != ' ').trim()),
            _ => error,
        };
    }
    match message.rsplit_once(" script: ") {
        Some((text, script)) if script.contains("@user_script") => {
            saying(&error, text.trim_start_matches("ACL failure in script: "))
        }
        _ => error,
    }
}

/// Returns the same refusal with another text.
pub(crate) fn saying(error: &RedisError, text: &str) -> RedisError {
    answer(&format!("{} {text}", error.code().unwrap_or("ERR")))
}

/// Parses an error reply of a server.
fn answer(line: &str) -> RedisError {
    let line = format!("-{}\r\n", line.replace(['\r', '\n'], " "));
    let reply = redis::parse_redis_value(line.as_bytes()).and_then(Value::extract_error);
    reply.err().unwrap_or_else(makes_no_sense)
}

/// Returns the error for a reply that no server gives to this command. Omits the reply: it may be a
/// token.
pub(crate) fn makes_no_sense() -> RedisError {
    RedisError::from((ErrorKind::Parse, "unexpected reply"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "a71017147c3f1f46611ab15d6cee6ae0be4f1ebe";

    #[test]
    fn a_cleaned_refusal_names_no_script_and_no_argument() {
        for (line, text) in [
            (
                format!("OOM command not allowed. script: {HASH}, on @user_script:27."),
                r#""OOM": command not allowed."#,
            ),
            (
                format!("READONLY no writes. script: {HASH}, on @user_script:27."),
                "ReadOnly: no writes.",
            ),
            (
                format!(
                    "ERR Error running script (call to f_{HASH}): @user_script:20: \
                     @user_script: 20: -OOM command not allowed"
                ),
                r#""OOM": command not allowed"#,
            ),
            (
                format!(
                    "ERR Error running script (call to f_{HASH}): @user_script:47: \
                     @user_script: 47: Write commands not allowed"
                ),
                "ResponseError: Write commands not allowed",
            ),
            (
                format!(
                    "ERR ACL failure in script: User a has no permissions to run the 'time' \
                     command script: {HASH}, on @user_script:3."
                ),
                "ResponseError: User a has no permissions to run the 'time' command",
            ),
            (
                "ERR unknown command 'EVALSHA', with args beginning with: 's3cret' ".to_owned(),
                "ResponseError: unknown command 'EVALSHA'",
            ),
            ("NOPERM no permissions".to_owned(), "NoPerm: no permissions"),
        ] {
            assert_eq!(cleaned(answer(&line)).to_string(), text);
        }
    }

    #[test]
    fn a_connection_that_ended_is_told_in_words() {
        for (kind, words) in [
            (io::ErrorKind::UnexpectedEof, "the connection was closed"),
            (io::ErrorKind::BrokenPipe, "the connection was closed"),
            (io::ErrorKind::WouldBlock, "no reply in time"),
            (io::ErrorKind::ConnectionRefused, "connection refused"),
        ] {
            let before = RedisError::from(io::Error::from(kind));
            let after = cleaned(before.clone());
            assert_eq!(after.to_string(), words);
            assert_eq!(after.is_timeout(), before.is_timeout());
            assert_eq!(
                after.is_connection_dropped(),
                before.is_connection_dropped()
            );
        }
    }

    #[test]
    fn a_refusal_is_explained_in_words() {
        for (line, words) in [
            ("LOADING x", "is still loading its data (LOADING)"),
            (
                "ERR Error running script: -OOM x",
                "has reached its maxmemory (OOM)",
            ),
            (
                "ERR max number of clients reached",
                "accepts no more clients (maxclients)",
            ),
            (
                "ERR User a has no permissions to run the 'time' command",
                "denies it (ACL)",
            ),
            ("ERR x", "refused"),
        ] {
            assert_eq!(refusal(&answer(line)), words);
        }
    }
}
