//! At most `limit` holders, and the book's keys.

use redis::Commands;

use super::{ALL, ONE, TIMEOUT, acquire, age, is_in, release, size};
use crate::common::{Proxy, Server, book_semaphore::Way, clock, monitor::Monitor, start, wait};
use leasehold::{Token, refresh_fair_semaphore};

#[test]
fn permits_match_the_limit_and_each_is_reusable() {
    let (_server, mut conn) = start();
    for way in ALL {
        let name = way.word();
        let asked = super::Asked {
            name,
            limit: 3,
            timeout: TIMEOUT,
        };
        let held: Vec<_> = (0..3)
            .map(|_| acquire(&mut conn, way, &asked).unwrap().unwrap())
            .collect();
        assert_eq!(acquire(&mut conn, way, &asked).unwrap(), None, "{name}");
        assert!(release(&mut conn, way, name, &held[1]).unwrap());
        assert!(!release(&mut conn, way, name, &held[1]).unwrap(), "twice");
        let fourth = acquire(&mut conn, way, &asked).unwrap().unwrap();
        assert_eq!(acquire(&mut conn, way, &asked).unwrap(), None);
        for token in [&held[0], &held[2], &fourth] {
            assert!(release(&mut conn, way, name, token).unwrap());
        }
    }
    assert_eq!(size(&mut conn), 0, "no key is left");
}

#[test]
fn a_permit_older_than_the_timeout_is_free() {
    let (_server, mut conn) = start();
    for way in ALL {
        let asked = super::Asked {
            name: way.word(),
            ..ONE
        };
        let old = acquire(&mut conn, way, &asked).unwrap().unwrap();
        age(&mut conn, asked.name, &old.to_string(), 9);
        assert_eq!(acquire(&mut conn, way, &asked).unwrap(), None);
        age(&mut conn, asked.name, &old.to_string(), 2);
        let new = acquire(&mut conn, way, &asked).unwrap().unwrap();
        assert!(!release(&mut conn, way, asked.name, &old).unwrap());
        assert!(release(&mut conn, way, asked.name, &new).unwrap());
    }
}

#[test]
fn the_keys_and_their_values_are_the_books() {
    let (_server, mut conn) = start();
    for way in ALL {
        let name = way.word();
        let before = clock::millis(&mut conn);
        let asked = super::Asked { name, ..ONE };
        let token = acquire(&mut conn, way, &asked).unwrap().unwrap();
        let after = clock::millis(&mut conn);

        let member = token.to_string();
        assert_eq!(conn.zrange(name, 0, -1), Ok(vec![member.clone()]));
        let seconds = |millis: i64| format!("{}.{:03}", millis / 1000, millis % 1000);
        let in_time = conn.zcount(name, seconds(before), seconds(after + 1));
        assert_eq!(in_time, Ok(1), "by the server's clock");
        let owners: Vec<(String, f64)> = conn
            .zrange_withscores(format!("{name}:owner"), 0, -1)
            .unwrap();
        let expected = if way == Way::Basic {
            vec![]
        } else {
            vec![(member, 0.0)]
        };
        assert_eq!(owners, expected);
        assert_eq!(conn.exists(format!("{name}:counter")), Ok(false));
        assert_eq!(conn.exists(format!("lock:{name}")), Ok(false));
    }
}

/// The server returns its time as two numbers; the second has no leading zeros.
#[test]
fn the_time_is_right_at_the_beginning_of_a_second() {
    let (_server, mut conn) = start();
    assert!(wait::comes_true(|| clock::millis(&mut conn) % 1000 < 20));
    let before = clock::millis(&mut conn);
    let token = acquire(&mut conn, Way::Basic, &ONE).unwrap().unwrap();
    let latest = format!("{}.099", before / 1000);
    let in_time = conn.zcount("a", before / 1000, latest);
    let is_slow = clock::millis(&mut conn) % 1000 >= 99;
    assert!(in_time == Ok(1) || is_slow);
    assert!(release(&mut conn, Way::Basic, "a", &token).unwrap());
}

#[test]
fn a_refresh_restarts_the_timeout_and_never_shortens_it() {
    let (_server, mut conn) = start();
    let token = acquire(&mut conn, Way::Fair, &ONE).unwrap().unwrap();
    let text = token.to_string();
    age(&mut conn, "a", &text, 9);
    assert!(refresh_fair_semaphore(&mut conn, "a", &token).unwrap());
    age(&mut conn, "a", &text, 9);
    assert_eq!(acquire(&mut conn, Way::Fair, &ONE).unwrap(), None);

    age(&mut conn, "a", &text, -1_000);
    let ahead: f64 = conn.zscore("a", &text).unwrap();
    assert!(refresh_fair_semaphore(&mut conn, "a", &token).unwrap());
    assert_eq!(conn.zscore("a", &text), Ok(ahead));
}

#[test]
fn only_the_holder_refreshes_and_releases() {
    let (_server, mut conn) = start();
    let token = acquire(&mut conn, Way::Fair, &ONE).unwrap().unwrap();
    let stranger = Token::random();
    assert!(!refresh_fair_semaphore(&mut conn, "a", &stranger).unwrap());
    assert!(!release(&mut conn, Way::Fair, "a", &stranger).unwrap());
    assert!(is_in(&mut conn, "a", &token.to_string()));
    assert!(release(&mut conn, Way::Fair, "a", &token).unwrap());
}

#[test]
fn each_call_is_one_round_trip_without_a_client_time() {
    let server = Server::start().unwrap();
    let proxy = Proxy::in_front_of(&server).unwrap();
    let mut conn = proxy.connection().unwrap();
    for way in ALL {
        for _ in 0..2 {
            let asked = super::Asked {
                name: way.word(),
                ..ONE
            };
            // The server lacks the script only the first time.
            let mut monitor = Monitor::start(&server).unwrap();
            let (token, traffic) = proxy.traffic_of(|| acquire(&mut conn, way, &asked));
            let token = token.unwrap().unwrap();
            let sent = &monitor.commands().unwrap()[0];
            assert!(
                sent.ends_with(&format!("{token} 1 10000")) || way == Way::WithLock,
                "{sent}"
            );
            assert!(traffic.round_trips <= 2, "{traffic:?}");
            assert!(release(&mut conn, way, asked.name, &token).unwrap());
        }
        let asked = super::Asked {
            name: way.word(),
            ..ONE
        };
        let (token, traffic) = proxy.traffic_of(|| acquire(&mut conn, way, &asked));
        assert_eq!(traffic.commands, ["EVALSHA"]);
        let token = token.unwrap().unwrap();
        let (_, traffic) = proxy.traffic_of(|| release(&mut conn, way, asked.name, &token));
        assert_eq!(traffic.commands.len(), 1);
    }
}
