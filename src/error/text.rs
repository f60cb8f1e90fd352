//! The text of each error, and its cause.

use std::fmt;

use super::{Error, ErrorContext, LostReason, refusals::refusal};

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.context() {
            None => {}
            Some(ErrorContext { operation, lock }) => write!(f, "{operation} on `{lock}`: ")?,
        }
        let text = match self {
            Self::Contended {
                waited,
                holder,
                remaining,
                ..
            } => {
                match waited {
                    Some(waited) => {
                        write!(f, "not acquired within {waited:.1?}")?;
                    }
                    None => {
                        f.write_str("the lock or a watched key changed during every attempt")?;
                    }
                }
                if let Some(holder) = holder {
                    write!(f, ", held by `{holder}` of this process")?;
                }
                if let Some(remaining) = remaining {
                    write!(f, "; the lease ends in {remaining:.1?} unless renewed")?;
                }
                ""
            }
            Self::Cancelled { .. } => "cancelled",
            Self::Lost { reason, .. } => match reason {
                Some(reason) => return write!(f, "the lock was lost: {reason}"),
                None => "the lock is not ours",
            },
            Self::Unknown { .. } => "no reply: it may have been executed",
            Self::Redis { source, .. } if source.is_io_error() => {
                "not executed: Redis could not be reached"
            }
            Self::Redis { source, .. } => {
                f.write_str("not executed: Redis ")?;
                refusal(source)
            }
            Self::Partial { .. } => "a command of the transaction failed; the others were executed",
            Self::Reply { .. } => "executed, but the reply does not have the requested type",
            Self::TooFewReplicas { wanted, had, .. } => {
                return write!(f, "only {had} of {wanted} replicas confirmed the write");
            }
            Self::WrongKind { found, .. } => return write!(f, "found {found}"),
            Self::Invalid {
                argument, reason, ..
            } => return write!(f, "invalid {argument}: {reason}"),
            Self::TooOld { found, .. } => {
                write!(f, "the server is too old ({found}): ")?;
                "Redis 6.2 or Valkey 7.2 is required"
            }
            Self::Pool { reason, .. } => return f.write_str(reason),
            Self::Forked { .. } => {
                "this process is a forked child, and the pool is its parent's: fork before creating \
                 a pool, or execute a program in the child"
            }
            Self::Thread { .. } => "could not start a thread",
            Self::Other { source } => return write!(f, "{source}"),
        };
        f.write_str(text)
    }
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TakenAway => "it was deleted, taken over, or had expired on the server",
            Self::Ended => "its lease ended before a renewal succeeded",
            Self::MaxHold => "it reached its `max_hold`",
            Self::Unwatched => "the watchdog was dropped",
        })
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // redis-rs repeats an error's text in the source of that error.
            Self::Unknown { source, .. }
            | Self::Redis { source, .. }
            | Self::Partial { source, .. }
            | Self::Reply { source, .. }
            | Self::Pool {
                source: Some(source),
                ..
            } => Some(std::error::Error::source(source).unwrap_or(source)),
            Self::Thread { source, .. } => Some(&**source),
            Self::Lost { source, .. } => source
                .as_deref()
                .map(|source| source as &dyn std::error::Error),
            // The text of `Other` is that of the caller's error, which the chain must not repeat.
            Self::Other { source } => source.source(),
            _ => None,
        }
    }
}
