//! Tests of the keeper with a simulated server.

use super::*;

impl Keeper {
    /// Returns the numbers of keys, leases and queued callbacks, and whether anything is scheduled.
    #[cfg(feature = "testing")]
    pub(crate) fn remembered(&self) -> (usize, usize, usize, bool) {
        let state = self.state.lock();
        let due = state.schedule.due_at().is_some() || state.schedule.next_alarm().is_some();
        let KeeperState {
            of_key,
            schedule,
            calls,
            ..
        } = &*state;
        (of_key.len(), schedule.len(), calls.len(), due)
    }
}

/// Tests with a clock that the test moves.
#[cfg(feature = "testing")]
mod by_a_clock_that_moves {
    use std::{
        sync::mpsc::{self, Sender},
        time::Duration,
    };

    use redis::{ErrorKind, RedisError};

    use super::*;
    use crate::{
        renewing::entry::Terms,
        server::{RenewalAnswer, RenewalError, Renewals, Replies},
        token::Token,
    };

    const LONG: Duration = Duration::from_secs(20);
    const HOUR: Duration = Duration::from_secs(3_600);

    /// A server that breaks every connection, except for one batch that it answers.
    struct Breaking {
        batches: usize,
        answers: usize,
        clock: Clock,
        attempts: Sender<Instant>,
    }

    impl Renewals for Breaking {
        fn is_open(&self) -> bool {
            true
        }

        fn open(&mut self) -> std::result::Result<(), Arc<RenewalError>> {
            Ok(())
        }

        fn send(&mut self, calls: &[Call], _: Duration) -> Replies {
            let now = self.clock.now();
            let _ = self.attempts.send(now);
            self.batches += 1;
            let broken = self.batches != self.answers;
            let failure = || RenewalError::sent(RedisError::from((ErrorKind::Io, "broken")));
            let reply = if broken {
                (RenewalAnswer::Unanswered, Some(failure()))
            } else {
                (RenewalAnswer::Ours(now), None)
            };
            Replies {
                replies: vec![reply; calls.len()],
                broken,
            }
        }
    }

    fn keeper(answers: usize) -> (Arc<Keeper>, mpsc::Receiver<Instant>) {
        let (attempts, attempted) = mpsc::channel();
        let clock = Clock::movable();
        let renewals = Box::new(Breaking {
            batches: 0,
            answers,
            clock,
            attempts,
        });
        let limits = Limits {
            connect: LONG,
            answer: LONG,
        };
        (Keeper::start(renewals, limits, clock).unwrap(), attempted)
    }

    /// A lease that ends in an hour.
    fn kept(keeper: &Arc<Keeper>) -> Handle {
        let hold = Arc::new(Hold::mutex("a", &Token::random()).unwrap());
        let terms = Terms {
            lease: HOUR,
            cap: None,
            end: Some(keeper.clock.now() + HOUR),
            renews: true,
            look_at: None,
            skew: Duration::ZERO,
        };
        let lease = LeaseState::new(&hold, None, None, &terms, None, keeper.clock);
        Handle::keep(keeper, lease)
    }

    fn pass(keeper: &Keeper, time: Duration) {
        keeper.clock.advance(time);
        keeper.clock_moved();
    }

    #[test]
    fn an_answer_resets_the_failures_and_their_pauses() {
        let (keeper, attempted) = keeper(6);
        let lease = kept(&keeper);
        pass(&keeper, HOUR / 3);
        let next = || attempted.recv_timeout(LONG).unwrap();
        for _ in 0..6 {
            next();
        }
        pass(&keeper, HOUR / 3);
        let attempts: Vec<_> = (0..4).map(|_| next()).collect();
        let mut pauses = attempts.windows(2).map(|pair| pair[1] - pair[0]);
        // The pauses are 10, 20 and 40 ms. Without a reset the next one would be at least 125 ms.
        assert!(
            pauses.any(|pause| pause < Duration::from_millis(100)),
            "{attempts:?}"
        );
        assert_eq!(lease.lease_state().state(), RenewalState::Unknown);
        keeper.close();
    }

    /// No thread remains to renew the lease, or to call the callback at its end.
    #[test]
    fn a_lease_whose_keeper_closes_is_in_doubt_until_its_expiry() {
        let (keeper, _attempted) = keeper(0);
        let lease = kept(&keeper);
        let (called, calls) = mpsc::channel();
        let callback = move |reason| called.send(reason).unwrap();
        lease.notify(Box::new(callback)).unwrap();
        assert_eq!(lease.lease_state().state(), RenewalState::Held);
        keeper.close();
        assert_eq!(calls.recv_timeout(LONG), Ok(LostReason::Unwatched));
        assert_eq!(lease.lease_state().state(), RenewalState::Unknown);
        pass(&keeper, HOUR);
        let unwatched = RenewalState::Lost(LostReason::Unwatched);
        assert_eq!(lease.lease_state().state(), unwatched);
    }

    #[test]
    fn a_lease_that_was_lost_before_its_keeper_closes_says_why() {
        let (keeper, _attempted) = keeper(0);
        let lease = kept(&keeper).lease;
        let (called, calls) = mpsc::channel();
        let callback = move |reason| called.send(reason).unwrap();
        assert!(lease.register(Box::new(callback)).is_none());
        keeper.clock.advance(HOUR);
        lease.unwatch().into_iter().for_each(call);
        assert_eq!(calls.try_recv(), Ok(LostReason::Ended));
        assert_eq!(lease.state(), RenewalState::Lost(LostReason::Ended));
        keeper.close();
    }
}
