//! Random operations on locks.

use std::time::Duration;

use leasehold::{Lock, Locks, Options, Owner};
use proptest::{prelude::*, sample::Index};

/// Expires before [`PASSED`] has passed.
pub(crate) const SHORT: Duration = Duration::from_millis(70);
pub(crate) const PASSED: Duration = Duration::from_millis(90);
/// Too short for anything to expire.
const WAIT: Duration = Duration::from_millis(10);

#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Mutex,
    Reentrant,
    Read,
    Write,
    Semaphore,
}

/// The options of a hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum How {
    Usual,
    HandedOver,
    Unfenced,
    NotRenewed,
    /// Not renewed, and short.
    Short,
    /// Short by its longest hold.
    Capped,
}

#[derive(Clone, Debug)]
pub(crate) struct Which {
    pub(crate) process: usize,
    pub(crate) kind: Kind,
    pub(crate) name: &'static str,
    pub(crate) how: How,
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// With a wait unless zero.
    Acquire(Which, Duration),
    Release(Index),
    Drop(Index),
    Leave(Index),
    Verify(Index),
    Check(Index),
    Renew(Index),
    Inspect(&'static str),
    ForceRelease(&'static str),
    Expire(&'static str),
    Steal(Which),
    /// Lets short leases expire.
    Pass,
}

impl How {
    /// True if it expires when time passes.
    pub(crate) fn is_short(self) -> bool {
        matches!(self, Self::Short | Self::Capped)
    }

    fn options(self) -> Options {
        let second = Duration::from_secs(1);
        let options = Options::new();
        match self {
            Self::Usual => options,
            Self::HandedOver => options.hand_over(10, second),
            Self::Unfenced => options.fencing(false).hand_over(10, second),
            Self::NotRenewed => options.renewal(false),
            Self::Short => options.renewal(false).lease(SHORT),
            Self::Capped => options.max_hold(SHORT),
        }
    }
}

impl Which {
    pub(crate) fn lock(&self, processes: &[Locks]) -> Lock {
        let owner = Owner::new(format!("process {}", self.process)).unwrap();
        let locks = processes[self.process].with(self.how.options().owner(owner));
        match self.kind {
            Kind::Mutex => locks.lock(self.name),
            Kind::Reentrant => locks.reentrant(self.name),
            Kind::Read => locks.read(self.name),
            Kind::Write => locks.write(self.name),
            Kind::Semaphore => locks.semaphore(self.name, 2),
        }
    }
}

pub(crate) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let name = || prop_oneof![3 => Just("a"), 1 => Just("b")];
    let kind = prop_oneof![
        Just(Kind::Mutex),
        Just(Kind::Reentrant),
        Just(Kind::Read),
        Just(Kind::Write),
        Just(Kind::Semaphore)
    ];
    let how = prop_oneof![
        3 => Just(How::Usual),
        2 => Just(How::HandedOver),
        2 => Just(How::Unfenced),
        1 => Just(How::NotRenewed),
        2 => Just(How::Short),
        1 => Just(How::Capped)
    ];
    let which = (0..2_usize, kind, name(), how).prop_map(|(process, kind, name, how)| Which {
        process,
        kind,
        name,
        how,
    });
    let which = which.boxed();
    let held = any::<Index>;
    let step = prop_oneof![
        18 => which.clone().prop_map(|which| Step::Acquire(which, Duration::ZERO)),
        1 => which.clone().prop_map(|which| Step::Acquire(which, WAIT)),
        6 => held().prop_map(Step::Release),
        3 => held().prop_map(Step::Drop),
        2 => held().prop_map(Step::Leave),
        4 => held().prop_map(Step::Verify),
        3 => held().prop_map(Step::Check),
        2 => held().prop_map(Step::Renew),
        6 => name().prop_map(Step::Inspect),
        2 => name().prop_map(Step::ForceRelease),
        2 => name().prop_map(Step::Expire),
        4 => which.prop_map(Step::Steal),
        1 => Just(Step::Pass),
    ];
    prop::collection::vec(step, 1..40)
}
