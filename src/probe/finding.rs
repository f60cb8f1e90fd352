//! One finding of a probe, and its severity.

use std::fmt;

/// The severity of a [`Finding`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Severity {
    /// No problem was found.
    Good,
    /// Unknown: the server does not report it, or was not asked.
    NotTold,
    /// Locks work, but a promise is weaker, or a part of the library does not work.
    Limits,
    /// Locks of [`Locks::lock`](crate::Locks::lock) do not work.
    Fails,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Good => "good",
            Self::NotTold => "unknown",
            Self::Limits => "limits",
            Self::Fails => "fails",
        })
    }
}

/// One finding of a [`Probe`](crate::Probe).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The topic, from the table at [`Probe`](crate::Probe).
    pub topic: &'static str,
    /// The severity.
    pub severity: Severity,
    /// The result, without control characters.
    pub found: String,
    /// The consequence for locks, in one or two sentences.
    pub consequence: String,
}

impl Finding {
    pub(super) fn new(
        topic: &'static str,
        severity: Severity,
        found: impl AsRef<str>,
        consequence: impl Into<String>,
    ) -> Self {
        Self {
            topic,
            severity,
            // A server's text must not control a terminal.
            found: found.as_ref().replace(char::is_control, "\u{fffd}"),
            consequence: consequence.into(),
        }
    }
}
