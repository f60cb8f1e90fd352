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
