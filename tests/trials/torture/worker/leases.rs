//! Jobs with [`Locks`](leasehold::Locks): every kind of lock, with and without a hand-over.
#![allow(
    clippy::unnecessary_wraps,
    reason = "all jobs have this signature; these record their own failures"
)]

use std::{
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    thread,
    time::Duration,
};

use leasehold::{
    Cancel, Error, Lease, Lock, Options, Owner, recipes::reentrant::holds, redis::cmd,
};

use super::hand::{Hand, LEASE};
use crate::{
    clock::{millis, now},
    common::child::Forked,
    faults::REPLICATED,
    history::Mode,
    sums::COMMITS,
};

/// A job's action during a hold.
pub(super) type Beside<'a> = &'a mut dyn FnMut(&mut Hand, &Lease);

/// The way to take a lock.
pub(super) struct Way {
    name: &'static str,
    mode: Mode,
    owner: Option<String>,
    /// True if the job reads the token: such a lock is not handed over.
    tells_token: bool,
    lease: Duration,
    /// The longest wait; `None`: random.
    wait: Option<Duration>,
}

impl Way {
    pub(super) fn of(name: &'static str, mode: Mode) -> Self {
        Self {
            name,
            mode,
            owner: None,
            tells_token: true,
            lease: LEASE,
            wait: None,
        }
    }

    pub(super) fn lasting(self, lease: Duration) -> Self {
        Self { lease, ..self }
    }

    pub(super) fn waiting(self, wait: Duration) -> Self {
        Self {
            wait: Some(wait),
            ..self
        }
    }
}

pub(super) fn mutex(hand: &mut Hand) -> anyhow::Result<()> {
    let name = if hand.chance(2) { "m0" } else { "m1" };
    if hand.plan.has_bug("second-holder") && hand.chance(10) {
        hand.pretend(name, Mode::Exclusive, 30);
    }
    if hand.plan.has_bug("sleeper") && hand.chance(10) {
        let id = hand.ask(
            name,
            Mode::Exclusive,
            None,
            LEASE,
            Some(Duration::from_secs(3)),
        );
        thread::sleep(Duration::from_secs(1));
        hand.refused(id, None);
    }
    let (mut options, lease) = match name {
        "m0" => hand.options_and_lease(),
        _ => (hand.options(), LEASE),
    };
    if hand.chance(4) {
        options = options.fencing(false);
    }
    let lock = hand.locks.lock(name).with(options);
    let way = Way::of(name, Mode::Exclusive).lasting(lease);
    take(hand, &lock, &way, &mut |_, _| {});
    Ok(())
}

/// Increments a number, in a transaction that fails if the lock is lost.
pub(super) fn commit(hand: &mut Hand) -> anyhow::Result<()> {
    let name = "m1";
    let options = hand.options();
    let lock = hand.locks.lock(name).with(options);
    take(
        hand,
        &lock,
        &Way::of(name, Mode::Exclusive),
        &mut |hand, lease| {
            let done = lease.commit(|pipe| {
                pipe.cmd("INCR").arg(COMMITS);
            });
            hand.added(COMMITS, outcome(&done));
            if hand.plan.has_bug("lost-commit") {
                hand.added(COMMITS, Some(true));
            }
        },
    );
    Ok(())
}

/// Takes a lock that all replicas must confirm.
pub(super) fn replicated(hand: &mut Hand) -> anyhow::Result<()> {
    let (count, wait) = (hand.plan.replicas, Duration::from_millis(100));
    let (mut options, lease) = hand.options_and_lease();
    if !hand.plan.has_bug("not-replicated") {
        options = options.replicas(count, wait);
    }
    let lock = hand.locks.lock(REPLICATED).with(options);
    let way = Way::of(REPLICATED, Mode::Exclusive).lasting(lease);
    take(hand, &lock, &way, &mut |_, _| {});
    Ok(())
}

/// Returns the result of a commit, if it is known.
pub(super) fn outcome<T>(done: &leasehold::Result<T>) -> Option<bool> {
    match done {
        Ok(_) => Some(true),
        Err(Error::Unknown { .. } | Error::Partial { .. } | Error::Reply { .. }) => None,
        Err(_) => Some(false),
    }
}

pub(super) fn hand_over(hand: &mut Hand) -> anyhow::Result<()> {
    let options = hand.options().hand_over(64, Duration::from_millis(20));
    let lock = hand.locks.lock("h0").with(options);
    let way = Way {
        tells_token: false,
        ..Way::of("h0", Mode::Exclusive)
    };
    for _ in 0..hand.random.u32(1..20) {
        if now() > hand.plan.until {
            break;
        }
        take(hand, &lock, &way, &mut |_, _| {});
    }
    Ok(())
}

pub(super) fn read(hand: &mut Hand) -> anyhow::Result<()> {
    let options = hand.options();
    let lock = hand.locks.read("w0").with(options);
    take(hand, &lock, &Way::of("w0", Mode::Shared), &mut |_, _| {});
    Ok(())
}

pub(super) fn write(hand: &mut Hand) -> anyhow::Result<()> {
    if hand.plan.has_bug("writer-beside-readers") && hand.chance(5) {
        hand.pretend("w0", Mode::Exclusive, 30);
    }
    let options = hand.options();
    let lock = hand.locks.write("w0").with(options);
    take(hand, &lock, &Way::of("w0", Mode::Exclusive), &mut |_, _| {});
    // Give readers a turn.
    hand.pause(30);
    Ok(())
}

/// Enters up to three times. Each level ends separately.
pub(super) fn reentrant(hand: &mut Hand) -> anyhow::Result<()> {
    let options = hand.options();
    let lock = hand.locks.reentrant("r0").with(options);
    let deepest = hand.random.usize(1..4);
    enter(hand, &lock, &[], deepest);
    hand.pause(20);
    Ok(())
}

/// `around`: the levels that this thread already holds.
fn enter(hand: &mut Hand, lock: &Lock, around: &[&Lease], deepest: usize) {
    let owner = Owner::current_thread();
    let way = Way {
        owner: Some(owner.as_str().to_owned()),
        ..Way::of("r0", Mode::Exclusive)
    };
    take(hand, lock, &way, &mut |hand, lease| {
        let levels = [around, &[lease]].concat();
        count_is_at_least(hand, &levels, &owner);
        if levels.len() < deepest {
            enter(hand, lock, &levels, deepest);
            count_is_at_least(hand, &levels, &owner);
        }
    });
}

/// Checks that the server counts at least the levels that this thread holds.
fn count_is_at_least(hand: &mut Hand, levels: &[&Lease], owner: &Owner) {
    let Ok(mut conn) = hand.connection("r0") else {
        return;
    };
    let Ok(count) = holds(&mut conn, "r0", owner) else {
        return;
    };
    // They are still held after the answer, and so were before it.
    let held = levels.iter().filter(|lease| lease.is_held()).count();
    let expected = u64::try_from(held).unwrap_or(0) + u64::from(hand.plan.has_bug("lost-level"));
    if count < expected {
        let what = format!("the server counts {count} levels and this thread holds {held}");
        hand.broken("re-entry", "r0", &what);
    }
}

/// Makes a wait that another thread cancels. It must end soon afterwards in any case.
pub(super) fn called_off(hand: &mut Hand) -> anyhow::Result<()> {
    let cancel = Cancel::new();
    let options = hand.options().cancel(&cancel);
    let lock = hand.locks.lock("m0").with(options);
    let delay = Duration::from_millis(hand.random.u64(..400));
    let calls = move || {
        thread::sleep(delay);
        let at = now();
        cancel.cancel();
        at
    };
    // If no thread can be started, no wait can be cancelled.
    let calling = thread::Builder::new().spawn(calls)?;
    let way = Way::of("m0", Mode::Exclusive);
    take(hand, &lock, &way, &mut |_, _| {});
    if let Ok(at) = calling.join() {
        hand.called_off(at);
    }
    hand.pause(100);
    Ok(())
}

/// Uses its own `Locks`, whose threads and connections start and end with it.
pub(super) fn anew(hand: &mut Hand) -> anyhow::Result<()> {
    let fresh = hand.fresh_locks()?;
    let locks = mem::replace(&mut hand.locks, fresh);
    let lock = hand.locks.lock("x0").with(hand.options());
    take(hand, &lock, &Way::of("x0", Mode::Exclusive), &mut |_, _| {});
    hand.locks = locks;
    hand.pause(500);
    Ok(())
}

/// Forks while a lock is held: whatever the child does, the parent keeps the lock.
pub(super) fn fork_while_held(hand: &mut Hand) -> anyhow::Result<()> {
    let lock = hand.locks.lock("f0").with(Options::new().lease(LEASE * 5));
    let mut lease = Some(lock.acquire(Duration::from_secs(5))?);
    // A fork needs a file descriptor.
    if std::io::pipe().and_then(|_pipe| std::io::pipe()).is_err() {
        return Ok(());
    }
    if thread::Builder::new().spawn(|| ()).is_err() {
        return Ok(());
    }
    let forked = catch_unwind(AssertUnwindSafe(|| {
        Forked::start(|| {
            let is_refused = matches!(lock.try_acquire(), Err(Error::Forked { .. }));
            if let Some(lease) = lease.take() {
                drop(lease);
            }
            is_refused.to_string()
        })
    }));
    // It panics if the kernel refuses to fork.
    let Ok(child) = forked else {
        return Ok(());
    };
    let said = child.said();
    hand.made("fork");
    if said.as_deref() != Some("true") {
        hand.broken("fork", "f0", &format!("the child reports {said:?}"));
    }
    if let Some(lease) = lease {
        // Only if nothing else removed the lock meanwhile.
        let _ = lease.verify();
        let _ = lease.release();
    }
    hand.pause(1_000);
    Ok(())
}

/// Takes the lock and gives it back in one of the possible ways.
pub(super) fn take(hand: &mut Hand, lock: &Lock, way: &Way, beside: Beside<'_>) {
    let timeout = way.wait.unwrap_or_else(|| hand.timeout());
    let renews_once = hand.chance(12);
    let is_permit = matches!(way.mode, Mode::Permit(_));
    // All leases of a permit have the same length, so that its end tells when it was granted.
    let longest = if renews_once && !is_permit {
        way.lease.max(LEASE * 2)
    } else {
        way.lease
    };
    let id = hand.ask(
        way.name,
        way.mode,
        way.owner.clone(),
        longest,
        Some(timeout),
    );
    let lease = match lock.acquire(timeout) {
        Ok(lease) => lease,
        Err(error) => {
            if hand.plan.has_bug("late-cancel") && matches!(error, Error::Cancelled { .. }) {
                thread::sleep(Duration::from_millis(600));
            }
            if hand.plan.has_bug("late-waiter") && timeout > Duration::ZERO {
                thread::sleep(Duration::from_millis(600));
            }
            return hand.refused(id, Some(&error));
        }
    };
    let mut fence = lease.fencing_token().map(leasehold::FencingToken::get);
    if hand.plan.has_bug("number-again") {
        fence = fence.map(|fence| fence - fence % 2_000_000);
    }
    let token = (way.tells_token).then(|| lease.token().to_string());
    hand.granted(id, fence, token);
    let mut was_held = hand.hold(id, way.name, fence, || lease.is_held());
    if was_held {
        beside(hand, &lease);
        let at = now();
        was_held = lease.is_held();
        if was_held {
            hand.held(id, at);
        }
    }
    if hand.plan.has_bug("late-belief") && way.tells_token {
        hand.held(id, now() + millis(1_500));
    }
    if renews_once && was_held {
        let _ = lease.renew(if is_permit { longest } else { LEASE * 2 });
    }
    match hand.random.u32(..12) {
        0 => {
            let _ = lease.verify();
        }
        // The checks cannot see the release of a dropped lock for a lease: with many of these, all
        // permits would seem taken.
        1 if !is_permit || hand.chance(8) => {
            drop(lease);
            return hand.ended(id, false);
        }
        _ => {}
    }
    if hand.plan.has_bug("leftover") && hand.chance(10) {
        let _ = lease.detach();
        if let Ok(mut conn) = hand.connection(way.name) {
            let _: Result<(), _> = cmd("PERSIST")
                .arg(format!("lock:{}", way.name))
                .exec(&mut conn);
        }
        return hand.ended(id, false);
    }
    let released = lease.release();
    if let Err(error) = &released {
        hand.failed_with(error);
    }
    hand.ended(id, released.is_ok());
}
