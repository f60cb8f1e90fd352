//! Invalid arguments are refused before anything is sent.

use std::time::Duration;

use super::{ALL, Asked, ONE, acquire, release};
use crate::{
    bad_input::{dead_connection, is_invalid},
    common::{Server, book_semaphore::Way, start},
};
use leasehold::{Token, refresh_fair_semaphore};

#[test]
fn invalid_limits_and_timeouts() {
    let server = Server::start().unwrap();
    let mut dead = dead_connection(&server);
    let (shortest, day) = (Duration::from_millis(1), Duration::from_hours(24));
    let nanosecond = Duration::from_nanos(1);
    for way in ALL {
        for limit in [0, 10_001, u32::MAX] {
            let refused = acquire(&mut dead, way, &Asked { limit, ..ONE });
            assert!(is_invalid(&refused, "limit"), "{refused:?}");
        }
        for timeout in [
            Duration::ZERO,
            shortest.saturating_sub(nanosecond),
            day + nanosecond,
            Duration::MAX,
        ] {
            let refused = acquire(&mut dead, way, &Asked { timeout, ..ONE });
            assert!(is_invalid(&refused, "timeout"), "{refused:?}");
        }
    }
    let (_server, mut conn) = start();
    for way in ALL {
        for (limit, timeout) in [(1, day), (10_000, day), (10_000, shortest)] {
            let name = way.word();
            let taken = acquire(
                &mut conn,
                way,
                &Asked {
                    name,
                    limit,
                    timeout,
                },
            );
            assert!(taken.unwrap().is_some());
        }
    }
}

#[test]
fn invalid_names() {
    let server = Server::start().unwrap();
    let mut dead = dead_connection(&server);
    let token = Token::random();
    for name in ["", &"x".repeat(513)] {
        for way in ALL {
            assert!(is_invalid(
                &acquire(&mut dead, way, &Asked { name, ..ONE }),
                "semname"
            ));
            assert!(is_invalid(
                &release(&mut dead, way, name, &token),
                "semname"
            ));
        }
        let refused = refresh_fair_semaphore(&mut dead, name, &token);
        assert!(is_invalid(&refused, "semname"));
    }
    for name in ["a:lease", "a{}b", "{a}{b}"] {
        let asked = Asked { name, ..ONE };
        let refused = acquire(&mut dead, Way::WithLock, &asked);
        assert!(is_invalid(&refused, "lock name"), "{refused:?}");
    }
    // The others use no lock.
    let (_server, mut conn) = start();
    for name in ["a:lease", "a{}b", "a b\r\n\0", "名前", "semaphore:remote"] {
        for way in [Way::Basic, Way::Fair] {
            let name = [name, way.word()].concat();
            let asked = Asked { name: &name, ..ONE };
            let token = acquire(&mut conn, way, &asked).unwrap().unwrap();
            assert!(release(&mut conn, way, &name, &token).unwrap());
        }
    }
}
