//! Leases that are kept alive: the only part of the crate that starts threads.

mod acquire;
pub mod event;
mod guard;
mod hand_over;
mod inspection;
mod keep;
mod keeper;
mod kept;
mod lock;
mod locks;
mod options;
mod queue;
mod release;
mod renewal;
mod schedule;
pub(crate) mod server;
mod signal;
mod terms;
mod turns;
mod waiting;
mod watchdog;

pub use event::Events;
pub use guard::Lease;
pub use inspection::{Holder, Inspection};
pub use keep::Keep;
pub use lock::Lock;
pub use locks::Locks;
pub use options::Options;
pub use renewal::{LostReason, Renewal, RenewalState};
pub use signal::LostSignal;
pub use watchdog::Watchdog;
