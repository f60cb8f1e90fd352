//! Errors: one variant for each outcome that a caller acts on differently.

mod operation;

use std::{fmt, io, sync::Arc, time::Duration};

use redis::RedisError;

use crate::token::Token;
pub(crate) use operation::{
    Operation, REFUSED_WAIT, TOO_FEW_REPLICAS, WRONG_MARK, is_left_by_replicas, is_unconfirmed,
    is_wrong_kind, is_wrong_type, makes_no_sense, may_connect_later, may_pass, no_answer,
    told_otherwise, unanswered_ahead,
};

/// The result of everything in the lock core.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The function that an error comes from, and the lock or key that it was at work on.
///
/// Both are empty in an error that redis-rs has made in a closure of the caller's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorContext {
    /// The function, such as `Lock::acquire`.
    pub operation: &'static str,
    /// The lock's name, or the key.
    pub lock: String,
}

/// Why a lease was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// The server says that the lock is not ours: it was deleted, taken over, or had ended there.
    TakenAway,
    /// Our clock reached the end before a renewal got through.
    Ended,
    /// It was held for as long as [`Keep::max_hold`](crate::Keep::max_hold) or
    /// [`Options::max_hold`](crate::Options::max_hold) allows.
    MaxHold,
    /// The [`Watchdog`](crate::Watchdog) was dropped, so that nobody renewed the lease.
    Unwatched,
}

/// One variant for each thing a caller does differently.
///
/// Five answers never share a variant: *contended*, *lost*, *unknown*, *unavailable*
/// ([`Error::Redis`], [`Error::Pool`]) and *misused* ([`Error::Invalid`], [`Error::WrongKind`]). No
/// variant prints a token or a password.
///
/// `{error}` says what has become of the call. The server's own words are in the error's
/// [`source`](std::error::Error::source): an `anyhow::Error` made of it prints both by `{error:#}`.
///
#[doc = include_str!("../docs/errors.md")]
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// Somebody else had the lock, or kept changing it, for as long as we tried. Nothing was done.
    Contended {
        /// The function and the lock.
        context: ErrorContext,
        /// For how long it was waited, by [`Lock::acquire`](crate::Lock::acquire) and its like.
        waited: Option<Duration>,
        /// Who has it, where that is known without asking: another thread of this process.
        holder: Option<String>,
        /// For how much longer the holder has it, unless it renews or releases it, as far as the
        /// last answer told.
        remaining: Option<Duration>,
    },
    /// A [`Cancel`](crate::Cancel) was raised. Nothing was done, or what was done is undone.
    Cancelled {
        /// The function and the lock.
        context: ErrorContext,
    },
    /// The lock was ours and is not any more. Of a commit: nothing was written.
    Lost {
        /// The function and the lock.
        context: ErrorContext,
        /// Why, if it was kept by a [`Lease`](crate::Lease) or a [`Watchdog`](crate::Watchdog).
        reason: Option<LostReason>,
    },
    /// The command was sent and no answer came: it may have happened.
    ///
    /// Of an acquire, [`Error::token`] gives the token that may hold the lock: release it on
    /// another connection.
    Unknown {
        /// The function and the lock.
        context: ErrorContext,
        /// Of an acquire, the token that was sent.
        token: Option<Token>,
        /// The failure that ended the conversation.
        source: RedisError,
    },
    /// The server refused, or was not reached: it did not happen.
    Redis {
        /// The function and the lock.
        context: ErrorContext,
        /// The server's words.
        source: RedisError,
    },
    /// Some of it happened, for Redis does not roll back: a command inside `EXEC` was refused and
    /// the others were applied, a script inside it failed, perhaps half-way, or somebody who trades
    /// in another way came between.
    Partial {
        /// The function and the lock.
        context: ErrorContext,
        /// The first refusal.
        source: RedisError,
    },
    /// It happened, but the answer is not of the type that was asked for.
    Reply {
        /// The function and the lock.
        context: ErrorContext,
        /// The part that did not fit.
        source: RedisError,
    },
    /// The lock was taken, but fewer replicas had it than
    /// [`Options::replicas`](crate::Options::replicas) asks for, for as long as we tried. It is
    /// being given back. Of a renewal: the lease ends when it did before.
    TooFewReplicas {
        /// The function and the lock.
        context: ErrorContext,
        /// So many had to have it.
        wanted: u32,
        /// So many had it at the last attempt.
        had: u32,
    },
    /// A key holds something that this operation does not understand. Nothing was changed.
    ///
    /// It is the lock's own key, the one beside a lock with a fencing token, whose name ends in
    /// `:lease`, or the mark of work that is done once, whose name ends in `:lease:ran`.
    WrongKind {
        /// The function and the lock.
        context: ErrorContext,
        /// The kind of key that was found.
        found: String,
    },
    /// An argument that cannot be used. Nothing was sent, or, of what only the server can judge,
    /// nothing done.
    Invalid {
        /// Which argument.
        argument: &'static str,
        /// The rule that it breaks.
        reason: String,
    },
    /// The server is older than this library supports: Redis 6.2 or Valkey 7.2. Only
    /// [`Pool`](crate::Pool) asks.
    TooOld {
        /// The version that it says.
        found: String,
    },
    /// The pool had no connection to lend in time.
    Pool {
        /// Why: the server cannot be reached, or all connections are lent.
        reason: String,
        /// The last attempt to connect, if one failed.
        source: Option<RedisError>,
    },
    /// This process is the child of a fork, and the pool or the locks are its parent's. Nothing was
    /// sent.
    ///
    /// The two would read each other's answers from one socket. Fork before the first
    /// [`Pool`](crate::Pool) or [`Locks`](crate::Locks) is made, or have the child start a program
    /// (`std::process::Command`). New ones in the child are not safe: what another thread had
    /// locked at the moment of the fork stays locked there, so they may hang.
    Forked,
    /// A thread could not be started.
    Thread {
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// An error of the caller's own, which a closure of a transaction has returned: see
    /// [`Error::other`]. Nothing was written.
    Other {
        /// It.
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
}

impl Error {
    /// True if somebody else had the lock, or kept changing it, for as long as we tried.
    #[must_use]
    pub fn is_contended(&self) -> bool {
        matches!(self, Self::Contended { .. })
    }

    /// True if nothing of what was asked for has happened or will:
    /// [`may_have_happened`](Self::may_have_happened) is the rest.
    ///
    /// ```
    /// # fn write_again() {}
    /// # fn look_whether_it_was_written() {}
    /// # let outcome: leasehold::Result<()> = Err(leasehold::Error::other("the item is sold"));
    /// match outcome {
    ///     Ok(()) => {}
    ///     Err(error) if error.did_not_happen() => write_again(),
    ///     Err(_) => look_whether_it_was_written(),
    /// }
    /// ```
    #[must_use]
    pub fn did_not_happen(&self) -> bool {
        !self.may_have_happened()
    }

    /// True if all or part of what was asked for may have happened, or may still:
    /// [`Unknown`](Self::Unknown), [`Partial`](Self::Partial) and [`Reply`](Self::Reply).
    #[must_use]
    pub fn may_have_happened(&self) -> bool {
        matches!(
            self,
            Self::Unknown { .. } | Self::Partial { .. } | Self::Reply { .. }
        )
    }

    /// True if another attempt may succeed after nothing happened: no change of the call, of rights
    /// or of a password is needed.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::Redis { source, .. } => may_pass(source),
            Self::Pool { source, .. } => source.as_ref().is_none_or(may_connect_later),
            _ => false,
        }
    }

    /// The token that may hold the lock after an acquire whose outcome is unknown.
    ///
    /// ```
    /// # fn clean_up(pool: &leasehold::Pool, error: &leasehold::Error) -> leasehold::Result<()> {
    /// if let Some(token) = error.token() {
    ///     let mut another = pool.get()?;
    ///     leasehold::release_lock(&mut another, "report", token)?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn token(&self) -> Option<&Token> {
        match self {
            Self::Unknown { token, .. } => token.as_ref(),
            _ => None,
        }
    }

    /// The function and the lock, of every error that came up at work on a lock.
    #[must_use]
    pub fn context(&self) -> Option<&ErrorContext> {
        match self {
            Self::Contended { context, .. }
            | Self::Cancelled { context }
            | Self::Lost { context, .. }
            | Self::Unknown { context, .. }
            | Self::Redis { context, .. }
            | Self::Partial { context, .. }
            | Self::Reply { context, .. }
            | Self::TooFewReplicas { context, .. }
            | Self::WrongKind { context, .. } => Some(context),
            _ => None,
        }
    }

    /// It was made by `?` of an error of redis-rs.
    pub(crate) fn is_unnamed(&self) -> bool {
        matches!(self.context(), Some(context) if context.operation.is_empty())
    }

    /// An error of your own, to be returned by the closure of a
    /// [transaction](crate::Lease::transaction): from an error, or from a text.
    ///
    /// ```
    /// let error = leasehold::Error::other("the item is sold");
    /// assert_eq!(error.to_string(), "the item is sold");
    /// ```
    #[must_use]
    pub fn other(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        let source = Arc::from(error.into());
        Self::Other { source }
    }

    pub(crate) fn invalid(argument: &'static str, reason: impl Into<String>) -> Self {
        let reason = reason.into();
        Self::Invalid { argument, reason }
    }

    pub(crate) fn thread(source: io::Error) -> Self {
        let source = Arc::new(source);
        Self::Thread { source }
    }
}

/// Refuses an argument that does not keep to a rule.
pub(crate) fn ensure(is_kept: bool, argument: &'static str, reason: &str) -> Result<()> {
    is_kept
        .then_some(())
        .ok_or_else(|| Error::invalid(argument, reason))
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(ErrorContext { operation, lock }) = self.context()
            && !operation.is_empty()
        {
            write!(f, "{operation} on `{lock}`: ")?;
        }
        let text = match self {
            Self::Contended {
                waited,
                holder,
                remaining,
                ..
            } => {
                f.write_str("somebody else had it, or was faster, for the whole time")?;
                if let Some(waited) = waited {
                    write!(f, " ({waited:.1?})")?;
                }
                if let Some(holder) = holder {
                    write!(f, "; `{holder}` of this process has it")?;
                }
                if let Some(remaining) = remaining {
                    write!(f, "; it ends in {remaining:.1?} unless it is renewed")?;
                }
                ""
            }
            Self::Cancelled { .. } => "called off by its `Cancel`",
            Self::Lost { reason, .. } => match reason {
                Some(reason) => return write!(f, "the lock was lost: {reason}"),
                None => "the lock is not ours any more",
            },
            Self::Unknown { .. } => "no answer came, it may have happened",
            Self::Redis { .. } => "it did not happen: the server refused or was not reached",
            Self::Partial { .. } => "a command was refused, the others of its transaction ran",
            Self::Reply { .. } => "it happened, but the answer has another type",
            Self::TooFewReplicas { wanted, had, .. } => {
                return write!(f, "{had} replicas had it in time, and {wanted} are wanted");
            }
            Self::WrongKind { found, .. } => return write!(f, "found {found}"),
            Self::Invalid { argument, reason } => return write!(f, "invalid {argument}: {reason}"),
            Self::TooOld { found } => {
                write!(f, "the server is too old ({found}): ")?;
                "it has to be Redis 6.2 or Valkey 7.2, or newer"
            }
            Self::Pool { reason, .. } => return write!(f, "no connection from the pool: {reason}"),
            Self::Forked => {
                "this process is a fork's child, and the pool is its parent's: fork before a pool \
                 is made, or start a program in the child"
            }
            Self::Thread { .. } => "could not start a thread",
            Self::Other { source } => return source.fmt(f),
        };
        f.write_str(text)
    }
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TakenAway => "it was deleted, taken over, or had ended on the server",
            Self::Ended => "its lease ended before a renewal got through",
            Self::MaxHold => "it was held for as long as is allowed",
            Self::Unwatched => "the watchdog was dropped",
        })
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // redis-rs repeats the text of an error in the error's own source.
            Self::Unknown { source, .. }
            | Self::Redis { source, .. }
            | Self::Partial { source, .. }
            | Self::Reply { source, .. }
            | Self::Pool {
                source: Some(source),
                ..
            } => Some(std::error::Error::source(source).unwrap_or(source)),
            Self::Thread { source } => Some(&**source),
            Self::Other { source } => source.source(),
            _ => None,
        }
    }
}

/// For `?` in the closure of a [transaction](crate::Lease::transaction), which then names the
/// function and the lock. Elsewhere too it is [`Unknown`](Error::Unknown) if the conversation broke
/// off, so that it may have happened, [`Reply`](Error::Reply) if the answer is of another type, and
/// [`Redis`](Error::Redis) if the server refused.
impl From<RedisError> for Error {
    fn from(source: RedisError) -> Self {
        Operation::new("", "").told(source)
    }
}
