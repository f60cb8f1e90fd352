//! Several locks at once, on a real server and on the stand-in.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use leasehold::{Error, Events, LockSet, Options, event, testing::StandIn};

use crate::{
    common::{LONG, MS, hold::every_kind},
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
fn all_or_none_and_what_is_written_and_lost_comes_to_the_same() {
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
fn a_commit_under_a_set_is_recorded_with_the_names_of_its_locks() {
    let stand_in = StandIn::new();
    let leases = stand_in
        .locks()
        .unwrap()
        .all_of(["b", "a"])
        .acquire(LONG)
        .unwrap();
    leases.commit(|pipe| _ = pipe.set("balance", 1)).unwrap();
    assert_eq!(stand_in.commits()[0].lock(), "a, b");
    assert!(stand_in.expire("a"));
    let lost = leases.commit(|pipe| _ = pipe.set("balance", 2));
    assert_eq!(told(&lost), "lost");
    assert_eq!(stand_in.commits().len(), 1);
    let refused = leases.transaction(&[], |_, _| Ok(()));
    assert!(refused.is_err());
}
