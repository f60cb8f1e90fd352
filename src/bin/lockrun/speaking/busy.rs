//! A lock that someone else holds, or a semaphore without a free permit, and the holders.

use std::fmt;

use leasehold::{Holder, Inspection, Lock};

use crate::speaking::text::{held_by, rounded};

/// A message names at most this many holders.
const NAMED: usize = 3;

/// The state of the lock, read after the server has refused it.
#[derive(Debug)]
pub(crate) struct Busy {
    /// The lock's name: of several, the one that was not acquired.
    pub(crate) name: String,
    /// Without holders if they have released the lock since; `None` if the server did not answer.
    seen: Option<Inspection>,
    /// The value of `--permits`.
    permits: Option<u32>,
}

impl Busy {
    pub(crate) fn with(lock: &Lock, permits: Option<u32>) -> Self {
        let (name, seen) = (lock.name().to_owned(), lock.inspect().ok());
        Self {
            name,
            seen,
            permits,
        }
    }

    pub(crate) fn holders(&self) -> &[Holder] {
        self.seen.as_ref().map_or(&[], Inspection::holders)
    }

    fn of_a_lock(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.holders(), &self.seen) {
            ([], None) => f.write_str("is busy: held by someone else"),
            ([], Some(_)) => f.write_str("was busy: released a moment ago"),
            ([holder, others @ ..], _) => {
                write!(f, "is busy: held by {}", held_by(holder))?;
                match holder.remaining() {
                    Some(left) => write!(f, " for another {}, unless renewed", rounded(left))?,
                    None => f.write_str("; the lock never ends")?,
                }
                match others.len() {
                    0 => Ok(()),
                    others => write!(f, ", and by {others} more"),
                }
            }
        }
    }

    fn of_permits(&self, permits: u32, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let holders = self.holders();
        let Some(too_many) = holders.len().checked_sub(permits as usize) else {
            return match self.seen {
                None => write!(f, "is busy: others hold {permits} of {permits} permits"),
                Some(_) => f.write_str("was busy: a permit was released a moment ago"),
            };
        };
        let held = holders.len();
        match too_many {
            0 => write!(f, "is busy: others hold {held} of {permits} permits: ")?,
            _ => write!(
                f,
                "is busy: others hold {held} permits, more than {permits}: "
            )?,
        }
        let named: Vec<_> = holders.iter().take(NAMED).map(held_by).collect();
        f.write_str(&named.join(", "))?;
        if held > NAMED {
            write!(f, " and {} more", held - NAMED)?;
        }
        // The holder whose lease ends first comes first.
        match holders.get(too_many).and_then(Holder::remaining) {
            Some(left) => write!(f, "; the next is free in {}, unless renewed", rounded(left)),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_other_kind = |seen: &Inspection| seen.free_permits().is_none();
        match self.permits {
            Some(permits) if !self.seen.as_ref().is_some_and(is_other_kind) => {
                self.of_permits(permits, f)
            }
            _ => self.of_a_lock(f),
        }
    }
}
