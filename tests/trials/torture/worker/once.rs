//! Once-only jobs: once in a period, or once however often they are tried.
#![allow(
    clippy::unnecessary_wraps,
    reason = "all jobs have this signature; these record their own failures"
)]

use std::time::Duration;

use leasehold::{Error, Once, Options};
use uuid::Uuid;

use super::hand::{Hand, LEASE};
use crate::{
    clock::{nanos, now},
    history::Record,
    sums::ONCE,
};

/// Shorter than the sum of the pauses, so that the work is done now and then.
const PERIOD: Duration = Duration::from_millis(700);

pub(super) fn run_once(hand: &mut Hand) -> anyhow::Result<()> {
    let lock = hand.locks.lock("o0").with(Options::new().lease(LEASE));
    let works_for = hand.hold_for().min(LEASE / 2);
    let period = if hand.plan.has_bug("twice") {
        Duration::from_millis(1)
    } else {
        PERIOD
    };
    let (asked, mut begun, mut over) = (now(), 0, 0);
    let ran = lock.run_once(period, Duration::from_millis(300), |_| {
        begun = now();
        std::thread::sleep(works_for);
        over = now();
        Ok::<(), Error>(())
    });
    if begun > 0 {
        let is_marked = matches!(&ran, Ok(Once::Ran(ran)) if ran.released.is_ok());
        hand.ran(&Record::Ran {
            lock: "o0".to_owned(),
            period: nanos(PERIOD),
            asked,
            begun,
            over,
            marked: is_marked.then(now),
        });
    }
    if let Err(error) = ran {
        hand.failed_with(&error);
    }
    hand.pause(100);
    Ok(())
}

/// Increments a number with an id, and retries until it is known to be done.
pub(super) fn commit_once(hand: &mut Hand) -> anyhow::Result<()> {
    let lock = hand.locks.lock("c0").with(Options::new().lease(LEASE));
    let id = Uuid::new_v4().to_string();
    let mut is_in_doubt = false;
    for _ in 0..8 {
        if now() > hand.plan.until {
            break;
        }
        let Ok(lease) = lock.acquire(Duration::from_secs(2)) else {
            continue;
        };
        let done = lease.commit_once(&id, Duration::from_mins(1), |pipe| {
            pipe.cmd("INCR").arg(ONCE);
        });
        match done {
            Ok(_) => {
                hand.added(ONCE, Some(true));
                return Ok(());
            }
            Err(error) => {
                is_in_doubt |= matches!(error, Error::Unknown { .. } | Error::Partial { .. });
                hand.failed_with(&error);
            }
        }
    }
    hand.added(ONCE, if is_in_doubt { None } else { Some(false) });
    Ok(())
}
