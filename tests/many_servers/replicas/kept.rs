//! Renewals and run marks that count only once replicas have them.

use super::*;

#[test]
fn replicas_confirm_a_renewal_that_does_not_change_the_expiry() {
    let group = Replicated::start(1);
    let locks = group.locks(1).with(Options::new().lease(9_000 * MS));
    let leases = every_kind(&locks).map(|lock| lock.acquire(LONG).unwrap());
    group.replicas[0].freeze().unwrap();
    for lease in &leases {
        // The watchdog renewed it on the master alone, so it ends later there.
        assert!(comes_true(|| lease.state() == RenewalState::Unknown));
        let answer = lease.renew(lease.remaining() + 500 * MS);
        assert!(is_too_few(&answer), "{}: {answer:?}", lease.name());
    }
    group.replicas[0].thaw().unwrap();
}

/// One of its locks is waited for by no replica.
#[test]
fn a_renewal_of_a_set_counts_for_each_lock_that_enough_replicas_have() {
    let group = Replicated::start(1);
    let locks = group.locks(1).with(Options::new().lease(9_000 * MS));
    let alone = locks.lock("alone").with(Options::new().replicas(0, MS));
    let set = LockSet::of(every_kind(&locks).into_iter().chain([alone]));
    let leases = set.acquire(LONG).unwrap();
    leases.renew(20_000 * MS).unwrap();
    let last = |lease: &Lease, before: Duration| lease.remaining() > before;
    assert!(leases.iter().all(|lease| last(lease, 9_000 * MS)));
    group.replicas[0].freeze().unwrap();
    let answer = leases.renew(60_000 * MS);
    assert!(is_too_few(&answer), "{answer:?}");
    for lease in &leases {
        let is_longer = last(lease, 20_000 * MS);
        assert_eq!(is_longer, lease.name() == "alone", "{}", lease.name());
    }
    group.replicas[0].thaw().unwrap();
}

/// They take longer than a renewal without replicas may.
#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn a_lease_is_kept_by_replicas_that_take_nearly_all_of_their_time() {
    let group = Replicated::start(1);
    let proxy = Proxy::in_front_of(&group.master).unwrap();
    let slow = Options::new().lease(4_000 * MS).replicas(1, 1_800 * MS);
    let locks = Locks::connect(&proxy.url()).unwrap().with(slow);
    let lease = locks.lock("a").acquire(LONG).unwrap();
    proxy.at("WAIT").run_each_time(|| thread::sleep(1_600 * MS));
    thread::sleep(6_000 * MS);
    assert!(lease.is_held(), "{:?}", lease.failure());
}

/// The next thread does not get a lock that fewer replicas have than it wants.
#[test]
fn a_lock_is_handed_over_to_a_thread_that_wants_the_same_replicas() {
    let group = Replicated::start(1);
    let locks = group.locks(0).with(Options::new().hand_over(9, LONG));
    for (ours, theirs, is_handed_over) in [
        (1, 1, Some(true)),
        (0, 1, Some(false)),
        (1, 0, Some(false)),
        (1, 2, None),
    ] {
        let name = format!("{ours} and {theirs}");
        let wanting = |count| {
            let options = Options::new().replicas(count, 100 * MS);
            locks.lock(&name).with(options)
        };
        // Without a fencing token before, the first hold is not handed over.
        drop(wanting(0).acquire(LONG).unwrap());
        let first = wanting(ours).acquire(LONG).unwrap();
        let number = |lease: &Lease| lease.fencing_token().unwrap().get();
        let handed = number(&first) + 1;
        let next = wanting(theirs);
        let got = thread::scope(|scope| {
            let waiter = scope.spawn(|| next.acquire(2_000 * MS));
            let is_waiting = || next.inspect().unwrap().waiting_here() == 1;
            assert!(comes_true(is_waiting));
            first.release().unwrap();
            waiter.join().unwrap()
        });
        let Some(is_handed_over) = is_handed_over else {
            let too_few = matches!(
                got,
                Err(Error::TooFewReplicas {
                    wanted: 2,
                    had: 1,
                    ..
                })
            );
            assert!(too_few, "{name}: {got:?}");
            continue;
        };
        assert_eq!(number(&got.unwrap()) == handed, is_handed_over, "{name}");
    }
}

#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn a_run_is_done_once_enough_replicas_have_the_mark() {
    const MARK: &str = "{lock:a}:lease:ran";
    let group = Replicated::start(1);
    let mut conn = group.conn();
    let pool = Pool::connect(&group.master.url()).unwrap();
    // Two connections: a retry uses the other one.
    drop([pool.get().unwrap(), pool.get().unwrap()]);
    let options = Options::new().lease(4_000 * MS).replicas(1, 100 * MS);
    let lock = Locks::new(&pool).unwrap().lock("a").with(options);
    let marked = |work: &dyn Fn()| {
        let ran = lock.run_once(LONG, LONG, |_| {
            work();
            Ok::<_, ()>(())
        });
        let Ok(Once::Ran(ran)) = ran else {
            panic!("{ran:?}");
        };
        ran.released
    };
    let replica = &group.replicas[0];
    let has_mark = || -> bool { replica.connection().unwrap().exists(MARK).unwrap() };

    marked(&|| {}).unwrap();
    assert!(has_mark() && !exists(&mut conn, "a"));
    let () = conn.del(MARK).unwrap();

    let answer = marked(&|| replica.freeze().unwrap());
    assert!(matches!(answer, Err(Error::Unknown { .. })), "{answer:?}");
    assert!(!exists(&mut conn, "a"));
    let () = conn.del(MARK).unwrap();
    replica.thaw().unwrap();
    group.wait_until_in_step();

    thread::scope(|scope| {
        let marked = marked(&|| {
            replica.freeze().unwrap();
            scope.spawn(|| {
                thread::sleep(300 * MS);
                replica.thaw().unwrap();
            });
        });
        marked.unwrap();
    });
    assert!(has_mark());
}
