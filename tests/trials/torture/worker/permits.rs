//! Permits of a semaphore.

use std::{
    thread,
    time::{Duration, Instant},
};

use leasehold::{
    Options, Token,
    recipes::semaphore,
    redis::{self, cmd},
};

use super::{
    hand::{Hand, LEASE},
    leases::{Way, outcome, take},
};
use crate::{
    clock::now,
    faults::{REPLICATED_PERMITS, SEMAPHORES},
    history::Mode,
    options::{Only, Topology},
    sums::PERMITS,
};

/// The number of permits in rounds with all kinds of locks.
const USUAL: u32 = 3;

/// Holds a permit, and sometimes commits while others hold theirs.
pub(super) fn permit(hand: &mut Hand) -> anyhow::Result<()> {
    let permits = match hand.plan.only {
        Some(Only::Permits(permits)) => permits,
        _ => USUAL,
    };
    let name = if hand.plan.topology != Topology::One && hand.chance(3) {
        REPLICATED_PERMITS
    } else {
        SEMAPHORES[0]
    };
    if hand.plan.has_bug("permit-sleeper") && hand.chance(10) {
        sleep_beside_a_free_one(hand, name);
    }
    if hand.plan.has_bug("permit-taken-back") && hand.chance(10) {
        take_back(hand, name, permits)?;
    }
    // The plain functions have no `Options::clock_skew`.
    if name == SEMAPHORES[0] && !hand.plan.has_own_clock && hand.chance(8) {
        return by_plain_functions(hand, name, permits);
    }
    let (mut options, lease) = hand.options_and_lease();
    if name == REPLICATED_PERMITS {
        options = options.replicas(hand.plan.replicas, Duration::from_millis(100));
    }
    let counted = permits + u32::from(hand.plan.has_bug("one-permit-more"));
    let lock = hand.locks.semaphore(name, counted).with(options);
    let way = Way::of(name, Mode::Permit(permits)).lasting(lease);
    take(hand, &lock, &way, &mut |hand, lease| {
        if name == SEMAPHORES[0] && hand.chance(4) {
            let done = lease.commit(|pipe| {
                pipe.cmd("INCR").arg(PERMITS);
            });
            hand.added(PERMITS, outcome(&done));
            if hand.plan.has_bug("lost-commit") {
                hand.added(PERMITS, Some(true));
            }
        }
    });
    Ok(())
}

/// Its holder uses its own clock, and sometimes renews too late: a lost permit must stay lost.
fn by_plain_functions(hand: &mut Hand, name: &'static str, permits: u32) -> anyhow::Result<()> {
    let mut lent = hand.lend(name)?;
    let (token, before) = (Token::random(), Instant::now());
    let id = hand.ask(name, Mode::Permit(permits), None, LEASE, None);
    let wait = Duration::from_millis(300);
    let asked = lent.run(|conn| semaphore::acquire(conn, name, permits, &token, wait, LEASE));
    if !matches!(asked, Ok(true)) {
        hand.refused(id, asked.as_ref().err());
        return Ok(());
    }
    hand.granted(id, None, Some(token.to_string()));
    hand.hold(id, name, None, || before.elapsed() < LEASE);
    if hand.chance(10) {
        thread::sleep(LEASE + LEASE / 2);
    }
    let at = now();
    let renewed = lent.run(|conn| semaphore::renew(conn, name, &token, LEASE));
    if matches!(renewed, Ok(true)) {
        hand.held(id, at);
    }
    let released = lent.run(|conn| semaphore::release(conn, name, &token));
    hand.ended(id, matches!(released, Ok(true)));
    released?;
    Ok(())
}

/// A bug: it does not retry, and believes that one of very many permits is free.
fn sleep_beside_a_free_one(hand: &mut Hand, name: &str) {
    let wait = Some(Duration::from_secs(3));
    let id = hand.ask(name, Mode::Permit(10_000), None, LEASE, wait);
    thread::sleep(Duration::from_secs(1));
    hand.refused(id, None);
}

/// A bug: a renewal that does not check whether the permit still exists.
fn take_back(hand: &mut Hand, name: &'static str, permits: u32) -> anyhow::Result<()> {
    let lock = hand.locks.semaphore(name, permits);
    let lock = lock.with(Options::new().lease(LEASE).renewal(false));
    let wait = Duration::from_secs(2);
    let id = hand.ask(name, Mode::Permit(permits), None, LEASE, Some(wait));
    let lease = match lock.acquire(wait) {
        Ok(lease) => lease,
        Err(error) => {
            hand.refused(id, Some(&error));
            return Ok(());
        }
    };
    let token = lease.token().to_string();
    hand.granted(id, None, Some(token.clone()));
    thread::sleep(LEASE + LEASE / 2);
    let mut conn = hand.connection(name)?;
    let (seconds, micros): (u64, u64) = cmd("TIME").query(&mut *conn)?;
    let ends = seconds * 1_000 + micros / 1_000 + 400;
    let key = format!("lock:{name}");
    redis::pipe()
        .atomic()
        .zadd(&key, &token, ends)
        .cmd("PEXPIRE")
        .arg(&key)
        .arg(400)
        .exec(&mut conn)?;
    hand.held(id, now());
    hand.ended(id, false);
    Ok(())
}
