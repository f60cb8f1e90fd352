//! Renewing: one thread for any number of leases, and what is known of each.
//!
//! From the bottom: an [`entry`] of the [`schedule`] is a plain value; a [`standing`] is what everybody sees of one lease; the
//! [`keeper`] is what is asked of the [`threads`]; a [`signal`] tells of a loss.

pub(crate) mod entry;
pub(crate) mod handle;
pub(crate) mod keeper;
pub(crate) mod outstanding;
pub(crate) mod schedule;
pub(crate) mod signal;
pub(crate) mod standing;
#[cfg(feature = "testing")]
mod testing;
mod threads;
