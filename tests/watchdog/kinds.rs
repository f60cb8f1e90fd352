//! One watchdog keeps locks of every kind, each until it is taken away.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::common::{Server, hold::comes_true};
use leasehold::{
    LostReason, Owner, Pool, RenewalState, Token, Watchdog, acquire_lock_with_timeout,
    recipes::{mutex, read_write, reentrant, simple},
};
use redis::Connection;

const LEASE: Duration = Duration::from_millis(600);
const NAMES: [&str; 5] = ["simple", "mutex", "reentrant", "read", "write"];

#[test]
fn every_kind_is_kept_and_its_loss_told() {
    let server = Server::start().unwrap();
    let mut conn = server.connection().unwrap();
    let watchdog = Watchdog::start(&Pool::connect(&server.url()).unwrap()).unwrap();
    let (token, owner) = (Token::random(), Owner::current_thread());
    let book = take_all(&mut conn, &token, &owner);

    let renewals = [
        watchdog.keep(&simple::Hold::new("simple", &book).unwrap(), LEASE),
        watchdog.keep(&mutex::Hold::new("mutex", &token).unwrap(), LEASE),
        watchdog.keep(
            &reentrant::Hold::new("reentrant", &owner, &token).unwrap(),
            LEASE,
        ),
        watchdog.keep(&read_write::ReadHold::new("read", &token).unwrap(), LEASE),
        watchdog.keep(&read_write::WriteHold::new("write", &token).unwrap(), LEASE),
    ]
    .map(Result::unwrap);

    let kept_until = Instant::now() + 2 * LEASE;
    while Instant::now() < kept_until {
        for (renewal, name) in renewals.iter().zip(NAMES) {
            assert_eq!(renewal.state(), RenewalState::Held, "{name}");
        }
        thread::sleep(LEASE / 10);
    }
    for (renewal, name) in renewals.iter().zip(NAMES) {
        redis::cmd("DEL")
            .arg(format!("lock:{name}"))
            .exec(&mut conn)
            .unwrap();
        assert!(comes_true(|| renewal.lost().is_lost()), "{name}");
        assert_eq!(
            renewal.lost().reason(),
            Some(LostReason::TakenAway),
            "{name}"
        );
    }
}

fn take_all(conn: &mut Connection, token: &Token, owner: &Owner) -> Token {
    let wait = Duration::ZERO;
    let end = mutex::End::After(LEASE);
    assert!(
        mutex::try_acquire(conn, "mutex", token, end)
            .unwrap()
            .is_some()
    );
    assert!(
        reentrant::try_acquire(conn, "reentrant", owner, token, LEASE)
            .unwrap()
            .is_some()
    );
    assert!(read_write::try_acquire_read(conn, "read", token, LEASE).unwrap());
    assert!(
        read_write::try_acquire_write(conn, "write", token, LEASE)
            .unwrap()
            .is_some()
    );
    acquire_lock_with_timeout(conn, "simple", wait, LEASE)
        .unwrap()
        .unwrap()
}
