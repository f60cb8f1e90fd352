//! Several locks at once, on a real server and on the stand-in.

use std::{
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use leasehold::{
    Error, Events, LockSet, Options, event,
    testing::{Action, StandIn},
};

use crate::{
    common::{
        LONG, MS,
        hold::{comes_true, every_kind},
    },
    world::{on_both, told},
};

#[derive(Default)]
struct Heard(Mutex<Vec<String>>);

impl Heard {
    fn note(&self, what: &str, lock: &str) {
        self.0.lock().unwrap().push(format!("{what} {lock}"));
    }
}

impl Events for Heard {
    fn waiting(&self, event: &event::Waiting<'_>) {
        self.note("waiting", event.lock());
    }

    fn acquired(&self, event: &event::Acquired<'_>) {
        self.note("acquired", event.lock());
    }

    fn contended(&self, event: &event::Contended<'_>) {
        self.note("contended", event.lock());
    }

    fn lost(&self, event: &event::Lost<'_>) {
        self.note("lost", event.lock());
    }

    fn released(&self, event: &event::Released<'_>) {
        self.note("released", event.lock());
    }
}

fn named(error: &Error) -> String {
    error
        .context()
        .map_or_else(String::new, |context| context.lock.clone())
}

#[test]
fn sets_behave_as_on_a_server() {
    on_both(|world| {
        let heard = Arc::new(Heard::default());
        let events = Arc::clone(&heard) as Arc<dyn Events>;
        let (ours, theirs) = (
            world.locks().with(Options::new().events(events)),
            world.locks(),
        );
        let set = ours.all_of(["b", "a"]);
        let held = theirs.lock("b").acquire(LONG).unwrap();
        let refused = [Duration::ZERO, 20 * MS].map(|wait| named(&set.acquire(wait).unwrap_err()));
        let none =
            set.try_acquire().unwrap().is_none() && !ours.lock("a").inspect().unwrap().is_held();
        held.release().unwrap();

        let leases = set.acquire(LONG).unwrap();
        let write = |pipe: &mut redis::Pipeline| _ = pipe.set("balance", 1);
        let written = told(&leases.commit(write));
        world.steal(&theirs.lock("b"));
        let lost = leases.commit(write).unwrap_err();
        let lost = (told(&leases.commit(write)), named(&lost), leases.is_held());
        let released = named(&leases.release().unwrap_err());
        let free = !ours.lock("a").inspect().unwrap().is_held();

        let all = LockSet::of(every_kind(&theirs)).acquire(LONG).unwrap();
        let of_kinds = (told(&all.commit(write)), told(&all.release()));
        let heard = std::mem::take(&mut *heard.0.lock().unwrap());
        (
            (refused, none),
            (written, lost, released, free),
            of_kinds,
            heard,
        )
    });
}

#[test]
fn a_commit_of_a_set_is_recorded_with_its_lock_names() {
    let stand_in = StandIn::new();
    let leases = stand_in
        .locks()
        .unwrap()
        .all_of(["b", "a"])
        .acquire(LONG)
        .unwrap();
    leases.commit(|pipe| _ = pipe.set("balance", 1)).unwrap();
    assert_eq!(stand_in.commits()[0].lock, "a, b");
    assert!(stand_in.expire("a"));
    let lost = leases.commit(|pipe| _ = pipe.set("balance", 2));
    assert_eq!(told(&lost), "lost");
    assert_eq!(stand_in.commits().len(), 1);
    let refused = leases.transaction(&[], |_, _| Ok(()));
    assert!(refused.is_err());
}

#[test]
fn a_commit_names_the_lost_lock_and_the_others_stay_held() {
    on_both(|world| {
        let (ours, theirs) = (world.locks(), world.locks());
        let leases = ours.all_of(["a", "b", "c"]).acquire(LONG).unwrap();
        // The server is asked nevertheless: the closure runs after the check of the clock.
        let lost = leases.commit(|pipe| {
            world.steal(&theirs.lock("b"));
            pipe.set("balance", 1);
        });
        let held = ["a", "b", "c"].map(|name| leases.get(name).unwrap().is_held());
        (lost.map_err(|error| named(&error)), held)
    });
}

/// On the stand-in's clock, which the test moves.
#[test]
fn waiting_for_any_loss_ends_with_the_first_expired_lease() {
    let stand_in = StandIn::new();
    let locks = stand_in.locks().unwrap();
    let hours = |hours: u64| Duration::from_secs(hours * 3_600);
    let lease = |length| Options::new().lease(length).renewal(false);
    let set = LockSet::of([
        locks.lock("a").with(lease(hours(24))),
        locks.lock("b").with(lease(hours(10))),
    ]);
    let leases = set.acquire(LONG).unwrap();
    let signal = leases.lost();
    thread::scope(|scope| {
        let [an_hour, forever] = [hours(1), Duration::MAX].map(|longest| {
            let signal = signal.clone();
            scope.spawn(move || signal.wait_for(longest))
        });
        // The thread may start to wait some minutes (of the stand-in's clock) later.
        for _ in 0..500 {
            if !an_hour.is_finished() {
                stand_in.advance(Duration::from_mins(1));
                thread::sleep(MS);
            }
        }
        let in_time = an_hour.is_finished() && !forever.is_finished();
        stand_in.advance(hours(10));
        assert!(in_time && !an_hour.join().unwrap() && forever.join().unwrap());
    });
    assert!(leases.get("a").unwrap().is_held() && !leases.get("b").unwrap().is_held());
    assert_eq!(named(&leases.release().unwrap_err()), "b");
}

#[test]
fn a_set_that_loses_its_first_lock_while_the_last_is_granted_is_not_acquired() {
    let stand_in = StandIn::new();
    let [locks, others] = [(); 2].map(|()| stand_in.locks().unwrap());
    let held = others.lock("b").try_acquire().unwrap().unwrap();
    let acquired = thread::scope(|scope| {
        let set = locks.all_of(["a", "b"]);
        let acquiring = scope.spawn(move || set.acquire(LONG));
        let waits = || locks.lock("b").inspect().unwrap().waiting_here() == 1;
        assert!(comes_true(waits));
        let server = stand_in.clone();
        stand_in.fail(move |action, lock| {
            assert!((action, lock) != (Action::Acquire, "b") || server.expire("a"));
            None
        });
        held.release().unwrap();
        acquiring.join().unwrap()
    });
    assert!(
        matches!(&acquired, Err(error @ Error::Lost { .. }) if named(error) == "a"),
        "{acquired:?}"
    );
    assert!(!locks.lock("b").inspect().unwrap().is_held());
}
