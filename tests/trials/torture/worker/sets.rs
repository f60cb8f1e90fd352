//! Sets of two locks, and single locks with the same names.
//!
//! It is unknown which locks a waiting set holds, so each of its locks is recorded as possibly held
//! from the request on. A waiting set keeps its first lock from others, who wait with it: if 64
//! threads want 16 locks, most of them feel one long hold.

use std::{thread, time::Duration};

use leasehold::{Error, FencingToken, Lease, Leases, Options};

use super::{
    hand::{Hand, LEASE},
    leases::{Way, outcome, take},
};
use crate::{
    clock::{nanos, now},
    faults::OF_SETS,
    history::Mode,
    options::Topology,
    sums::SETS,
};

/// No wait takes this long, except in a deadlock: then the round does not end.
const FOR_EVER: Duration = Duration::from_mins(1);
/// With a bug: a deadlock ends within the round.
const NOT_FOR_EVER: Duration = Duration::from_secs(5);
/// The wait of a thread that holds one lock and wants another in any order, and so may cause a
/// deadlock.
const SHORT: Duration = Duration::from_millis(50);

/// The locks that a turn holds: a set, or two locks taken without one.
enum Held {
    Set(Leases),
    Each(Vec<Lease>),
}

#[allow(clippy::unnecessary_wraps, reason = "all jobs have this signature")]
pub(super) fn set(hand: &mut Hand) -> anyhow::Result<()> {
    let names = two(hand);
    let options = of_a_set(hand);
    let ids = names.map(|name| hand.ask(name, Mode::Exclusive, None, LEASE, None));
    let acquired = if hand.plan.has_bug("callers-order") {
        let locks = names.map(|name| hand.locks.lock(name).with(options.clone()));
        let leases = locks.iter().map(|lock| lock.acquire(NOT_FOR_EVER));
        leases.collect::<Result<_, _>>().map(Held::Each)
    } else {
        let set = hand.locks.all_of(names).with(options);
        set.acquire(FOR_EVER).map(Held::Set)
    };
    let held = match acquired {
        Ok(held) => held,
        Err(error) => {
            if matches!(error, Error::Contended { .. }) {
                hand.broken("free", names[0], "a set did not get its locks");
            }
            for id in ids {
                hand.gave_up(id);
            }
            hand.failed_with(&error);
            return Ok(());
        }
    };
    for (id, name) in ids.into_iter().zip(names) {
        let Some(lease) = held.get(name) else {
            continue;
        };
        let fence = lease.fencing_token().map(FencingToken::get);
        hand.granted(id, fence, Some(lease.token().to_string()));
        hand.write_at_the_resource(id, name, fence);
    }
    hold(hand, &held, names, ids);
    let released = held.release();
    if let Err(error) = &released {
        hand.failed_with(error);
    }
    for id in ids {
        hand.ended(id, released.is_ok());
    }
    Ok(())
}

/// Checks both locks for a while, and sometimes commits while it holds both.
fn hold(hand: &mut Hand, held: &Held, names: [&'static str; 2], ids: [u64; 2]) {
    let end = now() + nanos(hand.hold_for());
    loop {
        let at = now();
        let are_held = names.map(|name| held.get(name).is_some_and(Lease::is_held));
        for (id, _) in ids.iter().zip(are_held).filter(|(_, is_held)| *is_held) {
            hand.held(*id, at);
        }
        if at >= end || are_held != [true; 2] {
            break;
        }
        thread::sleep(Duration::from_millis(hand.random.u64(1..4)));
    }
    // In a cluster the two are in different slots.
    if let (Held::Set(leases), true) = (held, hand.plan.topology != Topology::Cluster)
        && hand.chance(4)
    {
        let done = leases.commit(|pipe| {
            pipe.cmd("INCR").arg(SETS);
        });
        hand.added(SETS, outcome(&done));
    }
}

/// Takes one of the locks of sets by itself.
#[allow(clippy::unnecessary_wraps, reason = "all jobs have this signature")]
pub(super) fn single(hand: &mut Hand) -> anyhow::Result<()> {
    let [name, _] = two(hand);
    let lock = hand.locks.lock(name).with(of_a_set(hand));
    let way = Way::of(name, Mode::Exclusive).waiting(FOR_EVER);
    take(hand, &lock, &way, &mut |_, _| {});
    Ok(())
}

/// Takes two of the locks without a set, in any order, with a short wait for the second.
#[allow(clippy::unnecessary_wraps, reason = "all jobs have this signature")]
pub(super) fn any_order(hand: &mut Hand) -> anyhow::Result<()> {
    let [outer, inner] = two(hand);
    let options = of_a_set(hand);
    let [first, second] = [outer, inner].map(|name| hand.locks.lock(name).with(options.clone()));
    let way = Way::of(outer, Mode::Exclusive).waiting(FOR_EVER);
    take(hand, &first, &way, &mut |hand, _| {
        let way = Way::of(inner, Mode::Exclusive).waiting(SHORT);
        take(hand, &second, &way, &mut |_, _| {});
    });
    hand.pause(100);
    Ok(())
}

/// Picks two different locks, in random order.
fn two(hand: &mut Hand) -> [&'static str; 2] {
    let all = OF_SETS.len();
    let one = hand.random.usize(..all);
    let other = (one + hand.random.usize(1..all)) % all;
    [OF_SETS[one], OF_SETS[other]]
}

/// Renewed, because a set may wait for longer than a lease.
fn of_a_set(hand: &mut Hand) -> Options {
    hand.options().renewal(true)
}

impl Held {
    fn get(&self, name: &str) -> Option<&Lease> {
        match self {
            Self::Set(leases) => leases.get(name),
            Self::Each(leases) => leases.iter().find(|lease| lease.name() == name),
        }
    }

    fn release(self) -> leasehold::Result<()> {
        match self {
            Self::Set(leases) => leases.release(),
            Self::Each(leases) => leases.into_iter().try_for_each(Lease::release),
        }
    }
}
