//! The loss of the lock.

use std::{fmt, process::ExitStatus};

use leasehold::{Lease, LostReason};

/// The cause of the loss: another program or an operator, or the failure of a server or machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    TakenAway,
    NotRenewed,
}

impl Why {
    /// `None`: the server reported the loss before lockrun noticed it.
    pub(crate) fn of(reason: Option<LostReason>) -> Self {
        match reason {
            None | Some(LostReason::TakenAway) => Self::TakenAway,
            Some(_) => Self::NotRenewed,
        }
    }

    /// The value of `lost_reason` in JSON.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::TakenAway => "taken_away",
            Self::NotRenewed => "not_renewed",
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TakenAway => "was taken away",
            Self::NotRenewed => "could not be renewed",
        })
    }
}

/// The lock that was lost: of several, the one found first.
#[derive(Debug)]
pub(crate) struct Loss {
    pub(crate) lock: String,
    pub(crate) why: Why,
    /// The failure of the last renewal, if it failed.
    pub(crate) failure: Option<String>,
    /// The exit status of the command, if it has run.
    pub(crate) status: Option<ExitStatus>,
    /// True if the command did not end by itself.
    pub(crate) was_ended: bool,
}

impl Loss {
    /// A loss before the command has run.
    pub(crate) fn new(lock: impl Into<String>, why: Why) -> Self {
        Self {
            lock: lock.into(),
            why,
            failure: None,
            status: None,
            was_ended: false,
        }
    }

    pub(crate) fn of(lease: &Lease) -> Self {
        Self::new(lease.name(), Why::of(lease.lost().reason()))
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.why)?;
        match (self.why, &self.failure) {
            (Why::TakenAway, _) => {}
            (Why::NotRenewed, Some(failure)) => write!(f, " ({failure})")?,
            (Why::NotRenewed, None) => write!(f, " in time")?,
        }
        match self.status {
            None => write!(f, ": the command has not run"),
            Some(status) if self.was_ended => write!(f, ": the command was ended, {status}"),
            Some(status) => write!(f, ": the command ended by itself, {status}"),
        }
    }
}
