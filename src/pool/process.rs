//! Which process made a value. After a fork the child has a copy of everything, sockets included,
//! and none of the threads.

use std::process;

use crate::error::{Error, Result};

/// The process that made a pool, or the locks on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process(u32);

impl Process {
    /// The one that runs this.
    pub(crate) fn current() -> Self {
        Self(process::id())
    }

    /// Its number.
    pub(crate) fn id(self) -> u32 {
        self.0
    }

    /// Says that this runs in a child, which has a copy. One system call.
    pub(crate) fn is_forked_child(self) -> bool {
        self != Self::current()
    }

    /// Refuses in a child. To be asked before a mutex is locked: in the child it may be locked for
    /// ever.
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
