//! Turns an error of redis-rs into an [`Error`].

use std::{io, sync::Arc, time::Duration};

use redis::{ErrorKind, RedisError};

use super::{
    Error, ErrorContext, LostReason, Result,
    refusals::{cleaned, code, makes_no_sense, message},
};
use crate::token::Token;

/// Returns [`Error::Invalid`] if an argument breaks a rule.
pub(crate) fn ensure(is_kept: bool, argument: &'static str, reason: &str) -> Result<()> {
    is_kept
        .then_some(())
        .ok_or_else(|| Error::invalid(argument, reason))
}

/// The longest part of a name that an error repeats, in characters: that of a valid name.
const LONGEST_NAME: usize = 512;

/// The running function and its lock: the context of its errors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation<'a> {
    pub(crate) name: &'static str,
    pub(crate) lock: &'a str,
}

impl<'a> Operation<'a> {
    pub(crate) fn new(name: &'static str, lock: &'a str) -> Self {
        Self { name, lock }
    }

    pub(crate) fn context(self) -> ErrorContext {
        let (operation, lock) = (self.name, self.lock.to_owned());
        ErrorContext { operation, lock }
    }

    /// Runs a public function. This is where an error gets its function and lock if the code that
    /// found it knows neither: an argument, a connection, a thread, a forked child.
    pub(crate) fn run<T>(self, run: impl FnOnce(Self) -> Result<T>) -> Result<T> {
        run(self).map_err(|error| self.named(error))
    }

    /// Adds the function and the lock to an error that has none. The name may be invalid, and of
    /// any length.
    pub(crate) fn named(self, mut error: Error) -> Error {
        if error.context().is_none()
            && let Some(context) = error.context_mut()
        {
            context.operation = self.name;
            context.lock = self.lock.chars().take(LONGEST_NAME).collect();
        }
        error
    }

    /// Returns `Contended` for keys that kept changing.
    pub(crate) fn contended(self) -> Error {
        self.contended_after(None)
    }

    /// Returns `Contended` for a lock that others held for this whole wait.
    pub(crate) fn contended_after(self, waited: Option<Duration>) -> Error {
        Error::Contended {
            context: self.context(),
            waited,
            holder: None,
            remaining: None,
        }
    }

    pub(crate) fn cancelled(self) -> Error {
        let context = self.context();
        Error::Cancelled { context }
    }

    pub(crate) fn lost(self) -> Error {
        self.lost_because(None, None)
    }

    /// `failure`: the last failure before the loss.
    pub(crate) fn lost_because(self, reason: Option<LostReason>, failure: Option<Error>) -> Error {
        Error::Lost {
            context: self.context(),
            reason,
            source: failure.map(Arc::new),
        }
    }

    pub(crate) fn wrong_kind(self, found: impl Into<String>) -> Error {
        let (context, found) = (self.context(), found.into());
        Error::WrongKind { context, found }
    }

    pub(crate) fn partial(self, source: RedisError) -> Error {
        let (context, source) = (self.context(), cleaned(source));
        Error::Partial { context, source }
    }

    /// Returns the error of a command that ran, but whose reply does not have the requested type.
    /// Omits the reply: it may be a token.
    pub(crate) fn misfit(self) -> Error {
        let kind = ErrorKind::UnexpectedReturnType;
        self.told(RedisError::from((kind, "a reply of another type")))
    }

    /// Returns the error of a read whose reply is unexpected. Nothing was written.
    pub(crate) fn unreadable(self) -> Error {
        self.failed(makes_no_sense())
    }

    /// Converts a failure after which nothing has changed on the server.
    pub(crate) fn failed(self, source: RedisError) -> Error {
        if let Some((_, found)) = wrong_key(&source) {
            return self.wrong_kind(found);
        }
        match (source.code(), message(&source)) {
            (Some("INVALIDEND"), reason) => Error::invalid("end", reason),
            (Some("INVALIDTOKEN"), reason) => Error::invalid("token", reason),
            (Some(TOO_FEW_REPLICAS), counts) => self.too_few_replicas(counts),
            _ => Error::Redis {
                context: self.context(),
                source: cleaned(source),
            },
        }
    }

    /// `counts` reads "1 of 2": one replica acknowledged, two were asked for.
    fn too_few_replicas(self, counts: &str) -> Error {
        let (had, wanted) = counts.split_once(" of ").unwrap_or_default();
        Error::TooFewReplicas {
            context: self.context(),
            wanted: wanted.parse().unwrap_or(0),
            had: had.parse().unwrap_or(0),
        }
    }

    /// Converts a failure of a command that may have been executed before the connection broke.
    pub(crate) fn unanswered(self, token: Option<&Token>, source: RedisError) -> Error {
        match source.kind() {
            ErrorKind::Io => self.unknown(token, source),
            // The reply is left out: it may be a token.
            ErrorKind::Parse | ErrorKind::UnexpectedReturnType => {
                self.unknown(token, makes_no_sense())
            }
            _ => self.failed(source),
        }
    }

    /// Converts the failure of another thread that asked on behalf of this one. Nothing was sent
    /// for this one.
    pub(crate) fn failed_as(self, failure: &Error) -> Error {
        match failure.clone() {
            Error::Redis { source, .. } => self.failed(source),
            Error::Unknown { source, .. } => self.named(unanswered_ahead(Some(source))),
            mut failure => {
                if let Some(context) = failure.context_mut() {
                    *context = self.context();
                }
                failure
            }
        }
    }

    /// Converts a failure of the caller's own command, which this library cannot interpret.
    pub(crate) fn told(self, source: RedisError) -> Error {
        let (context, source) = (self.context(), cleaned(source));
        match source.kind() {
            ErrorKind::Io => self.unknown(None, source),
            ErrorKind::Parse | ErrorKind::UnexpectedReturnType => Error::Reply { context, source },
            _ => Error::Redis { context, source },
        }
    }

    /// Returns `Unknown`: the operation may have been executed.
    pub(crate) fn unknown(self, token: Option<&Token>, source: RedisError) -> Error {
        Error::Unknown {
            context: self.context(),
            token: token.cloned(),
            source: cleaned(source),
        }
    }
}

/// Our own codes: the master did the write, but too few replicas acknowledged it, or the server
/// refused `WAIT`, so their number is unknown.
pub(crate) const TOO_FEW_REPLICAS: &str = "TOOFEWREPLICAS";
pub(crate) const REFUSED_WAIT: &str = "REFUSEDWAIT";
/// Returns true for these two codes: the master did the write.
pub(crate) fn is_unconfirmed(error: &RedisError) -> bool {
    matches!(error.code(), Some(TOO_FEW_REPLICAS | REFUSED_WAIT))
}

/// Returns true if too few replicas follow the master, such as one that a failover has replaced.
pub(crate) fn is_left_by_replicas(error: &RedisError) -> bool {
    matches!(code(error), TOO_FEW_REPLICAS | "NOREPLICAS")
}

/// Returns true if the same request may succeed later: the server is starting, changing its role,
/// busy with a script, or cannot write for lack of memory, disk or replicas.
pub(crate) fn may_pass(error: &RedisError) -> bool {
    match code(error) {
        "LOADING" | "READONLY" | "BUSY" | "TRYAGAIN" | "ASK" | "MASTERDOWN" | "CLUSTERDOWN"
        | "OOM" | "MISCONF" => true,
        _ => is_left_by_replicas(error),
    }
}

/// Returns true if another attempt to connect may succeed. False after a permanent refusal, such as
/// of a password or a certificate.
pub(crate) fn may_connect_later(error: &RedisError) -> bool {
    match error.kind() {
        ErrorKind::Io if is_refused_by_tls(error) => false,
        ErrorKind::Io | ErrorKind::Parse | ErrorKind::UnexpectedReturnType => true,
        _ => may_pass(error) || message(error).contains("max number of clients"),
    }
}

/// Returns true if one side refuses the certificate of the other, or the TLS version.
fn is_refused_by_tls(error: &RedisError) -> bool {
    let words = error.to_string();
    ["invalid peer certificate", "received fatal alert"]
        .iter()
        .any(|refusal| words.contains(refusal))
}

/// Returns the error of a thread that waited in a queue. Nothing was sent for it, and the holder is
/// unknown.
pub(crate) fn unanswered_ahead(source: Option<RedisError>) -> Error {
    let reason = "the server has not replied to the threads that wait ahead of this one";
    Error::pool(reason, source)
}

/// Returns the error of a request that got no reply in time.
pub(crate) fn timed_out() -> RedisError {
    io::Error::from(io::ErrorKind::TimedOut).into()
}

/// Returns the error of a request that got no reply.
pub(crate) fn no_answer() -> RedisError {
    io::Error::from(io::ErrorKind::BrokenPipe).into()
}

/// The key that holds a value which the command or script does not handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WrongKey {
    /// The lock's own key, or the key of a plain command.
    Lock,
    Companion,
    /// The key of a run's mark. The error text names it.
    Mark,
}

/// Returns the key that holds something else, and what it holds. `None`: another error. Before
/// Redis 7 a script's error has its code inside its message.
pub(crate) fn wrong_key(error: &RedisError) -> Option<(WrongKey, &str)> {
    let (code, text) = (error.code().unwrap_or_default(), message(error));
    let has_wrong_type = code == "WRONGTYPE" || text.contains("WRONGTYPE");
    let found = if has_wrong_type {
        "a key of another type"
    } else {
        text.trim_start_matches("WRONGKIND ")
    };
    let key = match code {
        "COMPANION" => WrongKey::Companion,
        "WRONGMARK" => WrongKey::Mark,
        "WRONGKIND" => WrongKey::Lock,
        _ if has_wrong_type => WrongKey::Lock,
        _ => return None,
    };
    Some((key, found))
}

/// Returns the server's error with a clearer text.
pub(crate) fn with_text(error: &RedisError, words: &'static str) -> RedisError {
    RedisError::from((error.kind(), words, message(error).to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_key_that_holds_something_else() {
        const TYPE: &str = "a key of another type";
        for (code, text, expected) in [
            ("WRONGKIND", "x", Some((WrongKey::Lock, "x"))),
            ("WRONGTYPE", "x", Some((WrongKey::Lock, TYPE))),
            (
                "ERR",
                "in a script: -WRONGTYPE x",
                Some((WrongKey::Lock, TYPE)),
            ),
            ("COMPANION", "WRONGKIND x", Some((WrongKey::Companion, "x"))),
            (
                "COMPANION",
                "WRONGTYPE x",
                Some((WrongKey::Companion, TYPE)),
            ),
            (
                "WRONGMARK",
                "x, at `y`",
                Some((WrongKey::Mark, "x, at `y`")),
            ),
            ("OOM", "x", None),
        ] {
            let error = redis::parse_redis_value(format!("-{code} {text}\r\n").as_bytes());
            let error = error.unwrap().extract_error().unwrap_err();
            assert_eq!(wrong_key(&error), expected, "{code} {text}");
        }
    }
}
