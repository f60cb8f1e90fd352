//! The state of a lease that has ended or was lost.

use super::*;
use crate::token::Token;

fn lease_state(token: &Token, end: Instant) -> LeaseState {
    let hold = Arc::new(Hold::mutex("a", token).unwrap());
    let terms = Terms {
        lease: Duration::from_secs(10),
        cap: None,
        end: Some(end),
        renews: true,
        look_at: None,
        skew: Duration::ZERO,
    };
    LeaseState::new(&hold, None, None, &terms, None, Clock::REAL)
}

#[test]
fn a_lease_seen_lost_is_never_held_again() {
    let now = Clock::REAL.now();
    let lease = lease_state(&Token::random(), now);
    assert_eq!(lease.lost(), Some(LostReason::Ended));
    assert!(!lease.renewed(now + Duration::from_secs(60)));
    assert_eq!(lease.state(), RenewalState::Lost(LostReason::Ended));
    assert!(lease.remaining().is_zero());
}

#[test]
fn the_first_reason_stays() {
    let lease = lease_state(
        &Token::random(),
        Clock::REAL.now() + Duration::from_secs(60),
    );
    lease.lose(LostReason::TakenAway);
    lease.lose(LostReason::Ended);
    assert_eq!(lease.lost(), Some(LostReason::TakenAway));
    assert_eq!(lease.stop(), RenewalState::Lost(LostReason::TakenAway));
}

#[test]
fn a_token_is_not_printed() {
    let token: Token = "secret".parse().unwrap();
    let lease = lease_state(&token, Clock::REAL.now());
    assert!(!format!("{lease:?}").contains("secret"));
}
