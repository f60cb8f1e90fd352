//! Errors: one variant for each outcome that a caller handles differently.

mod operation;
mod refusals;
mod text;

use std::{fmt, io, sync::Arc, time::Duration};

use redis::RedisError;

use crate::token::Token;
pub(crate) use operation::{
    Operation, REFUSED_WAIT, TOO_FEW_REPLICAS, WrongKey, ensure, is_left_by_replicas,
    is_unconfirmed, may_connect_later, may_pass, no_answer, timed_out, unanswered_ahead, with_text,
    wrong_key,
};
pub(crate) use refusals::{code, in_words, makes_no_sense, refusal, saying};

/// The result type of this library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The function that failed, and its lock or key.
///
/// Both are empty in an error that concerns no lock, such as that of
/// [`Pool::get`](crate::Pool::get), and in one that `?` converted from redis-rs in the caller's own
/// closure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ErrorContext {
    /// The function, such as `Lock::acquire`.
    pub operation: &'static str,
    /// The lock's name, or the key.
    ///
    /// An error of a whole set has all its names, as in `a, b, b`. A trade has the name of its lock
    /// or, without a lock, the offer, as in `ItemM.17`; if an argument is invalid, the item alone.
    pub lock: String,
}

/// The reason why a lease was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// Before the lease ended by the local clock, the server reports another holder, none, or a key
    /// that holds something else: the lock was deleted, taken over, or had expired.
    TakenAway,
    /// By the local clock the lease ended before a renewal succeeded.
    Ended,
    /// The lock was held for as long as [`Keep::max_hold`](crate::Keep::max_hold) or
    /// [`Options::max_hold`](crate::Options::max_hold) allows.
    MaxHold,
    /// The [`Watchdog`](crate::Watchdog) was dropped, so nothing renewed the lease.
    Unwatched,
}

/// An error: one variant for each outcome that a caller handles differently.
///
/// Five outcomes never share a variant: *contended*, *lost*, *unknown*, *unavailable*
/// ([`Error::Redis`], [`Error::Pool`]) and *misused* ([`Error::Invalid`], [`Error::WrongKind`]). No
/// variant prints a token or a password.
///
/// `{error}` prints the outcome of the call. The server's error text is in the
/// [`source`](std::error::Error::source): as an `anyhow::Error`, `{error:#}` prints both.
///
#[doc = include_str!("../docs/errors.md")]
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// Someone else held the lock until the end of the wait, or others kept changing it, or the
    /// limit of a set passed before this lock was asked for. Nothing was done.
    Contended {
        /// The function and the lock.
        context: ErrorContext,
        /// The length of the wait of [`Lock::acquire`](crate::Lock::acquire) or a similar function;
        /// for a set, of the whole wait.
        waited: Option<Duration>,
        /// A holder that keeps us out, if it acquired the lock by the same
        /// [`Locks`](crate::Locks).
        holder: Option<String>,
        /// The time left of the holder's lease, by the last reply. The holder may renew or release
        /// it. A refused reader gets `None` in the last second of a holder's lease, since the
        /// intent of a waiting writer may be what keeps the reader out.
        remaining: Option<Duration>,
    },
    /// The wait was cancelled by its [`Cancel`](crate::Cancel). Nothing was done, or it was undone.
    Cancelled {
        /// The function and the lock.
        context: ErrorContext,
    },
    /// The lock is not ours, or no longer. A commit wrote nothing.
    Lost {
        /// The function and the lock.
        context: ErrorContext,
        /// The reason, if a [`Lease`](crate::Lease) or a [`Watchdog`](crate::Watchdog) renewed the
        /// lock.
        reason: Option<LostReason>,
        /// The last failure before the loss: why the lease was not renewed or the run was not
        /// marked, or what the lock's key holds instead.
        source: Option<Arc<Error>>,
    },
    /// The command was sent, but no reply came: it may have been executed.
    ///
    /// After an acquire, [`Error::token`] returns the token that may hold the lock. Release it on
    /// another connection.
    Unknown {
        /// The function and the lock.
        context: ErrorContext,
        /// The token that an acquire sent.
        token: Option<Token>,
        /// The failure of the connection.
        source: RedisError,
    },
    /// The server refused, or could not be reached: nothing was executed.
    Redis {
        /// The function and the lock.
        context: ErrorContext,
        /// The server's error, or that of the connection.
        source: RedisError,
    },
    /// Only a part of the operation was executed, and Redis does not roll back. Either a command
    /// inside `EXEC` was refused and the others were executed, or a script inside `EXEC` failed,
    /// perhaps half-way, or someone traded in another way between the read and the write of a trade
    /// in the [market](crate::market).
    Partial {
        /// The function and the lock.
        context: ErrorContext,
        /// The first error.
        source: RedisError,
    },
    /// The command was executed, but its reply does not have the requested type.
    Reply {
        /// The function and the lock.
        context: ErrorContext,
        /// The conversion error.
        source: RedisError,
    },
    /// The lock was acquired, but for the whole wait fewer replicas acknowledged it than
    /// [`Options::replicas`](crate::Options::replicas) asks for. It is being released. After a
    /// renewal, the lease ends when it did before.
    TooFewReplicas {
        /// The function and the lock.
        context: ErrorContext,
        /// The number of replicas that must acknowledge.
        wanted: u32,
        /// The number of replicas that acknowledged the last attempt.
        had: u32,
    },
    /// A key holds a value that this operation does not understand. Nothing was changed.
    ///
    /// It is the lock's own key, the companion key of a lock with a fencing token (it ends in
    /// `:lease`), the mark of work that runs once (it ends in `:lease:ran`), or a key of one of the
    /// book's [semaphores](crate::book::semaphore).
    WrongKind {
        /// The function and the lock.
        context: ErrorContext,
        /// A description of what was found.
        found: String,
    },
    /// An argument is invalid. Nothing was sent or, if only the server can check it, nothing was
    /// done.
    Invalid {
        /// The function and the lock.
        context: ErrorContext,
        /// The argument's name.
        argument: &'static str,
        /// The rule that the argument breaks.
        reason: String,
    },
    /// The server is older than Redis 6.2 or Valkey 7.2, the oldest supported versions. Only
    /// [`Pool`](crate::Pool) checks this.
    TooOld {
        /// The function and the lock.
        context: ErrorContext,
        /// The version that the server reports.
        found: String,
    },
    /// The pool could not lend a connection in time.
    Pool {
        /// The function and the lock.
        context: ErrorContext,
        /// The reason: the server cannot be reached, or all connections are in use.
        reason: String,
        /// The last attempt to connect, if one failed.
        source: Option<RedisError>,
    },
    /// This process is a forked child, and the pool or the locks belong to its parent. Nothing was
    /// sent.
    ///
    /// The two processes would read each other's replies from one socket. Fork before creating the
    /// first [`Pool`](crate::Pool) or [`Locks`](crate::Locks), or execute a program in the child
    /// (`std::process::Command`). New ones in the child are not safe: a mutex that another thread
    /// held at the fork stays locked in the child, so they may hang.
    Forked {
        /// The function and the lock.
        context: ErrorContext,
    },
    /// A thread could not be started.
    Thread {
        /// The function and the lock.
        context: ErrorContext,
        /// The error from the operating system.
        source: Arc<io::Error>,
    },
    /// The caller's own error, returned by the closure of a transaction: see [`Error::other`].
    /// Nothing was written.
    Other {
        /// The caller's error, with its causes and its backtrace.
        source: Arc<anyhow::Error>,
    },
}

/// Every error but the caller's own has a context.
macro_rules! context_of {
    ($error:expr) => {
        match $error {
            Error::Contended { context, .. }
            | Error::Cancelled { context }
            | Error::Lost { context, .. }
            | Error::Unknown { context, .. }
            | Error::Redis { context, .. }
            | Error::Partial { context, .. }
            | Error::Reply { context, .. }
            | Error::TooFewReplicas { context, .. }
            | Error::WrongKind { context, .. }
            | Error::Invalid { context, .. }
            | Error::TooOld { context, .. }
            | Error::Pool { context, .. }
            | Error::Forked { context }
            | Error::Thread { context, .. } => Some(context),
            Error::Other { .. } => None,
        }
    };
}

impl Error {
    /// Returns true if this is [`Contended`](Self::Contended).
    #[must_use]
    pub fn is_contended(&self) -> bool {
        matches!(self, Self::Contended { .. })
    }

    /// Returns true if this is [`Lost`](Self::Lost).
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Lost { .. })
    }

    /// Returns true if the operation has not happened and will not: the opposite of
    /// [`may_have_happened`](Self::may_have_happened).
    ///
    /// ```
    /// # fn write_again() {}
    /// # fn check_whether_it_was_written() {}
    /// # use anyhow::anyhow;
    /// # let outcome: leasehold::Result<()> = Err(leasehold::Error::other(anyhow!("sold")));
    /// match outcome {
    ///     Ok(()) => {}
    ///     Err(error) if error.did_not_happen() => write_again(),
    ///     Err(_) => check_whether_it_was_written(),
    /// }
    /// ```
    #[must_use]
    pub fn did_not_happen(&self) -> bool {
        !self.may_have_happened()
    }

    /// Returns true if all or part of the operation was executed, may have been, or still may be:
    /// [`Unknown`](Self::Unknown), [`Partial`](Self::Partial) and [`Reply`](Self::Reply).
    #[must_use]
    pub fn may_have_happened(&self) -> bool {
        matches!(
            self,
            Self::Unknown { .. } | Self::Partial { .. } | Self::Reply { .. }
        )
    }

    /// Returns true if nothing was executed and the same call may succeed later, without a change
    /// of the call, the access rights or the password.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::Redis { source, .. } => may_pass(source),
            Self::Pool { source, .. } => source.as_ref().is_none_or(may_connect_later),
            _ => false,
        }
    }

    /// Returns true if the server did not reply, or there was no connection to it.
    pub(crate) fn is_silence(&self) -> bool {
        match self {
            Self::Unknown { .. } | Self::Pool { .. } => true,
            Self::Redis { source, .. } => source.is_io_error(),
            _ => false,
        }
    }

    /// Returns the token that may hold the lock, after an acquire whose outcome is unknown.
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

    /// Returns the function and the lock, for every error of an operation on a lock.
    ///
    /// `None`: the operation concerns no lock, or the error is [your own](Self::Other).
    #[must_use]
    pub fn context(&self) -> Option<&ErrorContext> {
        context_of!(self).filter(|context| !context.operation.is_empty())
    }

    /// Returns the place for the function and the lock. `None`: the error is the caller's own.
    fn context_mut(&mut self) -> Option<&mut ErrorContext> {
        context_of!(self)
    }

    /// Wraps an error of your own, for the closure of a [transaction](crate::Lease::transaction) to
    /// return. `?` does the same with an [`anyhow::Error`].
    ///
    /// ```
    /// use anyhow::anyhow;
    /// use leasehold::Error;
    ///
    /// let error = Error::other(anyhow!("17 has it").context("the item is sold"));
    /// assert_eq!(error.to_string(), "the item is sold");
    /// assert_eq!(format!("{:#}", anyhow::Error::new(error)), "the item is sold: 17 has it");
    /// ```
    ///
    /// [`downcast_ref`](Self::downcast_ref) returns it again.
    #[must_use]
    pub fn other(error: impl Into<anyhow::Error>) -> Self {
        let source = Arc::new(error.into());
        Self::Other { source }
    }

    /// Returns the caller's own error, or a cause or context of it, if it has this type: see
    /// [`Error::other`]. `None` for every other error.
    ///
    /// # Examples
    /// ```
    /// use std::fmt;
    ///
    /// use leasehold::Error;
    ///
    /// #[derive(Debug)]
    /// struct Sold;
    ///
    /// impl fmt::Display for Sold {
    ///     fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    ///         f.write_str("the item is sold")
    ///     }
    /// }
    ///
    /// impl std::error::Error for Sold {}
    ///
    /// let error = Error::other(Sold);
    /// assert!(error.downcast_ref::<Sold>().is_some());
    ///
    /// // After `?` into an `anyhow::Error`, this crate's error comes first.
    /// let error = anyhow::Error::from(error);
    /// let own = error.downcast_ref::<Error>().and_then(Error::downcast_ref::<Sold>);
    /// assert!(own.is_some());
    /// ```
    #[must_use]
    pub fn downcast_ref<E>(&self) -> Option<&E>
    where
        E: fmt::Debug + fmt::Display + Send + Sync + 'static,
    {
        match self {
            Self::Other { source } => source.downcast_ref(),
            _ => None,
        }
    }

    pub(crate) fn invalid(argument: &'static str, reason: impl Into<String>) -> Self {
        Self::Invalid {
            context: ErrorContext::default(),
            argument,
            reason: reason.into(),
        }
    }

    pub(crate) fn pool(reason: impl Into<String>, source: Option<RedisError>) -> Self {
        Self::Pool {
            context: ErrorContext::default(),
            reason: reason.into(),
            source,
        }
    }

    pub(crate) fn too_old(found: impl Into<String>) -> Self {
        Self::TooOld {
            context: ErrorContext::default(),
            found: found.into(),
        }
    }

    pub(crate) fn forked() -> Self {
        let context = ErrorContext::default();
        Self::Forked { context }
    }

    pub(crate) fn thread(source: io::Error) -> Self {
        Self::Thread {
            context: ErrorContext::default(),
            source: Arc::new(source),
        }
    }
}

/// Converts an error for `?` in the closure of a [transaction](crate::Lease::transaction), which
/// then adds the function and the lock.
///
/// A broken connection gives [`Unknown`](Error::Unknown), since the command may have been executed;
/// a reply of another type gives [`Reply`](Error::Reply); any other error, such as a refusal by the
/// server, gives [`Redis`](Error::Redis).
impl From<RedisError> for Error {
    fn from(source: RedisError) -> Self {
        Operation::new("", "").told(source)
    }
}

/// Wraps the caller's error, as [`Error::other`] does.
impl From<anyhow::Error> for Error {
    fn from(error: anyhow::Error) -> Self {
        Self::other(error)
    }
}
