//! From what redis-rs says to what a caller does about it.

use std::io;

use redis::{ErrorKind, RedisError};

use super::{Error, ErrorContext, LostReason};
use crate::token::Token;

/// The function at work, and its lock: the context of every error of a conversation.
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

    pub(crate) fn contended(self) -> Error {
        Error::Contended {
            context: self.context(),
            waited: None,
            holder: None,
            remaining: None,
        }
    }

    pub(crate) fn cancelled(self) -> Error {
        let context = self.context();
        Error::Cancelled { context }
    }

    pub(crate) fn lost(self) -> Error {
        self.lost_because(None)
    }

    pub(crate) fn lost_because(self, reason: Option<LostReason>) -> Error {
        let context = self.context();
        Error::Lost { context, reason }
    }

    pub(crate) fn wrong_kind(self, found: impl Into<String>) -> Error {
        let (context, found) = (self.context(), found.into());
        Error::WrongKind { context, found }
    }

    pub(crate) fn partial(self, source: RedisError) -> Error {
        let (context, source) = (self.context(), without_arguments(source));
        Error::Partial { context, source }
    }

    /// A command ran, but its answer is not what the caller asked for. The answer is not repeated:
    /// it may be a token.
    pub(crate) fn misfit(self) -> Error {
        let kind = ErrorKind::UnexpectedReturnType;
        self.told(RedisError::from((kind, "an answer of another type")))
    }

    /// An answer that makes no sense to a read, so nothing was written.
    pub(crate) fn unreadable(self) -> Error {
        self.failed(makes_no_sense())
    }

    /// The failure of a conversation that changed nothing on the server.
    pub(crate) fn failed(self, source: RedisError) -> Error {
        match (source.code(), message(&source)) {
            _ if is_wrong_type(&source) => self.wrong_kind("a key that holds another type"),
            (Some("WRONGKIND" | WRONG_MARK), found) => self.wrong_kind(found),
            (Some("INVALIDEND"), reason) => Error::invalid("end", reason),
            (Some("INVALIDTOKEN"), reason) => Error::invalid("token", reason),
            (Some(TOO_FEW_REPLICAS), counts) => self.too_few_replicas(counts),
            _ => Error::Redis {
                context: self.context(),
                source: naming_the_url(without_arguments(source)),
            },
        }
    }

    /// By "1 of 2".
    fn too_few_replicas(self, counts: &str) -> Error {
        let (had, wanted) = counts.split_once(" of ").unwrap_or_default();
        Error::TooFewReplicas {
            context: self.context(),
            wanted: wanted.parse().unwrap_or(0),
            had: had.parse().unwrap_or(0),
        }
    }

    /// The failure of a command that may have been executed before the conversation ended.
    pub(crate) fn unanswered(self, token: Option<&Token>, source: RedisError) -> Error {
        match source.kind() {
            ErrorKind::Io => self.unknown(token, source),
            // The answer is not repeated: it may be a token.
            ErrorKind::Parse | ErrorKind::UnexpectedReturnType => {
                self.unknown(token, makes_no_sense())
            }
            _ => self.failed(source),
        }
    }

    /// The failure of a thread that asked for this one as well. Nothing was sent for this one.
    pub(crate) fn failed_as(self, failure: &Error) -> Error {
        match failure.clone() {
            Error::Redis { source, .. } => self.failed(source),
            Error::Unknown { source, .. } => unanswered_ahead(Some(source)),
            failure => failure,
        }
    }

    /// The failure of a command of the caller's own, of which nothing is known.
    pub(crate) fn told(self, source: RedisError) -> Error {
        let (context, source) = (self.context(), without_arguments(source));
        match source.kind() {
            ErrorKind::Io => self.unknown(None, source),
            ErrorKind::Parse | ErrorKind::UnexpectedReturnType => Error::Reply { context, source },
            _ => Error::Redis { context, source },
        }
    }

    /// It may have happened.
    pub(crate) fn unknown(self, token: Option<&Token>, source: RedisError) -> Error {
        Error::Unknown {
            context: self.context(),
            token: token.cloned(),
            source: without_arguments(source),
        }
    }
}

/// The codes of errors of our own: a write was done on the master, but too few replicas have it, or
/// nobody knows how many.
pub(crate) const TOO_FEW_REPLICAS: &str = "TOOFEWREPLICAS";
pub(crate) const REFUSED_WAIT: &str = "REFUSEDWAIT";
/// A key of a run's mark holds something else. The text names that key.
pub(crate) const WRONG_MARK: &str = "WRONGMARK";

/// It was done, though it is an error.
pub(crate) fn is_unconfirmed(error: &RedisError) -> bool {
    matches!(error.code(), Some(TOO_FEW_REPLICAS | REFUSED_WAIT))
}

/// True if too few replicas follow the master, as after a failover.
pub(crate) fn is_left_by_replicas(error: &RedisError) -> bool {
    matches!(code(error), TOO_FEW_REPLICAS | "NOREPLICAS")
}

/// True if the same request may succeed later: the server is starting, changing its role, busy with
/// a script, or cannot write for lack of memory, disk or replicas.
pub(crate) fn may_pass(error: &RedisError) -> bool {
    match code(error) {
        "LOADING" | "READONLY" | "BUSY" | "TRYAGAIN" | "ASK" | "MASTERDOWN" | "CLUSTERDOWN"
        | "OOM" | "MISCONF" => true,
        _ => is_left_by_replicas(error),
    }
}

/// The error's code, or an empty text. Before Redis 7 a script's error has it inside its message.
fn code(error: &RedisError) -> &str {
    let (_, hidden) = message(error).split_once(": -").unwrap_or_default();
    match error.code() {
        Some("ERR") | None => hidden.split(' ').next().unwrap_or_default(),
        Some(code) => code,
    }
}

/// True if another attempt to connect may succeed. False after a lasting refusal, such as of a
/// password.
pub(crate) fn may_connect_later(error: &RedisError) -> bool {
    match error.kind() {
        ErrorKind::Io | ErrorKind::Parse | ErrorKind::UnexpectedReturnType => true,
        _ => may_pass(error) || message(error).contains("max number of clients"),
    }
}

/// Nothing was sent for a thread in a queue, and nobody knows who has the lock.
pub(crate) fn unanswered_ahead(source: Option<RedisError>) -> Error {
    Error::Pool {
        reason: String::from("the server has not answered the threads that wait ahead of this one"),
        source,
    }
}

/// An answer that no server gives to this command. It is not repeated: it may be a token.
pub(crate) fn makes_no_sense() -> RedisError {
    RedisError::from((ErrorKind::Parse, "the answer makes no sense"))
}

/// It was sent, and no answer came.
pub(crate) fn no_answer() -> RedisError {
    io::Error::from(io::ErrorKind::BrokenPipe).into()
}

/// The type of a key does not fit the command. Before Redis 7 a script's error hides the code in
/// its text.
pub(crate) fn is_wrong_type(error: &RedisError) -> bool {
    error.code() == Some("WRONGTYPE") || message(error).contains("WRONGTYPE")
}

/// A key holds something that the command or script is not for.
pub(crate) fn is_wrong_kind(error: &RedisError) -> bool {
    is_wrong_type(error) || matches!(error.code(), Some("WRONGKIND" | WRONG_MARK))
}

fn message(error: &RedisError) -> &str {
    error.detail().unwrap_or_default()
}

/// The key is on another server, to which nobody here goes. The detail still says where it is: a
/// [`Nodes`](crate::Nodes) learns from it.
fn naming_the_url(error: RedisError) -> RedisError {
    let reason = match error.code() {
        Some("MOVED" | "ASK") => {
            "this node of a Redis Cluster has not got the key, or passes it on just now: `Locks`, \
             and `Nodes::run`, go to the one that has, by a redis+cluster:// URL (feature `cluster`)"
        }
        Some("CROSSSLOT") => {
            "on a Redis Cluster the keys have to be in one slot, by a hash tag that they share \
             with the lock"
        }
        _ => return error,
    };
    told_otherwise(&error, reason)
}

/// The answer of the server, in words that say more.
pub(crate) fn told_otherwise(error: &RedisError, words: &'static str) -> RedisError {
    RedisError::from((error.kind(), words, message(error).to_owned()))
}

/// The server repeats the arguments of a command that it does not know, and one of them may be a
/// token.
fn without_arguments(error: RedisError) -> RedisError {
    let Some((before, _)) = message(&error).split_once(", with args beginning with") else {
        return error;
    };
    RedisError::from((error.kind(), "the server refused", before.to_owned()))
}
