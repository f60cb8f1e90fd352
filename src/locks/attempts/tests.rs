//! The outcome of each reply.

use redis::{RedisResult, Value};

use super::*;
use crate::{
    locks::Options,
    name::{LockName, Owner},
    token::Token,
};

const MS: Duration = Duration::from_millis(1);
/// The reply that grants a reader.
const READ: Value = Value::Int(1);

fn attempts(settings: &Settings, kind: LockKind) -> Attempts<'_> {
    let lock = LockName::new("a").unwrap();
    let hold = Hold::new(kind, lock, Token::random(), Owner::described());
    let operation = Operation::new("Lock::acquire", "a");
    Attempts::new(operation, settings, Duration::ZERO, false, Arc::new(hold))
}

fn reply(answer: RedisResult<Value>, sent: Instant) -> Reply {
    Reply {
        answer,
        sent,
        answered: sent + MS,
        tracked: true,
        again: false,
    }
}

fn busy(millis: i64) -> Value {
    Value::Array(vec![Value::Int(millis)])
}

fn silence() -> RedisResult<Value> {
    Err(timed_out())
}

fn refusal(code: &str) -> RedisResult<Value> {
    let line = format!("-{code} no\r\n");
    match redis::parse_redis_value(line.as_bytes()) {
        Ok(Value::ServerError(error)) => Err(error.into()),
        parsed => parsed,
    }
}

#[test]
fn a_grant_expires_one_lease_after_it_was_sent() {
    let settings = Settings::default();
    let sent = crate::time::now();
    let outcome = attempts(&settings, LockKind::Read).judge(reply(Ok(READ), sent), sent + 5 * MS);
    let Ok(AttemptOutcome::Granted {
        grant,
        next_asks_at,
        ..
    }) = outcome
    else {
        unreachable!("{outcome:?}");
    };
    let end = Some(sent + settings.lease);
    assert_eq!((grant.since, grant.terms.end), (sent, end));
    assert_eq!(next_asks_at, sent + 5 * MS + ASKS_AGAIN);
    assert!(!grant.unanswered_before);
}

#[test]
fn a_grant_that_took_longer_than_the_lease_does_not_count() {
    let lease = Settings::default().lease;
    for longest in [lease, lease / 2] {
        let settings = Settings::default().changed_by(Options::new().max_hold(longest));
        let sent = crate::time::now();
        let mut attempts = attempts(&settings, LockKind::Read);
        let outcome = attempts.judge(reply(Ok(READ), sent), sent + longest);
        assert!(matches!(outcome, Ok(AttemptOutcome::Failed)));
        assert!(attempts.may_be_ours() && !attempts.is_out);
        let answer = attempts.last_failure();
        assert!(matches!(answer, Some(Error::Unknown { .. })), "{answer:?}");
    }
}

#[test]
fn a_missing_reply_is_unknown_until_a_reply_names_another_holder() {
    let settings = Settings::default();
    let now = crate::time::now();
    let mut attempts = attempts(&settings, LockKind::Read);
    let outcome = attempts.judge(reply(silence(), now), now);
    assert!(matches!(outcome, Ok(AttemptOutcome::Failed)) && attempts.failure.is_some());
    let outcome = attempts.judge(reply(Ok(busy(70)), now), now);
    let Ok(AttemptOutcome::Refused {
        ask_again_at: Some(ask_again_at),
    }) = outcome
    else {
        unreachable!("{outcome:?}");
    };
    assert_eq!(ask_again_at, now + MS + 71 * MS);
    assert!(attempts.last_failure().is_none() && attempts.is_out);
    let outcome = attempts.judge(reply(Ok(READ), now), now);
    assert!(
        matches!(outcome, Ok(AttemptOutcome::Granted { grant, .. }) if grant.unanswered_before)
    );
}

#[test]
fn an_attempt_sent_twice_may_be_executed_after_any_reply() {
    let settings = Settings::default();
    let now = crate::time::now();
    for answer in [READ, busy(70)] {
        let mut attempts = attempts(&settings, LockKind::Read);
        let reply = Reply {
            again: true,
            ..reply(Ok(answer), now)
        };
        let outcome = attempts.judge(reply, now);
        assert!(attempts.is_out && !attempts.may_be_ours());
        if let Ok(AttemptOutcome::Granted { grant, .. }) = outcome {
            assert!(grant.unanswered_before);
        }
    }
}

#[test]
fn a_lasting_refusal_ends_the_wait_and_is_unknown_after_a_missing_reply() {
    let settings = Settings::default();
    let now = crate::time::now();
    for passing in ["LOADING", "READONLY", "MASTERDOWN", "OOM", "MISCONF"] {
        let mut attempts = attempts(&settings, LockKind::Mutex);
        let outcome = attempts.judge(reply(refusal(passing), now), now);
        assert!(matches!(outcome, Ok(AttemptOutcome::Failed)), "{outcome:?}");
        let answer = attempts.last_failure();
        assert!(matches!(answer, Some(Error::Redis { .. })), "{answer:?}");
    }
    let mut first = attempts(&settings, LockKind::Mutex);
    let answer = first.judge(reply(refusal("NOPERM"), now), now);
    assert!(matches!(answer, Err(Error::Redis { .. })) && !first.is_out);
    let mut second = attempts(&settings, LockKind::Mutex);
    let _ = second.judge(reply(silence(), now), now);
    let answer = second.judge(reply(refusal("NOPERM"), now), now);
    let text = "then Redis denies it (ACL)";
    assert!(matches!(&answer, Err(Error::Unknown { source, .. }) if source.to_string() == text));
    let refused = Error::pool("redis at h:1 refuses the password", None);
    let ended = second.ended_by(refused);
    let text = "then redis at h:1 refuses the password";
    assert!(matches!(ended, Error::Unknown { source, .. } if source.to_string() == text));
    let mut again = attempts(&settings, LockKind::Mutex);
    let reply = Reply {
        again: true,
        ..reply(refusal("NOPERM"), now)
    };
    let answer = again.judge(reply, now);
    assert!(matches!(answer, Err(Error::Unknown { .. })), "{answer:?}");
}

#[test]
fn a_lock_that_too_few_replicas_have_is_not_granted_and_is_given_back() {
    let settings = Settings::default();
    let now = crate::time::now();
    let too_few = || {
        let detail = Some(String::from("1 of 2"));
        Err(redis::make_extension_error("TOOFEWREPLICAS".into(), detail))
    };
    let new = || attempts(&settings, LockKind::Read);
    let mut attempts = new();
    let outcome = attempts.judge(reply(too_few(), now), now);
    assert!(matches!(outcome, Ok(AttemptOutcome::Failed)) && attempts.may_be_ours());
    let answer = attempts.last_failure();
    let is_told = matches!(
        answer,
        Some(Error::TooFewReplicas {
            wanted: 2,
            had: 1,
            ..
        })
    );
    assert!(is_told, "{answer:?}");
    // Now enough replicas have it.
    let outcome = attempts.judge(reply(Ok(READ), now), now);
    assert!(matches!(outcome, Ok(AttemptOutcome::Granted { .. })));
    // The server refused `WAIT`, so the number of replicas is unknown.
    let refused = redis::make_extension_error("REFUSEDWAIT".into(), Some("NOPERM".into()));
    let mut attempts = new();
    let answer = attempts.judge(reply(Err(refused), now), now);
    assert!(
        matches!(answer, Err(Error::Redis { .. })) && attempts.may_be_ours(),
        "{answer:?}"
    );
}

/// A notification may be lost, and a lock may have no TTL.
#[test]
fn a_waiter_asks_again_within_a_second() {
    let settings = Settings::default();
    let now = crate::time::now();
    for (left, expected) in [(-1, 1_000), (10_000, 1_000), (70, 71)] {
        let outcome = attempts(&settings, LockKind::Mutex).judge(reply(Ok(busy(left)), now), now);
        let Ok(AttemptOutcome::Refused {
            ask_again_at: Some(ask_again_at),
        }) = outcome
        else {
            unreachable!("{outcome:?}");
        };
        assert_eq!(ask_again_at, now + MS + expected * MS);
    }
}

#[test]
fn a_waiting_writer_retries_before_its_intent_expires() {
    let settings = Settings::default();
    let now = crate::time::now();
    for (left, expected) in [(-1, 600), (10_000, 600), (70, 71)] {
        let outcome = attempts(&settings, LockKind::Write).judge(reply(Ok(busy(left)), now), now);
        let Ok(AttemptOutcome::Refused {
            ask_again_at: Some(ask_again_at),
        }) = outcome
        else {
            unreachable!("{outcome:?}");
        };
        assert_eq!(ask_again_at, now + MS + expected * MS);
    }
}

#[test]
fn the_holder_of_the_last_permit_reports_when_the_next_permit_ends() {
    let settings = Settings::default();
    let sent = crate::time::now();
    let now = sent + 5 * MS;
    let last = |left| Value::Array(vec![Value::Int(1), Value::Int(left)]);
    let asks_again = now + ASKS_AGAIN;
    for (answer, more, asks_at) in [
        (Value::Int(3), 2, asks_again),
        (Value::Int(1), 0, asks_again),
        (last(70), 0, sent + MS + 71 * MS),
        (last(70_000), 0, sent + MS + ASKS_AGAIN),
    ] {
        let mut attempts = attempts(&settings, LockKind::Semaphore { permits: 3 });
        let outcome = attempts.judge(reply(Ok(answer), sent), now);
        let Ok(AttemptOutcome::Granted {
            leaving,
            next_asks_at,
            ..
        }) = outcome
        else {
            unreachable!("{outcome:?}");
        };
        let answered = sent + MS;
        let leaves = Leaving::Shared { more, answered };
        assert_eq!((leaving, next_asks_at), (leaves, asks_at));
    }
}
