//! Slots that move between shards, with their locks.
//!
//! Moves all slots of a shard to and fro, `LEASEHOLD_MOVES` times: `cargo test --release --test
//! many_servers clusters::moving -- --ignored --nocapture --test-threads 1`.

use std::{
    env,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use leasehold::{
    Error, Lease, Locks, LostReason, Options, Owner, Token,
    book::article::one_hash::{self, Lifetimes},
};
use redis::Commands;

use super::{connect, key, kinds, mutex, patient};
use crate::{
    common::{
        Cluster, LONG, MS, Resharding, SLACK,
        clock::millis,
        cluster::{shared, slots_of},
        hold::comes_true,
        monitor::Monitor,
        wait::{comes_true_within, in_time},
    },
    history::{History, SECOND, violations, work},
};

const LEASES: usize = 200;
const WAITING: usize = 50;
/// Number of threads that compete for a lock.
const TOGETHER: usize = 5;

/// A slot of the shared cluster that moves from its first master to another, and back when this is
/// dropped.
pub(super) struct Moved<'a> {
    cluster: &'a Cluster,
    slot: u16,
    from: usize,
    pub(super) to: usize,
}

impl<'a> Moved<'a> {
    pub(super) fn new(cluster: &'a Cluster, tag: &str, from: usize) -> Self {
        let slot = cluster.slot_of(tag).unwrap();
        let to = (from + 1) % 3;
        Resharding::new(cluster, from, to)
            .unwrap()
            .run(&[slot])
            .unwrap();
        Self {
            cluster,
            slot,
            from,
            to,
        }
    }
}

impl Drop for Moved<'_> {
    fn drop(&mut self) {
        let back = Resharding::new(self.cluster, self.to, self.from);
        back.unwrap().run(&[self.slot]).unwrap();
    }
}

#[test]
fn a_waiter_follows_a_moving_slot() {
    let cluster = shared();
    let (holder, waiter) = (patient(&cluster), patient(&cluster));
    let tag = cluster.tag(1, "follows").unwrap();
    let lease = mutex(&holder, &tag).acquire(LONG).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let lease = mutex(&waiter, &tag).acquire(LONG).unwrap();
            (Instant::now(), lease.fencing_token())
        });
        let same_process = scope.spawn(|| mutex(&holder, &tag).acquire(LONG).map(drop));
        let waits = |locks: &Locks| mutex(locks, &tag).inspect().unwrap().waiting_here() == 1;
        assert!(comes_true(|| waits(&waiter) && waits(&holder)));
        thread::sleep(100 * MS);
        let moved = Moved::new(&cluster, &tag, 1);
        thread::sleep(200 * MS);
        // A question on its own connections would tell it of the move.
        assert!(!waiting.is_finished());
        let (released, fence) = (Instant::now(), lease.fencing_token());
        lease.release().unwrap();
        let (granted, next) = waiting.join().unwrap();
        same_process.join().unwrap().unwrap();
        let took = granted.saturating_duration_since(released);
        assert!(took < SLACK, "{took:?}");
        assert!(next > fence);
        drop(moved);
    });
}

/// They are freed by one command on the new master.
#[test]
fn permits_and_their_waiters_move_with_their_slot() {
    const PERMITS: u32 = 8;
    let cluster = shared();
    let (holder, waiter) = (patient(&cluster), patient(&cluster));
    let name = format!("permits{{{}}}", cluster.tag(0, "permits").unwrap());
    let all = |locks: &Locks| locks.semaphore(&name, PERMITS);
    let held: Vec<_> = (0..PERMITS).map(|_| all(&holder).acquire(LONG)).collect();
    thread::scope(|scope| {
        let waiting: Vec<_> = (0..PERMITS)
            .map(|_| scope.spawn(|| all(&waiter).acquire(LONG).map(|it| (it, Instant::now()))))
            .collect();
        let all_wait = || all(&waiter).inspect().unwrap().waiting_here() == waiting.len();
        assert!(comes_true(all_wait));
        let moved = Moved::new(&cluster, &name, 0);
        assert!(comes_true(all_wait));
        let mut master = cluster.nodes[moved.to].connection().unwrap();
        let freed = Instant::now();
        let () = master.del(format!("lock:{name}")).unwrap();
        let granted = waiting.into_iter().map(|it| it.join().unwrap().unwrap());
        let granted: Vec<_> = granted.collect();
        // A head that was not told asks a second later.
        let last = granted.iter().map(|(_, moment)| *moment - freed).max();
        assert!(last.unwrap() < Duration::from_secs(1) + SLACK, "{last:?}");
        let count: u32 = master.zcard(format!("lock:{name}")).unwrap();
        assert_eq!(count, PERMITS);
        drop((granted, moved));
    });
    drop(held);
}

#[test]
fn the_next_renewal_reports_a_loss_on_another_shard() {
    let cluster = shared();
    let locks = patient(&cluster).with(Options::new().lease(12_000 * MS));
    let tag = cluster.tag(2, "taken").unwrap();
    let lease = mutex(&locks, &tag).acquire(LONG).unwrap();
    let moved = Moved::new(&cluster, &tag, 2);
    assert!(comes_true(|| lease.verify().is_ok()));
    let mut master = cluster.nodes[moved.to].connection().unwrap();
    let _: () = master.del(key(&tag)).unwrap();
    let deleted = Instant::now();
    assert!(lease.lost().wait_for(LONG));
    let told = deleted.elapsed();
    assert!(told < 6_000 * MS, "{told:?}");
    let released = lease.release();
    let is_told = matches!(
        &released,
        Err(Error::Lost {
            reason: Some(LostReason::TakenAway),
            ..
        })
    );
    assert!(is_told, "{released:?}");
}

/// The waiting thread is notified by the key's new node, and tells the keeper of the lease.
#[test]
fn a_loss_on_another_shard_is_reported_at_once_if_the_process_waits_there() {
    // On a busy machine the key is deleted before the node notifies of its changes.
    in_time(5 * SECOND, || {
        let cluster = shared();
        // The next renewal, which would also find out, is due in ten seconds.
        let locks = patient(&cluster).with(Options::new().lease(30 * SECOND));
        let tag = cluster.tag(2, "told").unwrap();
        let lease = mutex(&locks, &tag).acquire(LONG).unwrap();
        // From before the move, because the watchdog may be quick.
        let mut monitor = Monitor::start(&cluster.nodes[0]).unwrap();
        let moved = Moved::new(&cluster, &tag, 2);
        assert_eq!(moved.to, 0);
        // The waiting thread asks on the connection with tracking, and gets the lock's remaining
        // time. The watchdog reads the key on its new node after a move, and finds nothing.
        let script = |command: &String| command.starts_with("EVAL") && command.contains(&key(&tag));
        let by_the_waiter = |command: &String| script(command) && command.ends_with(" 1");
        let token = lease.token().to_string();
        let by_the_watchdog = |command: &String| script(command) && command.contains(&token);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| mutex(&locks, &tag).acquire(LONG).map(drop));
            let mut seen = Vec::new();
            let mut is_seen = |by: &dyn Fn(&String) -> bool| {
                seen.extend(monitor.commands().unwrap());
                seen.iter().any(by)
            };
            assert!(comes_true(|| is_seen(&by_the_waiter)));
            // If it reads the key only later, it finds the loss by itself, which proves nothing.
            comes_true_within(2 * SECOND, || is_seen(&by_the_watchdog));
            assert!(lease.verify().is_ok());
            let mut master = cluster.nodes[moved.to].connection().unwrap();
            let _: () = master.del(key(&tag)).unwrap();
            let deleted = Instant::now();
            assert!(lease.lost().wait_for(LONG));
            let told = deleted.elapsed();
            waiting.join().unwrap().unwrap();
            told
        })
    });
}

/// The node serves only keys that exist: a script must not use a key again that it has emptied.
#[test]
fn in_an_open_slot_every_kind_is_renewed_and_released_and_an_ended_permit_is_taken() {
    let cluster = shared();
    let locks = patient(&cluster);
    let tag = cluster.tag(0, "open-used").unwrap();
    let slot = cluster.slot_of(&tag).unwrap();
    let mut source = cluster.nodes[0].connection().unwrap();
    let leases = kinds(&locks, &tag).map(|lock| lock.acquire(LONG).unwrap());
    // Its key outlives an ended permit, if only for a millisecond.
    let permits = locks.semaphore(&format!("ended{{{tag}}}"), 1);
    let [key, companion] = ["", ":lease"].map(|end| format!("lock:ended{{{tag}}}{end}"));
    redis::pipe()
        .zadd(&key, "ended", millis(&mut source) - 5_000)
        .hset_multiple(&companion, &[("fence", "0"), ("p:ended", "0 1 somebody")])
        .pexpire(&key, 60_000)
        .pexpire(&companion, 60_000)
        .exec(&mut source)
        .unwrap();
    // The article's hash, in which all holds are too old.
    let one_hash = format!("lock:one-hash{{{tag}}}");
    let fields = [("read", "1"), ("read:", "1"), ("write", "1")];
    let () = source.hset_multiple(&one_hash, &fields).unwrap();
    // A hold of the notes' scripts, beside the companion of an earlier one of ours.
    let owner = Owner::new("the notes").unwrap();
    let reentrant = locks.reentrant(&format!("notes{{{tag}}}"));
    let reentrant = reentrant.with(Options::new().owner(owner.clone()));
    reentrant.acquire(LONG).unwrap().release().unwrap();
    let notes = format!("lock:notes{{{tag}}}");
    let _: bool = source.hset(&notes, owner.as_str(), 1).unwrap();

    let mut resharding = Resharding::new(&cluster, 0, 1).unwrap();
    resharding.open(&[slot]).unwrap();
    permits.acquire(LONG).unwrap().release().unwrap();
    reentrant.acquire(LONG).unwrap().release().unwrap();
    for lease in leases {
        lease.verify().unwrap();
        lease.renew(2 * LONG).unwrap();
        lease.release().unwrap();
    }
    let (token, lengths) = (Token::random(), Lifetimes::default());
    assert!(one_hash::acquire_read(&mut source, &one_hash, &token, MS, &lengths).unwrap());
    let () = source.hset(&one_hash, "read", 1).unwrap();
    assert!(one_hash::release_read(&mut source, &one_hash, &token, &lengths).unwrap());
    resharding.call_off(&[slot]).unwrap();
    // Those with a fencing token have left their companions.
    let mut stay = ["mutex", "notes", "reentrant", "write"]
        .map(|name| format!("lock:{name}{{{tag}}}:lease"))
        .to_vec();
    stay.push(notes);
    let mut left: Vec<String> = source.keys(format!("lock:*{{{tag}}}*")).unwrap();
    left.sort_unstable();
    stay.sort_unstable();
    assert_eq!(left, stay);
    let () = source.del(left).unwrap();
}

/// The process that adopts knows only the slot's first node.
#[test]
fn what_has_moved_to_another_shard_is_adopted_and_renewed_there() {
    let cluster = shared();
    let options = Options::new().lease(3_000 * MS);
    let owner = options.owner(Owner::new("we").unwrap());
    let (ours, theirs) = (patient(&cluster), patient(&cluster));
    let (ours, theirs) = (ours.with(owner.clone()), theirs.with(owner));
    let tag = cluster.tag(0, "adopted").unwrap();
    let tokens = kinds(&ours, &tag).map(|lock| lock.acquire(LONG).unwrap().detach().0);
    let _ = theirs.lock(&format!("known{{{tag}}}")).inspect().unwrap();
    let _moved = Moved::new(&cluster, &tag, 0);
    let adopted = kinds(&theirs, &tag).into_iter().zip(&tokens);
    let adopted: Vec<_> = adopted
        .map(|(lock, token)| lock.adopt(token).unwrap())
        .collect();
    thread::sleep(3_500 * MS);
    for lease in adopted {
        lease.check().unwrap();
        lease.release().unwrap();
    }
}

/// Each holder dies while the slot is open: from then on the node refuses the lock's key, except
/// that of a writer, in which the next one has its intent.
#[test]
fn waiters_of_every_kind_wait_until_an_open_slot_closes() {
    let cluster = shared();
    let (dead, waiters) = (patient(&cluster), patient(&cluster));
    let owner = Options::new().owner(Owner::new("dead").unwrap());
    let dead = dead.with(owner.lease(800 * MS).renewal(false));
    let tag = cluster.tag(0, "open-awaited").unwrap();
    let slot = cluster.slot_of(&tag).unwrap();
    let mut resharding = Resharding::new(&cluster, 0, 1).unwrap();
    let mut holders = kinds(&dead, &tag);
    // A reader keeps no reader out.
    holders[2] = dead.write(holders[2].name());
    for lock in holders {
        let _ = lock.acquire(LONG).unwrap().detach();
    }
    resharding.open(&[slot]).unwrap();
    thread::scope(|scope| {
        let waiting = kinds(&waiters, &tag).map(|lock| {
            scope.spawn(move || {
                let granted = lock.acquire(LONG).map(drop);
                (lock.name().to_owned(), granted, Instant::now())
            })
        });
        thread::sleep(1_500 * MS);
        resharding.call_off(&[slot]).unwrap();
        let closed = Instant::now();
        for waiter in waiting {
            let (name, granted, at) = waiter.join().unwrap();
            granted.unwrap();
            assert!(at < closed + SLACK + SECOND, "{name}");
        }
    });
}

/// Moves all slots of a shard to the next one and back while two processes hold locks in them and
/// wait for others.
fn moves(rounds: usize) {
    let cluster = Cluster::start().unwrap();
    let (one, two) = (connect(&cluster), connect(&cluster));
    let name = |begins: &str, n: usize| cluster.tag(0, &format!("{begins}{n}")).unwrap();
    let short = Options::new().lease(3_000 * MS);
    let held: Vec<Lease> = (0..LEASES)
        .map(|n| {
            let locks = if n % 2 == 0 { &one } else { &two };
            let lock = locks.lock(&name("held", n)).with(short.clone());
            lock.acquire(LONG).unwrap()
        })
        .collect();
    let slots: Vec<_> = slots_of(0).collect();
    let names: Vec<_> = (0..WAITING / TOGETHER).map(|n| name("wanted", n)).collect();
    let histories: Vec<_> = names.iter().map(|_| History::default()).collect();
    let stop = AtomicBool::new(false);
    let (mut took, mut lowest) = (Vec::new(), Duration::MAX);
    thread::scope(|scope| {
        for (name, history) in names.iter().zip(&histories) {
            for n in 0..TOGETHER {
                let locks = if n % 2 == 0 { &one } else { &two };
                let lock = locks.lock(name).with(Options::new().lease(SECOND));
                let stop = &stop;
                scope.spawn(move || work(&lock, history, stop));
            }
        }
        let watching = scope.spawn(|| {
            let mut lowest = Duration::MAX;
            while !stop.load(Ordering::SeqCst) {
                let left = held.iter().map(Lease::remaining).min();
                lowest = lowest.min(left.unwrap());
                thread::sleep(2 * MS);
            }
            lowest
        });
        for _ in 0..rounds {
            for (from, to) in [(0, 1), (1, 0)] {
                let began = Instant::now();
                Resharding::new(&cluster, from, to)
                    .unwrap()
                    .run(&slots)
                    .unwrap();
                took.push(began.elapsed());
            }
        }
        stop.store(true, Ordering::SeqCst);
        lowest = watching.join().unwrap();
    });
    let holds: usize = histories.iter().map(|it| it.lock().unwrap().len()).sum();
    println!(
        "{} slots to and fro {rounds} times, {took:.1?}: {} leases held, {lowest:.1?} at least left of each, {holds} holds of {WAITING} threads",
        slots.len(),
        held.len(),
    );
    assert!(!lowest.is_zero(), "a lease was lost");
    assert!(holds > WAITING);
    for history in histories {
        assert_eq!(violations(history), 0, "two held a lock at once");
    }
    for lease in held {
        lease.verify().unwrap();
        lease.release().unwrap();
    }
    for name in &names {
        assert!(one.lock(name).acquire(LONG).is_ok());
    }
}

#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn moving_all_slots_back_and_forth_loses_no_lease_and_keeps_exclusion() {
    moves(1);
}

#[test]
#[ignore = "minutes: cargo test --release --test many_servers clusters::moving -- --ignored --nocapture --test-threads 1"]
fn many_moves_of_all_slots_of_a_shard() {
    moves(env::var("LEASEHOLD_MOVES").map_or(20, |number| number.parse().unwrap()));
}
