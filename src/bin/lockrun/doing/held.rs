//! The locks that lockrun holds.

use std::time::Duration;

use leasehold::{Lease, Leases, LockSet, Locks, Result as LockResult};

use crate::arguments::Arguments;

/// Acquires the locks of all names.
pub(crate) fn acquire(arguments: &Arguments, locks: &Locks) -> LockResult<Leases> {
    let all = arguments.names.iter();
    let set = LockSet::of(all.map(|name| arguments.lock(locks, name)));
    set.acquire(arguments.wait)
}

/// The leases under which the command runs. The command must end before any of them ends.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    first: &'a Lease,
    all: Vec<&'a Lease>,
}

impl<'a> Held<'a> {
    pub(crate) fn one(lease: &'a Lease) -> Self {
        let (first, all) = (lease, vec![lease]);
        Self { first, all }
    }

    /// The held locks, in the order of these names. `None` if there are none.
    pub(crate) fn of(leases: &'a Leases, names: &[String]) -> Option<Self> {
        let all: Vec<_> = names.iter().filter_map(|name| leases.get(name)).collect();
        let first = *all.first()?;
        Some(Self { first, all })
    }

    /// In the order of `--name`.
    pub(crate) fn all(&self) -> impl Iterator<Item = &'a Lease> {
        self.all.iter().copied()
    }

    /// The lease that ends first, and the time left of it: zero if it is lost.
    pub(crate) fn weakest(&self) -> (Duration, &'a Lease) {
        let all = self.all().map(|lease| (lease.remaining(), lease));
        let weakest = all.min_by_key(|(left, _)| *left);
        weakest.unwrap_or((Duration::ZERO, self.first))
    }

    pub(crate) fn remaining(&self) -> Duration {
        self.weakest().0
    }

    /// True while all locks are held.
    pub(crate) fn is_held(&self) -> bool {
        !self.remaining().is_zero()
    }
}
