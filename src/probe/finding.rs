//! One answer of a probe, and its weight.

use std::fmt;

/// The weight of a [`Finding`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Severity {
    /// As it should be.
    Good,
    /// The server does not tell, or was not asked any more.
    NotTold,
    /// Locks work. A promise is weaker, or a part of the library does not work.
    Limits,
    /// Locks of [`Locks::lock`](crate::Locks::lock) do not work.
    Fails,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Good => "good",
            Self::NotTold => "not told",
            Self::Limits => "limits",
            Self::Fails => "fails",
        })
    }
}

/// One answer of a [`Probe`](crate::Probe).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// What was asked: a topic of the table at [`Probe`](crate::Probe).
    pub topic: &'static str,
    /// How much it matters.
    pub severity: Severity,
    /// What was found, without control characters.
    pub found: String,
    /// What that means for locks: one sentence.
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
            // A server's words may not control a terminal.
            found: found.as_ref().replace(char::is_control, "\u{fffd}"),
            consequence: consequence.into(),
        }
    }
}
