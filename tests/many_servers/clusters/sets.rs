//! Several locks at once on a cluster.

use std::thread;

use leasehold::{Error, LockSet, Options};
use redis::Commands;

use super::{connect, kinds, moving::Moved, mutex, patient};
use crate::common::{LONG, MS, Resharding, cluster::shared, hold::comes_true};

#[test]
fn a_set_spans_shards_but_commits_in_one_slot_only() {
    let cluster = shared();
    let (locks, others) = (connect(&cluster), connect(&cluster));
    let tags = [0, 1, 2].map(|shard| cluster.tag(shard, "set").unwrap());
    let everywhere = || tags.iter().map(|tag| mutex(&locks, tag));
    let leases = LockSet::of(everywhere()).acquire(LONG).unwrap();
    for tag in &tags {
        assert!(mutex(&others, tag).try_acquire().unwrap().is_none());
    }
    // The locks are on three servers; two on the same server are in two slots.
    let written = [leases.commit(|pipe| _ = pipe.incr("balance", 1))];
    let another = cluster.tag(0, "another").unwrap();
    assert_ne!(
        cluster.slot_of(&another).unwrap(),
        cluster.slot_of(&tags[0]).unwrap()
    );
    leases.release().unwrap();
    let beside = LockSet::of([mutex(&locks, &tags[0]), mutex(&locks, &another)]);
    let leases = beside.acquire(LONG).unwrap();
    let beside = leases.commit(|pipe| _ = pipe.incr("balance", 1));
    for refused in written.into_iter().chain([beside]) {
        let error = refused.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
        assert!(error.to_string().contains("{tag}"), "{error}");
    }
    leases.check().unwrap();
    leases.release().unwrap();

    let leases = LockSet::of(kinds(&locks, &tags[1])).acquire(LONG).unwrap();
    let balance = format!("balance{{{}}}", tags[1]);
    leases.commit(|pipe| _ = pipe.incr(&balance, 1)).unwrap();
    let moved = leases.transaction(&[], |conn, pipe| {
        let funds: i64 = conn.get(&balance)?;
        pipe.decr(&balance, funds);
        Ok(funds)
    });
    assert_eq!(moved.unwrap(), 1);
    leases.release().unwrap();
}

#[test]
fn a_loss_on_any_shard_is_reported_and_the_others_are_released() {
    let cluster = shared();
    let locks = connect(&cluster).with(Options::new().lease(6_000 * MS));
    let tags = [0, 1, 2].map(|shard| cluster.tag(shard, "set-lost").unwrap());
    let leases = LockSet::of(tags.iter().map(|tag| mutex(&locks, tag)));
    let leases = leases.acquire(LONG).unwrap();
    let mut master = cluster.nodes[1].connection().unwrap();
    let () = master.del(super::key(&tags[1])).unwrap();
    assert!(leases.lost().wait_for(LONG));
    let lost = leases.release().unwrap_err();
    let name = mutex(&locks, &tags[1]).name().to_owned();
    assert!(
        matches!(&lost, Error::Lost { context, .. } if context.lock == name),
        "{lost:?}"
    );
    let free = || {
        tags.iter()
            .all(|tag| !mutex(&locks, tag).inspect().unwrap().is_held())
    };
    assert!(comes_true(free));
}

/// So they were acquired on two shards, but are in one slot.
#[test]
fn a_slot_that_moves_between_two_locks_of_a_set_is_still_one_slot() {
    let cluster = shared();
    let (locks, others) = (patient(&cluster), patient(&cluster));
    let tag = cluster.tag(1, "set-moves").unwrap();
    let [first, second] = ["a", "b"].map(|name| format!("{name}{{{tag}}}"));
    let held = others.lock(&second).acquire(LONG).unwrap();
    thread::scope(|scope| {
        let set = locks.all_of([&*first, &*second]);
        let waiter = scope.spawn(move || set.acquire(4 * LONG).unwrap());
        let waits = || locks.lock(&second).inspect().unwrap().waiting_here() == 1;
        assert!(comes_true(waits));
        let moved = Moved::new(&cluster, &tag, 1);
        held.release().unwrap();
        let leases = waiter.join().unwrap();
        let balance = format!("balance{{{tag}}}");
        leases.commit(|pipe| _ = pipe.set(&balance, 7)).unwrap();
        let read = leases.transaction(&[], |conn, _| Ok(conn.get::<_, u64>(&balance)?));
        assert_eq!(read.unwrap(), 7);
        leases.release().unwrap();
        let () = cluster.nodes[moved.to]
            .connection()
            .unwrap()
            .del(&balance)
            .unwrap();
    });
}

/// Each shard gets one write, and all at once.
#[test]
fn what_a_set_does_not_keep_is_given_back_on_every_shard() {
    let cluster = shared();
    let (locks, others) = (connect(&cluster), connect(&cluster));
    let tags = [0, 1, 2].map(|shard| cluster.tag(shard, "set-back").unwrap());
    // The key of the busy lock comes last.
    let busy = format!("z{{{}}}", tags[2]);
    let held = others.lock(&busy).acquire(LONG).unwrap();
    let all = || tags.iter().flat_map(|tag| kinds(&locks, tag));
    let options = Options::new().drop_timeout(MS);
    let set = LockSet::of(all().chain([locks.lock(&busy)])).with(options);
    let is_busy = |error: &Error| matches!(error, Error::Contended { .. });
    assert!(is_busy(&set.acquire(500 * MS).unwrap_err()));
    for lock in all() {
        assert!(!lock.inspect().unwrap().is_held(), "{}", lock.name());
    }
    held.release().unwrap();
    set.acquire(LONG).unwrap().release().unwrap();
    for lock in all() {
        assert!(!lock.inspect().unwrap().is_held(), "{}", lock.name());
    }
}

/// The node has given away the keys, and refuses each release with `ASK`.
#[test]
fn a_set_whose_slot_is_on_its_way_is_released_once_it_has_arrived() {
    let cluster = shared();
    let locks = patient(&cluster);
    let tag = cluster.tag(0, "set-asks").unwrap();
    let slot = cluster.slot_of(&tag).unwrap();
    let leases = LockSet::of(kinds(&locks, &tag)).acquire(LONG).unwrap();
    let mut resharding = Resharding::new(&cluster, 0, 1).unwrap();
    resharding.open(&[slot]).unwrap();
    resharding.move_keys(slot).unwrap();
    thread::scope(|scope| {
        let released = scope.spawn(|| leases.release());
        thread::sleep(300 * MS);
        let waits = !released.is_finished();
        resharding.close(&[slot]).unwrap();
        released.join().unwrap().unwrap();
        assert!(waits);
    });
    for lock in kinds(&locks, &tag) {
        assert!(!lock.inspect().unwrap().is_held(), "{}", lock.name());
    }
    let mut back = Resharding::new(&cluster, 1, 0).unwrap();
    back.run(&[slot]).unwrap();
}
