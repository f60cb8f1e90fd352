//! The verdict on a hold after a reply, decided here only, for everybody who asks the server about
//! one: the watchdog, `verify` and `renew`, the commits, the releases, sets, and `run_once`.
//!
//! [`Evidence`] is what one reply says. [`KnownHold`] adds what we know without it: the end of
//! the hold by our clock, and whether the server has refused to answer before.
//!
//! - **Our clock has reached the end**: the hold is over, whatever the server says. It ended by
//!   itself, even if the key is gone or is somebody else's by now.
//! - **Not ours, or a key of another kind, before the end**: it was taken away. Near the end, where
//!   the server's clock may be ahead of ours, a hold that the server refused to renew ended by
//!   itself.
//! - **A refusal, or no reply**: not known. That is never a loss.

use std::time::{Duration, Instant};

use redis::{RedisError, RedisResult, Value};

use crate::error::{LostReason, WrongKey, makes_no_sense, wrong_key};

/// One reply, read as evidence about a hold.
#[derive(Debug)]
pub(crate) enum Evidence {
    /// The lock is ours; with the number that the script returned.
    Ours(u64),
    NotOurs,
    /// The lock's key holds something else, by this error reply. So the hold is gone.
    AnotherKind(RedisError),
    /// A refusal, an unexpected reply, or no reply.
    NotKnown(RedisError),
}

impl Evidence {
    /// Reads the reply to a renewal, a look or a release: a number above 0 if the lock is ours.
    pub(crate) fn of(answer: RedisResult<Value>) -> Self {
        match answer {
            Ok(Value::Int(0)) => Self::NotOurs,
            Ok(Value::Int(held @ 1..)) => Self::Ours(held.unsigned_abs()),
            Ok(_) => Self::NotKnown(makes_no_sense()),
            // If only its companion holds something else, the lock is still ours.
            Err(error) => match wrong_key(&error) {
                Some((WrongKey::Lock, _)) => Self::AnotherKind(error),
                _ => Self::NotKnown(error),
            },
        }
    }
}

/// The facts about a hold that we know without asking.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KnownHold {
    /// The end by our clock.
    pub(crate) end: Option<Instant>,
    /// The reason of the loss at that end.
    pub(crate) at_the_end: LostReason,
    /// The server's clock may be ahead of ours by this much.
    pub(crate) skew: Duration,
    /// The server has refused since the last renewal.
    pub(crate) was_refused: bool,
}

impl KnownHold {
    /// Returns the reason of the loss, if our clock has reached the end.
    pub(crate) fn lost_at(&self, now: Instant) -> Option<LostReason> {
        let has_passed = self.end.is_some_and(|end| end <= now);
        has_passed.then_some(self.at_the_end)
    }

    /// Returns the reason of the loss after a reply just now that the lock is not ours.
    pub(crate) fn lost_by_a_no(&self, now: Instant) -> LostReason {
        let is_near = self.was_refused && self.lost_at(now + self.skew).is_some();
        let by_itself = self.lost_at(now).is_some() || is_near;
        if by_itself {
            self.at_the_end
        } else {
            LostReason::TakenAway
        }
    }
}

#[cfg(test)]
mod tests {
    use redis::ErrorKind;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn refusal(code: &str) -> RedisResult<Value> {
        redis::parse_redis_value(format!("-{code} a text\r\n").as_bytes())?.extract_error()
    }

    /// All replies, and a no at all moments, with and without a refusal before.
    #[test]
    fn one_reply_has_one_verdict() {
        use LostReason::{MaxHold, TakenAway};
        let start = Instant::now();
        let (near, end) = (start + 40 * MS, start + 50 * MS);
        let moments = [start, near, near + 9 * MS, end, end + 50 * MS];
        let replies = [
            (Ok(Value::Int(1)), Some(true)),
            (Ok(Value::Int(3)), Some(true)),
            (Ok(Value::Int(0)), Some(false)),
            (refusal("WRONGTYPE"), Some(false)),
            (refusal("WRONGKIND"), Some(false)),
            (refusal("ERR Error running script: WRONGTYPE"), Some(false)),
            (refusal("COMPANION WRONGTYPE"), None),
            (refusal("COMPANION WRONGKIND"), None),
            (refusal("WRONGMARK"), None),
            (refusal("MISCONF"), None),
            (refusal("OOM"), None),
            (refusal("NOREPLICAS"), None),
            (refusal("NOPERM"), None),
            (Ok(Value::Int(-1)), None),
            (Ok(Value::Nil), None),
            (Ok(Value::Okay), None),
            (Err((ErrorKind::Io, "closed").into()), None),
        ];
        for (reply, says) in replies {
            let shown = format!("{reply:?}");
            let is_ours = match Evidence::of(reply) {
                Evidence::Ours(_) => Some(true),
                Evidence::NotOurs | Evidence::AnotherKind(_) => Some(false),
                Evidence::NotKnown(_) => None,
            };
            assert_eq!(is_ours, says, "{shown}");
        }
        for (at, was_refused) in moments.into_iter().flat_map(|at| [(at, false), (at, true)]) {
            let known = KnownHold {
                end: Some(end),
                at_the_end: MaxHold,
                skew: 10 * MS,
                was_refused,
            };
            let is_by_itself = at >= end || was_refused && at >= near;
            let expected = if is_by_itself { MaxHold } else { TakenAway };
            let left = end.saturating_duration_since(at);
            assert_eq!(known.lost_by_a_no(at), expected, "{left:?} {was_refused}");
        }
    }

    /// The end of a lease that was never renewed is not known.
    #[test]
    fn without_an_end_only_the_server_decides() {
        let known = KnownHold {
            end: None,
            at_the_end: LostReason::Ended,
            skew: 10 * MS,
            was_refused: true,
        };
        assert_eq!(known.lost_by_a_no(Instant::now()), LostReason::TakenAway);
    }
}
