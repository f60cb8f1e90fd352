//! Locks as one thing, where no file alone decides.

mod failovers;
#[cfg(feature = "testing")]
mod remembering;
