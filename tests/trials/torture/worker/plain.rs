//! Jobs with the plain functions: the book's, and the mutex recipe with a watchdog.

use std::time::{Duration, Instant};

use leasehold::{
    Keep, Token, acquire_lock_with_timeout, commit_while_held,
    recipes::{Hold, mutex},
    release_lock,
};

use super::{
    hand::{Hand, LEASE},
    leases::outcome,
};
use crate::{history::Mode, sums::PLAIN};

const NO_WAIT: Duration = Duration::ZERO;

/// The book's lock, shared with the book's own programs. Its holder uses its own clock.
pub(super) fn simple(hand: &mut Hand) -> anyhow::Result<()> {
    let mut lent = hand.lend("p0")?;
    let id = hand.ask("p0", Mode::Exclusive, None, LEASE, None);
    let before = Instant::now();
    let asked = lent.run(|conn| acquire_lock_with_timeout(conn, "p0", NO_WAIT, LEASE));
    let Some(token) = granted(hand, id, asked) else {
        return Ok(());
    };
    hand.granted(id, None, Some(token.to_string()));
    let was_held = hand.hold(id, "p0", None, || before.elapsed() < LEASE);
    if was_held {
        let done = lent.run(|conn| {
            commit_while_held::<(i64,)>(conn, "p0", &token, |pipe| {
                pipe.cmd("INCR").arg(PLAIN);
            })
        });
        hand.added(PLAIN, outcome(&done));
    }
    let released = lent.run(|conn| release_lock(conn, "p0", &token));
    hand.ended(id, matches!(released, Ok(true)));
    released?;
    Ok(())
}

/// The mutex recipe, kept alive by a watchdog, which learns of a loss only at the next renewal.
pub(super) fn watchdog(hand: &mut Hand) -> anyhow::Result<()> {
    let mut lent = hand.lend("d0")?;
    hand.start_watchdog()?;
    let token = Token::random();
    let id = hand.ask("d0", Mode::Exclusive, None, LEASE, None);
    let before = Instant::now();
    let end = mutex::End::After(LEASE);
    let asked = lent.run(|conn| mutex::try_acquire(conn, "d0", &token, end));
    let Some(grant) = granted(hand, id, asked) else {
        return Ok(());
    };
    let fence = grant.fencing_token().get();
    hand.granted(id, Some(fence), Some(token.to_string()));
    let hold = Hold::mutex("d0", &token)?;
    let keep = Keep::new(LEASE).held_until(before + LEASE);
    let kept = hand.watchdog.as_ref().map(|dog| dog.keep_with(&hold, keep));
    if let Some(Ok(renewal)) = kept {
        hand.hold(id, "d0", Some(fence), || renewal.is_held());
        renewal.stop();
    }
    let released = lent.run(|conn| mutex::release(conn, "d0", &token));
    hand.ended(id, matches!(released, Ok(true)));
    released?;
    Ok(())
}

/// Returns the grant, if any. Records a refusal.
fn granted<T>(hand: &mut Hand, id: u64, asked: leasehold::Result<Option<T>>) -> Option<T> {
    if !matches!(asked, Ok(Some(_))) {
        hand.refused(id, asked.as_ref().err());
    }
    asked.ok().flatten()
}
