//! A lock that somebody else holds, and its holders.

use std::{fmt, time::Duration};

use humantime::format_duration;
use leasehold::{Holder, Inspection, Lock, Owner};

use crate::text::printable;

/// The state of the lock, read after the server has refused it. It has no holders if they have
/// released it since; it is `None` if the server did not answer.
#[derive(Debug)]
pub(crate) struct Busy(Option<Inspection>);

impl Busy {
    pub(crate) fn with(lock: &Lock) -> Self {
        Self(lock.inspect().ok())
    }

    pub(crate) fn holders(&self) -> &[Holder] {
        self.0.as_ref().map_or(&[], Inspection::holders)
    }
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.holders(), &self.0) {
            ([], None) => f.write_str("is busy: somebody else has it"),
            ([], Some(_)) => f.write_str("was busy: somebody else had it until now"),
            ([holder, others @ ..], _) => {
                let by = holder.owner().map_or("somebody unknown", Owner::as_str);
                write!(f, "is busy: held by {} ", printable(by))?;
                match holder.remaining() {
                    Some(left) => write!(f, "for another {}, unless renewed", Left(left))?,
                    None => f.write_str("with no end")?,
                }
                match others.len() {
                    0 => Ok(()),
                    others => write!(f, ", and by {others} more"),
                }
            }
        }
    }
}

/// The rest of a lease in readable precision: `7.2 s`, `1m 40s`.
struct Left(Duration);

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < Duration::from_secs(60) {
            write!(f, "{:.1} s", self.0.as_secs_f64())
        } else {
            let seconds = Duration::from_secs(self.0.as_secs());
            write!(f, "{}", format_duration(seconds))
        }
    }
}
