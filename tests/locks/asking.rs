//! Questions about a lease change nothing on the server, whatever has happened to the key's expiry.

use std::{thread, time::Duration};

use leasehold::{Lease, Locks, Options, Owner, RenewalState};
use redis::{Commands, Connection};

use crate::common::{Server, State, tell, wait::unless_halted};

const MS: Duration = Duration::from_millis(1);
const LONG: Duration = Duration::from_secs(20);

/// Changes to the key's expiry by another client.
const ENDS: [fn(&mut Connection, &str); 3] = [
    |conn, key| assert!(conn.persist::<_, bool>(key).unwrap()),
    |conn, key| assert!(conn.pexpire::<_, bool>(key, 600_000).unwrap()),
    |conn, key| assert!(conn.pexpire::<_, bool>(key, 9_000).unwrap()),
];

/// The name is short: a hash with longer values may be dumped in another order.
fn connect(server: &Server) -> Locks {
    let owner = Owner::new("short").unwrap();
    let locks = Locks::connect(&server.url()).unwrap();
    locks.with(Options::new().owner(owner))
}

fn in_all_kinds(locks: &Locks, run: impl Fn(&Lease, &str)) {
    let locks = [
        locks.lock("mutex"),
        locks.reentrant("reentrant"),
        locks.read("read"),
        locks.write("write"),
    ];
    for lock in locks {
        let lease = lock.acquire(LONG).unwrap();
        run(&lease, &format!("lock:{}", lock.name()));
        lease.release().unwrap();
    }
}

#[test]
fn verify_changes_nothing_whatever_the_expiry() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let mut conn = server.connection().unwrap();
        // Otherwise the watchdog asks too.
        tell(&mut conn, "ACL SETUSER default -client +client|id");
        let locks = connect(&server);
        for set_end in ENDS {
            in_all_kinds(&locks, |lease, key| {
                let mut conn = server.connection().unwrap();
                set_end(&mut conn, key);
                let before = State::of(&mut conn).unwrap();
                lease.verify().unwrap();
                thread::sleep(5 * MS);
                lease.verify().unwrap();
                assert_eq!(State::of(&mut conn).unwrap(), before, "{key}");
            });
        }
    });
}

#[test]
fn the_watchdogs_check_changes_nothing_whatever_the_expiry() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let locks = connect(&server);
        for set_end in ENDS {
            in_all_kinds(&locks, |lease, key| {
                let mut conn = server.connection().unwrap();
                thread::sleep(150 * MS); // read by the watchdog, and tracked from now on
                set_end(&mut conn, key);
                let before = State::of(&mut conn).unwrap();
                thread::sleep(60 * MS);
                assert_eq!(State::of(&mut conn).unwrap(), before, "{key}");
                assert_eq!(lease.state(), RenewalState::Held, "{key}");
            });
        }
    });
}

#[test]
fn a_renewal_leaves_a_key_without_expiry_unchanged() {
    let server = Server::start().unwrap();
    let locks = connect(&server);
    in_all_kinds(&locks, |lease, key| {
        let mut conn = server.connection().unwrap();
        let _: bool = conn.persist(key).unwrap();
        lease.renew(LONG).unwrap();
        assert_eq!(conn.pttl::<_, i64>(key).unwrap(), -1, "{key}");
    });
}
