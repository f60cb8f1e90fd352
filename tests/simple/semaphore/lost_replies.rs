//! Lost replies, and servers that refuse.

use redis::Commands;

use super::{ALL, Asked, ONE, acquire, release, size};
use crate::common::{Proxy, Server, book_semaphore::Way, clock, start, tell};
use leasehold::{Error, refresh_fair_semaphore};

#[test]
fn an_acquire_without_a_reply_returns_the_token_that_may_hold_a_permit() {
    let server = Server::start().unwrap();
    let proxy = Proxy::in_front_of(&server).unwrap();
    let mut direct = server.connection().unwrap();
    for way in ALL {
        let name = way.word();
        let asked = Asked { name, ..ONE };
        // The server knows the script.
        let known = acquire(&mut direct, way, &asked).unwrap().unwrap();
        assert!(release(&mut direct, way, name, &known).unwrap());
        for happened in [false, true] {
            let mut conn = proxy.connection().unwrap();
            let point = proxy.at("EVALSHA");
            if happened {
                point.cut_after();
            } else {
                point.cut_before();
            }
            let error = acquire(&mut conn, way, &asked).unwrap_err();
            assert!(matches!(error, Error::Unknown { .. }), "{error:?}");
            assert!(proxy.happened());
            let token = error.token().unwrap();
            assert_eq!(release(&mut direct, way, name, token).unwrap(), happened);
            assert_eq!(direct.zcard::<_, i64>(name).unwrap(), 0);
        }
    }
}

/// A call that waits for the lock is sent again if its reply is late.
#[test]
fn an_attempt_sent_again_finds_its_own_permit() {
    let (_server, mut conn) = start();
    let files = ["look.lua", "owners.lua", "acquire_fair_semaphore.lua"];
    let parts = files.map(|file| format!("book/semaphore/{file}"));
    let script = clock::told_the_time(&parts.each_ref().map(String::as_str), "real");
    let mut send = |token: &str| -> redis::RedisResult<i64> {
        let mut eval = redis::cmd("EVAL");
        eval.arg(&script).arg(3).arg(&["a", "a:owner", "a:counter"]);
        eval.arg(&[token, "1", "10000"]).query(&mut conn)
    };
    for (token, granted) in [("ours", 1), ("ours", 1), ("another", 0)] {
        assert_eq!(send(token), Ok(granted), "{token}");
    }
    assert_eq!(conn.zcard("a"), Ok(1));
}

#[test]
fn releases_and_refreshes_without_a_reply_may_be_sent_again() {
    let server = Server::start().unwrap();
    let proxy = Proxy::in_front_of(&server).unwrap();
    let mut direct = server.connection().unwrap();
    for way in ALL {
        let name = way.word();
        let asked = Asked { name, ..ONE };
        for _ in 0..2 {
            // The first call caches the scripts.
            let token = acquire(&mut direct, way, &asked).unwrap().unwrap();
            if way != Way::Basic {
                assert!(refresh_fair_semaphore(&mut direct, name, &token).unwrap());
            }
            assert!(release(&mut direct, way, name, &token).unwrap());
        }
        let token = acquire(&mut direct, way, &asked).unwrap().unwrap();
        if way != Way::Basic {
            let mut conn = proxy.connection().unwrap();
            proxy.at("EVALSHA").cut_after();
            let unknown = refresh_fair_semaphore(&mut conn, name, &token);
            assert!(matches!(unknown, Err(Error::Unknown { .. })), "{unknown:?}");
            assert!(refresh_fair_semaphore(&mut direct, name, &token).unwrap());
        }
        let mut conn = proxy.connection().unwrap();
        let command = if way == Way::Basic { "ZREM" } else { "EVALSHA" };
        proxy.at(command).cut_after();
        let unknown = release(&mut conn, way, name, &token);
        assert!(matches!(unknown, Err(Error::Unknown { .. })), "{unknown:?}");
        assert!(proxy.happened());
        assert!(!release(&mut direct, way, name, &token).unwrap());
        assert!(acquire(&mut direct, way, &asked).unwrap().is_some());
    }
}

#[test]
fn a_user_without_permission_leaves_no_permit() {
    let server = Server::start().unwrap();
    let mut admin = server.connection().unwrap();
    for way in ALL {
        for missing in [
            "zadd",
            "pexpire",
            "pttl",
            "zremrangebyscore",
            "zinterstore",
            "zscore",
        ] {
            if way == Way::Basic && ["zinterstore", "zscore"].contains(&missing) {
                continue;
            }
            let user = format!("{missing}-{}", way.word());
            let rules = format!("on nopass ~* +@all -{missing}");
            tell(&mut admin, &format!("ACL SETUSER {user} {rules}"));
            let mut conn = server.connection().unwrap();
            tell(&mut conn, &format!("AUTH {user} no-password"));
            let refused = acquire(&mut conn, way, &ONE);
            assert!(
                matches!(refused, Err(Error::Redis { .. })),
                "{missing}: {refused:?}"
            );
            assert_eq!(size(&mut admin), 0, "{missing}");
        }
    }
}
