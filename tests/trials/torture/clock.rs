//! The common clock of all processes, in nanoseconds: `CLOCK_BOOTTIME`. It equals `CLOCK_MONOTONIC`
//! on a machine that was never suspended, but the rate of `CLOCK_MONOTONIC`, which the locks use,
//! may be changed in a worker.

use std::{
    fs,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use nix::time::{ClockId, clock_gettime};

/// Nanoseconds since the machine was started.
pub(crate) type Nanos = u64;

pub(crate) fn now() -> Nanos {
    let time = clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from);
    nanos(time.unwrap_or_default())
}

pub(crate) fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

pub(crate) const fn millis(count: u64) -> Nanos {
    count * 1_000_000
}

/// Returns the total time for which this thread was runnable without a free core, as Linux counts
/// it.
pub(crate) fn kept_ready() -> Nanos {
    let counted = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let second = counted.split_whitespace().nth(1);
    second.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Returns the nanoseconds by which the wall clock is ahead of [`now`].
pub(crate) fn wall_is_ahead() -> i128 {
    let before = i128::from(now());
    let wall = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i128::try_from(wall.as_nanos()).unwrap_or(0) - before
}
