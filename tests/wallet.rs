//! The README's wallet, tested as its author would, without a server.

use std::time::{Duration, Instant};

use leasehold::{
    Error, Locks, Result,
    redis::Commands,
    testing::{Action, Failure, StandIn},
};

/// Moves 5 from wallet 7 to wallet 8. False: there is too little.
fn pay(locks: &Locks) -> Result<bool> {
    let lease = locks.lock("order:4711").acquire(Duration::from_secs(30))?;
    let paid = lease.transaction(&["wallet:7"], |conn, pipe| {
        let funds: Option<i64> = conn.get("wallet:7")?;
        if funds.unwrap_or(0) < 5 {
            return Ok(false);
        }
        pipe.decr("wallet:7", 5).incr("wallet:8", 5);
        Ok(true)
    })?;
    lease.release()?;
    Ok(paid)
}

/// A stand-in with this much in wallet 7.
fn with_funds(funds: i64) -> Result<(StandIn, Locks)> {
    let stand_in = StandIn::new();
    let () = stand_in.pool()?.get()?.set("wallet:7", funds)?;
    let locks = stand_in.locks()?;
    Ok((stand_in, locks))
}

fn wallets(stand_in: &StandIn) -> Result<(i64, Option<i64>)> {
    Ok(stand_in.pool()?.get()?.mget(&["wallet:7", "wallet:8"])?)
}

#[test]
fn money_moves_while_the_balance_suffices() -> Result<()> {
    let (stand_in, locks) = with_funds(12)?;
    assert!(pay(&locks)? && pay(&locks)? && !pay(&locks)?);
    assert_eq!(wallets(&stand_in)?, (2, Some(10)));
    assert_eq!(stand_in.commits().len(), 2);
    Ok(())
}

#[test]
fn the_order_is_unlocked_after_success_and_refusal() -> Result<()> {
    for funds in [7, 0] {
        let (_stand_in, locks) = with_funds(funds)?;
        pay(&locks)?;
        assert!(!locks.lock("order:4711").inspect()?.is_held());
    }
    Ok(())
}

#[test]
fn a_refusal_writes_nothing() -> Result<()> {
    let (stand_in, locks) = with_funds(7)?;
    stand_in.fail_next(Action::Commit, Failure::Refused("OOM no memory"));
    assert!(matches!(pay(&locks), Err(Error::Redis { .. })));
    assert_eq!(wallets(&stand_in)?, (7, None));
    Ok(())
}

#[test]
fn without_a_reply_the_payment_is_unknown() -> Result<()> {
    for (failure, found) in [
        (Failure::LostRequest, (7, None)),
        (Failure::LostReply, (2, Some(5))),
    ] {
        let (stand_in, locks) = with_funds(7)?;
        stand_in.fail_next(Action::Commit, failure);
        assert!(matches!(pay(&locks), Err(Error::Unknown { .. })));
        assert_eq!(wallets(&stand_in)?, found);
    }
    Ok(())
}

#[test]
fn a_lock_lost_before_the_write_pays_nothing() -> Result<()> {
    let (stand_in, locks) = with_funds(7)?;
    let thief = stand_in.clone();
    stand_in.fail(move |action, lock| {
        if action == Action::Commit {
            thief.steal(lock);
        }
        None
    });
    assert!(matches!(pay(&locks), Err(Error::Lost { .. })));
    assert_eq!(wallets(&stand_in)?, (7, None));
    Ok(())
}

#[test]
fn it_waits_for_another_holder_of_the_order() -> Result<()> {
    let (stand_in, locks) = with_funds(7)?;
    stand_in.steal_for("order:4711", Duration::from_secs(3));
    std::thread::scope(|scope| {
        let paying = scope.spawn(|| pay(&locks));
        while locks.lock("order:4711").inspect()?.waiting_here() == 0 {
            std::thread::yield_now();
        }
        stand_in.advance(Duration::from_secs(3));
        assert!(matches!(paying.join(), Ok(Ok(true))));
        Ok(())
    })
}

#[test]
fn a_failure_of_one_call_leaves_the_others() -> Result<()> {
    let (stand_in, locks) = with_funds(7)?;
    stand_in.fail(|_, lock| (lock == "order:4711").then_some(Failure::LostRequest));
    let asked = Instant::now();
    let other = locks.lock("order:1").try_acquire()?;
    assert!(other.is_some() && locks.lock("order:4711").try_acquire().is_err());
    assert!(
        asked.elapsed() < Duration::from_secs(2),
        "{:?}",
        asked.elapsed()
    );
    Ok(())
}
