//! The process that made a value. A forked child has a copy of everything, sockets included, but
//! none of the threads.

use std::process;

use crate::error::{Error, Result};

/// The process that made a pool, or the locks on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process(u32);

impl Process {
    /// The current process.
    pub(crate) fn current() -> Self {
        Self(process::id())
    }

    pub(crate) fn id(self) -> u32 {
        self.0
    }

    /// True in a forked child, which has a copy. Takes one system call.
    pub(crate) fn is_forked_child(self) -> bool {
        self != Self::current()
    }

    /// Refuses a forked child. Has to be called before a mutex is locked: in the child it may be
    /// locked for ever.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub(crate) fn refuse_forked_child(self) -> Result<()> {
        if self.is_forked_child() {
            return Err(Error::Forked);
        }
        Ok(())
    }
}
