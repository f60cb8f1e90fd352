//! Error messages and the advice in them.

use anyhow::Context;
use leasehold::{Error, Options, Owner, Result};
use redis::{Commands, ErrorKind, RedisError};

use crate::common::{
    LONG, MS, Server,
    hold::every_kind,
    wait::{at_once, unless_halted},
};

#[test]
fn contended_names_the_wait_the_holder_and_the_rest_of_its_lease() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let options = Options::new()
            .lease(2 * LONG)
            .owner(Owner::new("the night job").unwrap());
        let (here, there) = (crate::connect(&server.url()), crate::connect(&server.url()));
        let here = here.with(options);
        let lease = here.lock("a").acquire(LONG).unwrap();
        for (locks, holder) in [(&here, Some("the night job")), (&there, None)] {
            let error = locks.lock("a").acquire(600 * MS).unwrap_err();
            assert!(error.is_contended() && error.did_not_happen());
            let text = error.to_string();
            let Error::Contended {
                waited: Some(waited),
                holder: by,
                remaining: Some(remaining),
                ..
            } = error
            else {
                panic!("{error:?}");
            };
            assert!(waited >= 600 * MS && waited < LONG);
            assert!(remaining > LONG && remaining <= 2 * LONG, "{remaining:?}");
            assert_eq!(by.as_deref(), holder);
            assert_eq!(
                text.contains("`the night job` of this process"),
                holder.is_some()
            );
            assert!(text.contains("the lease ends in "), "{text}");
        }
        lease.release().unwrap();
    });
}

#[test]
fn contended_names_the_present_holder_and_not_one_that_lost_the_lock() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let locks = crate::connect(&server.url());
        let held_by = |owner| {
            let options = Options::new().owner(Owner::new(owner).unwrap());
            locks.lock("a").with(options).acquire(LONG).unwrap()
        };
        let lost = held_by("the first job");
        let () = server.connection().unwrap().del("lock:a").unwrap();
        assert!(lost.lost().wait_for(LONG));
        let held = held_by("the second job");
        let Error::Contended { holder, .. } = locks.lock("a").acquire(MS).unwrap_err() else {
            panic!("somebody else has it");
        };
        assert_eq!(holder.as_deref(), Some("the second job"));
        held.release().unwrap();
    });
}

#[test]
fn a_forbidden_companion_key_is_reported_with_the_key_names() {
    let server = Server::start().unwrap();
    let mut admin = server.connection().unwrap();
    let rules = [
        "SETUSER", "worker", "on", ">s3cret", "+@all", "~lock:*", "&*",
    ];
    redis::cmd("ACL").arg(&rules).exec(&mut admin).unwrap();
    let locks = crate::connect(&server.url().replace("//", "//worker:s3cret@"));
    for (lock, keys) in [
        (locks.lock("a"), &["`lock:a`", "`{lock:a}:lease`"][..]),
        (locks.reentrant("b"), &["`lock:b`", "`{lock:b}:lease`"]),
    ] {
        let error = lock.acquire(MS).unwrap_err();
        let text = format!("{:#}", anyhow::Error::from(error));
        let all = keys.iter().all(|key| text.contains(key));
        assert!(
            all && text.contains("(ACL)") && !text.contains("s3cret"),
            "{text}"
        );
    }
    let plain = locks.clone().with(Options::new().fencing(false));
    plain.lock("c").acquire(MS).unwrap().release().unwrap();
}

#[test]
fn a_lock_of_another_kind_is_reported_with_its_kind() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let mut conn = server.connection().unwrap();
        let locks = crate::connect(&server.url());
        let held = every_kind(&locks).map(|lock| lock.acquire(LONG).unwrap());
        let () = conn.rpush("lock:list", 1).unwrap();
        for (wanted, there) in [
            (locks.lock("reentrant"), "a reentrant lock"),
            (locks.lock("read"), "a read-write lock"),
            (locks.lock("write"), "a read-write lock"),
            (
                locks.reentrant("mutex"),
                "a mutex, or another lock by `SET NX`",
            ),
            (locks.reentrant("read"), "a read-write lock"),
            (locks.write("mutex"), "a mutex, or another lock by `SET NX`"),
            (locks.read("reentrant"), "a reentrant lock"),
            (locks.lock("list"), "something that is not a lock"),
        ] {
            for error in [
                wanted.acquire(LONG).unwrap_err(),
                wanted.try_acquire().unwrap_err(),
            ] {
                assert!(matches!(error, Error::WrongKind { .. }), "{error:?}");
                let (text, name) = (error.to_string(), wanted.name());
                assert!(text.contains(&format!("found {there} (")), "{text}");
                assert!(text.contains(&format!("`lock:{name}`")), "{text}");
            }
        }
        drop(held);
    });
}

#[test]
fn every_error_says_whether_it_may_have_happened() {
    let server = Server::start().unwrap();
    let locks = crate::connect(&server.url());
    let mut conn = server.connection().unwrap();
    let () = conn.set("text", "no number").unwrap();
    let lease = locks.lock("a").acquire(LONG).unwrap();
    let commit = |build: fn(&mut redis::Pipeline)| lease.commit(build).unwrap_err();
    let reply: Result<(Vec<String>,)> = lease.commit_returning(|pipe| _ = pipe.incr("count", 1));
    let lost = locks.lock("b").acquire(LONG).unwrap();
    let () = conn.del("lock:b").unwrap();
    assert!(lost.verify().is_err());
    let silence = RedisError::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe)).into();
    for (error, may_have) in [
        (
            commit(|pipe| _ = pipe.incr("text", 1).incr("count", 1)),
            true,
        ),
        (reply.unwrap_err(), true),
        (commit(|pipe| _ = pipe.cmd("MULTI")), false),
        (commit(|pipe| _ = pipe.cmd("NO.SUCH.COMMAND")), false),
        (locks.reentrant("a").acquire(LONG).unwrap_err(), false),
        (locks.lock("a").acquire(MS).unwrap_err(), false),
        (lost.check().unwrap_err(), false),
        (Error::other(anyhow::anyhow!("the item is sold")), false),
        (silence, true),
    ] {
        assert_eq!(error.may_have_happened(), may_have, "{error:?}");
        assert_eq!(error.did_not_happen(), !may_have, "{error:?}");
        let is_lost = matches!(&error, Error::Lost { .. });
        assert_eq!(error.is_lost(), is_lost, "{error:?}");
    }
}

#[test]
fn an_error_of_ones_own_keeps_its_causes_and_its_backtrace() {
    let server = Server::start().unwrap();
    let lease = crate::connect(&server.url())
        .lock("a")
        .acquire(LONG)
        .unwrap();
    let read = || std::fs::read("/nowhere").context("the stock list");
    let refused = lease.transaction(&[], |_, _| Ok(read().map(drop)?));
    let Err(Error::Other { source }) = refused.clone() else {
        panic!("{refused:?}");
    };
    assert!(source.downcast_ref::<std::io::Error>().is_some());
    let _ = source.backtrace();
    let error = refused.unwrap_err();
    assert!(error.downcast_ref::<std::io::Error>().is_some());
    assert!(error.downcast_ref::<std::fmt::Error>().is_none());
    let passed_on = anyhow::Error::from(error.clone());
    let ours = passed_on.downcast_ref::<Error>();
    assert!(ours.is_some_and(|ours| ours.downcast_ref::<&str>() == Some(&"the stock list")));
    // An error of this crate's own has the same cause, but it is not the caller's.
    let lost = lease.transaction(&[], |conn, _| Ok(conn.get::<_, Option<i64>>("lock:a")?));
    assert!(lost.unwrap_err().downcast_ref::<RedisError>().is_none());
    assert_eq!(error.to_string(), "the stock list");
    let causes = format!("{:#}", anyhow::Error::from(error));
    assert_eq!(causes, format!("{source:#}"));
    assert!(
        causes.starts_with("the stock list: No such file"),
        "{causes}"
    );
}

#[test]
fn errors_of_redis_rs_are_converted_without_secrets() {
    at_once(
        [
            (ErrorKind::Io, "unknown"),
            (ErrorKind::UnexpectedReturnType, "reply"),
            (ErrorKind::Client, "redis"),
        ],
        |(kind, expected)| {
            let error = Error::from(RedisError::from((kind, "what it says")));
            let variant = match error {
                Error::Unknown { .. } => "unknown",
                Error::Reply { .. } => "reply",
                Error::Redis { .. } => "redis",
                _ => "another",
            };
            assert_eq!(variant, expected);
            assert!(
                !error.to_string().contains('`'),
                "the error names no lock: {error}"
            );
        },
    );
}

/// Only Redis 6.2 has that setting; newer servers accept and ignore it.
#[test]
fn a_server_that_forbids_writes_after_time_names_the_setting() {
    let server = Server::start_with(&["--lua-replicate-commands", "no"]).unwrap();
    let info: redis::InfoDict = redis::cmd("INFO")
        .query(&mut server.connection().unwrap())
        .unwrap();
    let version = info.get::<String>("redis_version").unwrap();
    let acquired = crate::connect(&server.url()).lock("a").acquire(LONG);
    if version.starts_with("6.") {
        let error = acquired.unwrap_err();
        assert!(error.did_not_happen());
        let text = format!("{:#}", anyhow::Error::from(error));
        assert!(
            text.contains("setting lua-replicate-commands") && !text.contains("user_script"),
            "{text}"
        );
    } else {
        acquired.unwrap().release().unwrap();
    }
}
