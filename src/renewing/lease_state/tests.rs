//! The state of a lease that has ended or was lost.

use super::*;
use crate::token::Token;

fn lease_state(token: &Token, end: Instant) -> LeaseState {
    skewed(token, end, Duration::ZERO)
}

fn skewed(token: &Token, end: Instant, skew: Duration) -> LeaseState {
    let hold = Arc::new(Hold::mutex("a", token).unwrap());
    let terms = Terms {
        lease: Duration::from_secs(10),
        cap: None,
        end: Some(end),
        renews: true,
        look_at: None,
        skew,
    };
    LeaseState::new(&hold, None, None, &terms, None, Clock::REAL)
}

#[test]
fn a_lease_seen_lost_is_never_held_again() {
    let now = Clock::REAL.now();
    let lease = lease_state(&Token::random(), now);
    assert_eq!(lease.lost(), Some(LostReason::Ended));
    assert!(!lease.renewed(now + Duration::from_mins(1)));
    assert_eq!(lease.state(), RenewalState::Lost(LostReason::Ended));
    assert!(lease.remaining().is_zero());
}

#[test]
fn the_first_reason_stays() {
    let lease = lease_state(&Token::random(), Clock::REAL.now() + Duration::from_mins(1));
    lease.lose(LostReason::TakenAway);
    lease.lose(LostReason::Ended);
    assert_eq!(lease.lost(), Some(LostReason::TakenAway));
    assert_eq!(lease.stop(), RenewalState::Lost(LostReason::TakenAway));
}

/// By the server's clock it may have ended. A failure without a reply changes nothing.
#[test]
fn after_a_refusal_a_no_near_the_end_is_no_theft() {
    let token = Token::random();
    let refusal = || RenewalError::sent((redis::ErrorKind::Extension, "OOM").into());
    let silence = || RenewalError::sent((redis::ErrorKind::Io, "silence").into());
    let found =
        || RenewalError::sent((redis::ErrorKind::Extension, "", "WRONGTYPE".to_owned()).into());
    let end = Clock::REAL.now() + Duration::from_mins(1);
    for (failures, is_renewed, reason) in [
        (vec![], false, LostReason::TakenAway),
        (vec![silence()], false, LostReason::TakenAway),
        (vec![refusal()], false, LostReason::Ended),
        (vec![refusal(), silence()], false, LostReason::Ended),
        (vec![refusal()], true, LostReason::TakenAway),
        (vec![found()], false, LostReason::TakenAway),
    ] {
        let lease = skewed(&token, end, Duration::from_mins(2));
        for failure in &failures {
            lease.renewal_failed(failure, false);
        }
        assert!(!is_renewed || lease.renewed(end));
        assert_eq!(lease.lost_by_a_no(), reason, "{failures:?} {is_renewed}");
    }
}

#[test]
fn a_token_is_not_printed() {
    let token: Token = "secret".parse().unwrap();
    let lease = lease_state(&token, Clock::REAL.now());
    assert!(!format!("{lease:?}").contains("secret"));
}
