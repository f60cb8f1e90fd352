//! The scripts beside this file, one typed call each.

use crate::{
    name::LockName,
    script::{Call, scripts},
};

scripts! {
    INSPECT = "look.lua" then "inspect.lua";
    FORCE_RELEASE = "look.lua" then "force_release.lua";
}

/// Answers what stands at the lock and beside it.
pub(crate) fn inspect(lock: &LockName) -> Call {
    INSPECT.on([lock.key(), &lock.companion()])
}

/// Deletes it, whoever has it, and answers what stood there until then. Not safe to send twice.
pub(crate) fn force_release(lock: &LockName) -> Call {
    FORCE_RELEASE.on([lock.key(), &lock.companion()])
}
