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
    /// The consequence of this topic for locks, in one sentence.
    pub consequence: &'static str,
}

impl Finding {
    pub(super) fn new(topic: &'static str, severity: Severity, found: impl AsRef<str>) -> Self {
        Self {
            topic,
            severity,
            // A server's text must not control a terminal.
            found: found.as_ref().replace(char::is_control, "\u{fffd}"),
            consequence: consequence(topic),
        }
    }
}

fn consequence(topic: &str) -> &'static str {
    match topic {
        "server" => "Redis 6.2, Valkey 7.2, or newer is required.",
        "topology" => "Only a master locks; a failover may lose a lock, or grant it twice.",
        "sentinels" => "A failover needs at least three sentinels that answer and watch one group.",
        "scripts" => "Every lock reads the clock and writes in a script.",
        "wake-ups" => "Without notifications waiters poll; a loss is noticed at the next renewal.",
        "replicas" => "A lock that waits for more replicas than that is not granted.",
        "memory" => "Any policy but noeviction may evict held locks when the memory is full.",
        "persistence" => "A restart loses the locks that are not on disk: others may get them.",
        "clock" => "Times of day are off by the difference; an acquire takes one round trip.",
        _ => "The access list must allow the commands of each kind of lock that is used.",
    }
}
