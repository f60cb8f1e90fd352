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
        renewing::entry::{REST, Terms},
        server::{RenewalAnswer, RenewalError, Renewals, Replies},
        token::Token,
    };

    const LONG: Duration = Duration::from_secs(20);
    const HOUR: Duration = Duration::from_hours(1);

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
    fn lease(clock: Clock) -> LeaseState {
        let hold = Arc::new(Hold::mutex("a", &Token::random()).unwrap());
        let terms = Terms {
            lease: HOUR,
            cap: None,
            end: Some(clock.now() + HOUR),
            renews: true,
            look_at: None,
            skew: Duration::ZERO,
        };
        LeaseState::new(&hold, None, None, &terms, None, clock)
    }

    fn kept(keeper: &Arc<Keeper>) -> Handle {
        Handle::keep(keeper, lease(keeper.clock))
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

    /// Returns the number of looks that the loss of so many leases of one key schedules.
    fn looks_at_loss(count: usize) -> usize {
        let (mut state, clock) = (KeeperState::default(), Clock::movable());
        let mut now = clock.now();
        let keep = |state: &mut KeeperState| {
            let lease = Arc::new(lease(clock));
            let id = (state.schedule).keep(Arc::clone(&lease), lease.terms(), now);
            state.remember_key(id, lease.key());
            (id, lease)
        };
        let kept: Vec<_> = (0..count).map(|_| keep(&mut state)).collect();
        let key = kept[0].1.key();
        let leases = state.of_key.get_mut(key).unwrap();
        leases.look_at_oldest(&mut state.schedule, now);
        let mut looks = 0;
        while state.schedule.len() > 0 {
            now = state.schedule.due_at().unwrap();
            for question in state.take(now).questions {
                (state.schedule).answered(question.id, RenewalAnswer::NotOurs, now);
                looks += state.look_at_idle(key, now);
            }
        }
        assert!(now < clock.now() + HOUR / 3, "one loss tells the others");
        // The holders come to know one after the other, and release.
        for (id, _) in &kept {
            state.forget_key(*id, key, now);
            looks += state.look_at_idle(key, now);
            let left = state.of_key.get(key).map_or(0, |leases| leases.all.len());
            assert_eq!(left, 0, "a lost lease is passed over again");
        }
        assert!(state.of_key.is_empty());
        looks
    }

    #[test]
    fn the_loss_of_many_leases_of_one_key_schedules_a_few_looks_at_each() {
        let (few, many) = (looks_at_loss(300), looks_at_loss(1_200));
        assert!(few >= 299 && many <= few * 5, "{few} and {many}");
    }

    /// A loss that is found while a question is in flight is later than that question. A renewal
    /// may have given the lease its first end, before which it gets no look.
    #[test]
    fn a_lease_is_looked_at_after_a_loss_once_until_it_is_asked_about_or_renewed() {
        let (keeper, _attempted) = keeper(0);
        let Handle { lease, id, .. } = kept(&keeper);
        let (key, now) = (lease.key(), keeper.clock.now() + HOUR / 3);
        let mut state = keeper.state.lock();
        let looks = |state: &mut KeeperState| [(); 2].map(|()| state.look_at_idle(key, now));
        assert_eq!(looks(&mut state), [1, 0]);
        assert_eq!(state.take(now).questions.len(), 1);
        assert_eq!(looks(&mut state), [1, 0]);
        state.schedule.answered(id, RenewalAnswer::Ours(now), now);
        assert_eq!(state.schedule.due_at(), Some(now + REST));
        assert!(keeper.renewed(&mut state, (id, &lease), now + HOUR));
        assert_eq!(looks(&mut state), [1, 0]);
        drop(state);
        keeper.close();
    }
}
