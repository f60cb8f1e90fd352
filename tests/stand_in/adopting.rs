//! A hold that one process passes to another: `Lease::detach` and `Lock::adopt`.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use leasehold::{
    Cancel, Error, Events, FencingToken, Lease, Lock, Locks, LostReason, Options, Owner, Token,
    acquire_lock, acquire_lock_with_timeout, event,
    testing::{Action, Failure, StandIn},
};

use crate::{
    common::{
        LONG, MS,
        hold::{PATIENCE, comes_true, every_kind},
    },
    world::{World, on_both, told},
};

fn we() -> Options {
    Options::new().owner(Owner::new("we").unwrap())
}

/// A lock of each kind, in a separate process, for the same owner.
fn kinds(world: &dyn World, options: &Options) -> [Lock; 6] {
    every_kind(&world.locks().with(we()).with(options.clone()))
}

fn holders(lock: &Lock) -> usize {
    lock.inspect().unwrap().holders().len()
}

fn short() -> Options {
    Options::new().lease(1_500 * MS)
}

/// The reason of the loss.
fn why<T>(result: &Result<T, Error>) -> Option<LostReason> {
    match result {
        Err(Error::Lost { reason, .. }) => *reason,
        _ => None,
    }
}

#[test]
fn every_kind_is_renewed_and_released_by_the_process_that_adopts_it() {
    on_both(|world| {
        let (ours, theirs) = (kinds(world, &short()), kinds(world, &short()));
        let leases = ours.map(|lock| lock.acquire(LONG).unwrap());
        let fences = leases.each_ref().map(Lease::fencing_token);
        assert_eq!(fences.iter().flatten().count(), 3);
        let tokens = leases.map(|lease| lease.detach().0);
        let mut adopted = Vec::new();
        for ((lock, token), fence) in theirs.iter().zip(&tokens).zip(fences) {
            let lease = lock.adopt(token).unwrap();
            assert_eq!(lease.fencing_token(), fence, "{}", lock.name());
            assert!(lease.is_held() && lease.token() == token);
            adopted.push(lease);
        }
        // Renewed twice and more.
        for _ in 0..6 {
            world.pass(500 * MS);
        }
        for (lock, lease) in theirs.iter().zip(adopted) {
            lease.verify().unwrap();
            lease.commit(|pipe| _ = pipe.incr("done", 1)).unwrap();
            assert_eq!(holders(lock), 1, "{}", lock.name());
            lease.release().unwrap();
            assert_eq!(holders(lock), 0, "{}", lock.name());
        }
    });
}

#[test]
fn the_drop_of_the_adopted_guard_releases_and_a_detached_one_can_be_adopted_again() {
    on_both(|world| {
        let (ours, theirs) = (kinds(world, &short()), kinds(world, &short()));
        for (ours, theirs) in ours.iter().zip(&theirs) {
            let (token, _) = ours.acquire(LONG).unwrap().detach();
            let (token, left) = theirs.adopt(&token).unwrap().detach();
            assert!(!left.is_zero());
            drop(ours.adopt(&token).unwrap());
            assert_eq!(holders(ours), 0, "{}", ours.name());
        }
    });
}

#[test]
fn what_is_not_held_by_this_token_is_lost() {
    on_both(|world| {
        let (ours, theirs) = (kinds(world, &short()), kinds(world, &short()));
        let is_refused = |lock: &Lock, token: &Token| {
            let error = lock.adopt(token).map(drop).unwrap_err();
            assert!(matches!(error, Error::Lost { reason: None, .. }), "{error}");
            assert!(
                error.to_string().ends_with("the lock is not ours"),
                "{error}"
            );
        };
        for (ours, theirs) in ours.iter().zip(&theirs) {
            let nobodys = Token::random();
            is_refused(theirs, &nobodys);
            let held = ours.acquire(LONG).unwrap();
            is_refused(theirs, &nobodys);
            held.verify().unwrap();
            let (token, _) = held.detach();
            assert!(world.expire(ours.name()));
            is_refused(theirs, &token);
            let they = Options::new().owner(Owner::new("they").unwrap());
            let _next = ours.clone().with(they).acquire(LONG).unwrap();
            is_refused(theirs, &token);
            assert_eq!(holders(ours), 1, "{}", ours.name());
        }
    });
}

/// A reader's token is no writer's. A mutex with a fencing token and one without have the same key.
#[test]
fn a_token_of_another_kind_is_of_the_wrong_kind_or_lost() {
    on_both(|world| {
        let of_kind = |locks: &Locks, place: usize| {
            let locks = locks.with(we());
            match place {
                0 => locks.lock("a"),
                1 => locks.reentrant("a"),
                2 => locks.read("a"),
                3 => locks.write("a"),
                _ => locks.semaphore("a", 1),
            }
        };
        let (ours, theirs) = (world.locks(), world.locks());
        let mut said = Vec::new();
        for held in 0..5 {
            let lease = of_kind(&ours, held).acquire(LONG).unwrap();
            for wanted in (0..5).filter(|wanted| *wanted != held) {
                let adopted = of_kind(&theirs, wanted).adopt(lease.token());
                said.push((held, wanted, told(&adopted)));
            }
            lease.verify().unwrap();
            lease.release().unwrap();
        }
        for (held, wanted, said) in &said {
            let is_of_one_key = matches!((held, wanted), (2, 3) | (3, 2));
            let expected = if is_of_one_key { "lost" } else { "wrong kind" };
            assert_eq!(*said, expected, "{held} as {wanted}");
        }
        said
    });
}

#[test]
fn the_first_release_ends_a_hold_that_was_adopted_twice() {
    on_both(|world| {
        let (ours, theirs) = (kinds(world, &short()), kinds(world, &short()));
        ours.iter().zip(&theirs).for_each(|(ours, theirs)| {
            let (token, _) = ours.acquire(LONG).unwrap().detach();
            let [one, other] = [ours, theirs].map(|lock| lock.adopt(&token).unwrap());
            one.verify().and_then(|()| other.verify()).unwrap();
            one.release().unwrap();
            assert_eq!(why(&other.release()), Some(LostReason::TakenAway));
            assert_eq!(holders(ours), 0, "{}", ours.name());
        });
    });
}

#[test]
fn a_reentrant_lock_is_adopted_for_its_owner_only() {
    on_both(|world| {
        let (ours, theirs) = (world.locks(), world.locks());
        let lock = ours.reentrant("a").with(we());
        let outer = lock.acquire(LONG).unwrap();
        let (token, _) = lock.acquire(LONG).unwrap().detach();
        let other = Options::new().owner(Owner::new("they").unwrap());
        let said = [
            told(&theirs.reentrant("a").adopt(&token)),
            told(&theirs.reentrant("a").with(other).adopt(&token)),
        ];
        assert_eq!(said, ["invalid", "lost"]);
        let inner = theirs.reentrant("a").with(we()).adopt(&token).unwrap();
        assert_eq!(inner.fencing_token(), outer.fencing_token());
        inner.release().unwrap();
        outer.verify().unwrap();
        outer.release().unwrap();
    });
}

#[test]
fn the_adopted_lease_has_the_terms_of_the_one_who_adopts() {
    on_both(|world| {
        let ours = kinds(world, &Options::new().lease(6_000 * MS));
        let until = Options::new().max_hold(3_000 * MS);
        let theirs = kinds(world, &until).into_iter();
        let theirs = theirs.zip(kinds(world, &short().renewal(false)));
        let ends = ours.iter().zip(theirs).map(|(ours, (until, once))| {
            let (token, _) = ours.acquire(LONG).unwrap().detach();
            let lease = until.adopt(&token).unwrap();
            // It counts from the adoption, and the lease is not longer.
            assert!(lease.remaining() > 1_500 * MS && lease.remaining() <= 3_000 * MS);
            let (token, _) = lease.detach();
            let once = once.adopt(&token).unwrap();
            assert!(once.is_held() && once.remaining() <= 1_500 * MS);
            // The end on the server is not shortened.
            let state = ours.inspect().unwrap();
            assert!(state.holders()[0].remaining().unwrap() > 3_000 * MS);
            once
        });
        let ends: Vec<_> = ends.collect();
        world.pass(1_600 * MS);
        ends.iter()
            .map(|lease| why(&lease.check()))
            .collect::<Vec<_>>()
    });
}

#[test]
fn an_adopted_lock_is_free_by_its_max_hold_whatever_happens_to_the_one_who_adopts() {
    on_both(|world| {
        let until = Options::new().max_hold(3_000 * MS);
        let (ours, theirs) = (kinds(world, &short()), kinds(world, &until));
        for (ours, theirs) in ours.iter().zip(&theirs) {
            let (token, _) = ours.acquire(LONG).unwrap().detach();
            let lease = theirs.adopt(&token).unwrap();
            let left = ours.inspect().unwrap().holders()[0].remaining().unwrap();
            assert!(lease.is_held() && left <= 3_001 * MS, "{}", ours.name());
            // An end is a whole millisecond.
            assert!(lease.remaining() < left + 2 * MS, "{}", ours.name());
        }
    });
}

#[test]
fn an_adopted_lease_ends_earlier_by_the_clock_skew() {
    on_both(|world| {
        let skewed = Options::new().lease(LONG).clock_skew(LONG / 4);
        let (ours, theirs) = (kinds(world, &short()), kinds(world, &skewed));
        for (ours, theirs) in ours.iter().zip(&theirs) {
            let (token, _) = ours.acquire(LONG).unwrap().detach();
            let left = theirs.adopt(&token).unwrap().remaining();
            let is_between = left > LONG / 2 && left <= LONG * 3 / 4;
            assert!(is_between, "{}: {left:?}", ours.name());
        }
    });
}

/// Long before its first renewal.
#[test]
fn the_loss_of_an_adopted_lock_is_told_soon() {
    on_both(|world| {
        let long = Options::new().lease(3 * LONG);
        let (ours, theirs) = (kinds(world, &short()), kinds(world, &long));
        let adopted: Vec<_> = (ours.iter().zip(&theirs))
            .map(|(ours, theirs)| {
                let (token, _) = ours.acquire(LONG).unwrap().detach();
                theirs.adopt(&token).unwrap()
            })
            .collect();
        for lease in &adopted {
            assert!(world.expire(lease.name()));
            assert!(lease.lost().wait_for(PATIENCE), "{}", lease.name());
            assert_eq!(why(&lease.check()), Some(LostReason::TakenAway));
        }
    });
}

#[test]
fn an_adoption_extends_the_lease_even_if_it_is_not_renewed() {
    on_both(|world| {
        let once = Options::new().lease(6_000 * MS).renewal(false);
        let (ours, theirs) = (kinds(world, &short()), kinds(world, &once));
        for (ours, theirs) in ours.iter().zip(&theirs) {
            let (token, _) = ours.acquire(LONG).unwrap().detach();
            let lease = theirs.adopt(&token).unwrap();
            assert!(lease.remaining() > 3_000 * MS);
            let state = ours.inspect().unwrap();
            assert!(state.holders()[0].remaining() > Some(3_000 * MS));
        }
    });
}

#[test]
fn what_the_books_lock_acquired_is_adopted_and_keeps_no_end_if_it_had_none() {
    on_both(|world| {
        let mut conn = world.pool().get().unwrap();
        let lock = world.locks().with(short()).lock("a");
        let endless = acquire_lock(&mut conn, "a", LONG).unwrap().unwrap();
        let (_, left) = lock.adopt(&endless).unwrap().detach();
        let state = lock.inspect().unwrap();
        assert!(left <= 1_500 * MS && state.holders()[0].remaining().is_none());
        lock.adopt(&endless).unwrap().release().unwrap();
        let token = acquire_lock_with_timeout(&mut conn, "a", LONG, LONG).unwrap();
        let lease = lock.adopt(&token.unwrap()).unwrap();
        assert_eq!(lease.fencing_token(), None);
        lease.release().unwrap();
    });
}

/// The hold of a lock that was handed over has used later numbers than its first.
#[test]
fn the_fencing_token_is_not_less_than_that_of_a_turn_before() {
    on_both(|world| {
        let options = Options::new().hand_over(8, LONG);
        let (lock, other) = (
            world.locks().with(options).lock("a"),
            world.locks().lock("a"),
        );
        // The first hold of a lock is never handed over.
        lock.acquire(LONG).unwrap().release().unwrap();
        let first = lock.acquire(LONG).unwrap();
        let of_first = first.fencing_token();
        let last = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| lock.acquire(LONG).unwrap());
            assert!(comes_true(|| lock.inspect().unwrap().waiting_here() == 1));
            first.release().unwrap();
            waiting.join().unwrap()
        });
        let of_last = last.fencing_token();
        assert_eq!(
            of_last.map(FencingToken::get),
            of_first.map(|it| it.get() + 1)
        );
        let (token, _) = last.detach();
        let adopted = other.adopt(&token).unwrap();
        assert!(adopted.fencing_token() >= of_last);
        let of_adopted = adopted.fencing_token();
        adopted.release().unwrap();
        assert!(other.acquire(LONG).unwrap().fencing_token() > of_adopted);
    });
}

#[derive(Default)]
struct Heard(Mutex<Vec<&'static str>>);

impl Events for Heard {
    fn waiting(&self, _: &event::Waiting<'_>) {
        self.0.lock().unwrap().push("waiting");
    }

    fn acquired(&self, event: &event::Acquired<'_>) {
        assert!(event.attempts() == 1 && event.waited() < LONG);
        self.0.lock().unwrap().push("acquired");
    }

    fn failed(&self, _: &event::AcquireFailed<'_>) {
        self.0.lock().unwrap().push("failed");
    }

    fn lost(&self, _: &event::Lost<'_>) {
        self.0.lock().unwrap().push("lost");
    }

    fn released(&self, _: &event::Released<'_>) {
        self.0.lock().unwrap().push("released");
    }
}

#[test]
fn the_hooks_hear_of_an_adoption_as_of_an_acquire() {
    on_both(|world| {
        let heard = Arc::new(Heard::default());
        let events = Options::new().events(Arc::clone(&heard) as Arc<dyn Events>);
        let ours = world.locks().lock("a");
        let theirs = world.locks().lock("a").with(events);
        let (token, _) = ours.acquire(LONG).unwrap().detach();
        theirs.adopt(&token).unwrap().release().unwrap();
        assert!(theirs.adopt(&token).is_err());
        let (token, _) = ours.acquire(LONG).unwrap().detach();
        let adopted = theirs.adopt(&token).unwrap();
        assert!(world.expire("a"));
        // Before the guard ends.
        assert!(comes_true(|| heard.0.lock().unwrap().contains(&"lost")));
        drop(adopted);
        let all = [
            "waiting", "acquired", "released", "waiting", "failed", "waiting", "acquired", "lost",
            "released",
        ];
        assert!(
            comes_true(|| *heard.0.lock().unwrap() == all),
            "{heard:?}",
            heard = heard.0
        );
    });
}

#[test]
fn nothing_is_sent_after_a_cancel_or_with_an_invalid_option() {
    let stand_in = StandIn::new();
    let lock = stand_in.locks().unwrap().lock("a");
    let (token, _) = lock.acquire(LONG).unwrap().detach();
    stand_in.disconnect();
    let cancel = Cancel::new();
    cancel.cancel();
    let cancelled = lock
        .clone()
        .with(Options::new().cancel(&cancel))
        .adopt(&token);
    assert!(matches!(cancelled, Err(Error::Cancelled { .. })));
    let invalid = lock
        .with(Options::new().lease(Duration::ZERO))
        .adopt(&token);
    assert!(matches!(invalid, Err(Error::Invalid { .. })));
}

/// The hold stays as it is, so the call can be repeated.
#[test]
fn an_adoption_without_a_reply_or_with_a_refusal_can_be_repeated() {
    let stand_in = StandIn::new();
    let world: &dyn World = &stand_in;
    for (ours, theirs) in kinds(world, &short()).iter().zip(&kinds(world, &short())) {
        let (token, _) = ours.acquire(LONG).unwrap().detach();
        // They come in this order.
        let refusal = Failure::Refused("OOM no memory");
        for failure in [Failure::LostReply, Failure::LostRequest, refusal] {
            stand_in.fail_next(Action::Renew, failure);
        }
        for _ in 0..2 {
            let unknown = theirs.adopt(&token);
            let error = unknown.map(drop).unwrap_err();
            assert!(matches!(error, Error::Unknown { .. }), "{error:?}");
            assert_eq!(error.token(), Some(&token));
        }
        assert!(matches!(theirs.adopt(&token), Err(Error::Redis { .. })));
        // A fencing token that cannot be read is not taken for none.
        let is_fenced = ["mutex", "reentrant", "write"].contains(&theirs.name());
        let refused = if is_fenced {
            Action::Inspect
        } else {
            Action::Renew
        };
        stand_in.fail_next(refused, Failure::Refused("NOPERM no"));
        let refused = theirs.adopt(&token);
        assert!(matches!(refused, Err(Error::Redis { .. })), "{refused:?}");
        theirs.adopt(&token).unwrap().release().unwrap();
    }
}
