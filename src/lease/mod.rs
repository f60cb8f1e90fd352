//! Leases that are kept alive: the only part of the crate that starts threads.

mod keep;
mod keeper;
mod kept;
mod link;
mod renewal;
mod schedule;
mod signal;
mod terms;
mod watchdog;

pub use keep::Keep;
pub use renewal::{LostReason, Renewal, RenewalState};
pub use signal::LostSignal;
pub use watchdog::Watchdog;
