//! Every error of an operation names the function and the lock.

use std::time::Duration;

use leasehold::{
    Error, ErrorContext, Keep, Leases, Locks, MarketLock, Options, Owner, Pool, Result, Token,
    Watchdog, acquire_fair_semaphore, acquire_lock, acquire_lock_with_timeout, acquire_semaphore,
    acquire_semaphore_with_lock,
    book::article::one_hash,
    commit_while_held, list_item, list_item_with_lock, list_item_with_market_lock, purchase_item,
    purchase_item_with_lock, purchase_item_with_market_lock,
    recipes::{
        Hold,
        mutex::{self, End},
        read_write, reentrant, semaphore,
    },
    refresh_fair_semaphore, release_fair_semaphore, release_lock, release_semaphore,
    transaction_while_held, transaction_with_lock, with_lock, with_locks,
};
use redis::{Connection, Pipeline};

use crate::common::{
    LONG, MS, Server,
    hold::{CALLS, every_kind},
};

type Way = (&'static str, fn(Leases) -> Result<()>);
type Named<'a> = (&'a mut Connection, &'a str, &'a Token);
type LocksWay = (&'static str, fn((&Locks, &str)) -> Result<()>);
type PlainWay = (&'static str, fn(Named<'_>) -> Result<()>);

/// Shorter than the prefix and `:lease:ran`, so that each is refused for its end.
const INVALID: &str = "no:lease";
const NO_TIME: Duration = Duration::ZERO;

fn incr(pipe: &mut Pipeline) {
    pipe.incr("count", 1);
}

/// The way, and what the error names.
fn named(way: &str, done: Result<()>) -> (String, String) {
    let Err(error) = done else {
        panic!("{way}: it is done");
    };
    let nothing = ErrorContext::default();
    let context = error.context().unwrap_or(&nothing);
    assert!(
        error
            .to_string()
            .starts_with(&format!("{} on `", context.operation)),
        "{way}: {error}"
    );
    (context.operation.to_owned(), context.lock.clone())
}

const OF_LOCKS: [LocksWay; 14] = [
    ("Lock::acquire", |(it, name)| {
        it.lock(name).acquire(NO_TIME).map(drop)
    }),
    ("Lock::acquire", |(it, name)| {
        it.reentrant(name).acquire(10 * MS).map(drop)
    }),
    ("Lock::acquire", |(it, name)| {
        it.read(name).acquire(10 * MS).map(drop)
    }),
    ("Lock::acquire", |(it, name)| {
        it.write(name).acquire(10 * MS).map(drop)
    }),
    ("Lock::acquire", |(it, name)| {
        it.semaphore(name, 1).acquire(10 * MS).map(drop)
    }),
    ("Lock::try_acquire", |(it, name)| {
        it.lock(name).try_acquire().map(drop)
    }),
    ("Lock::adopt", |(it, name)| {
        it.lock(name).adopt(&Token::random()).map(drop)
    }),
    ("Lock::acquire", |(it, name)| {
        it.lock(name).run(NO_TIME, |_| ()).map(drop)
    }),
    ("Lock::run_once", |(it, name)| {
        let once = it
            .lock(name)
            .run_once(LONG, NO_TIME, |_| Ok::<_, Error>(()));
        once.map(drop)
    }),
    ("Lock::last_run", |(it, name)| {
        it.lock(name).last_run().map(drop)
    }),
    ("Lock::inspect", |(it, name)| {
        it.lock(name).inspect().map(drop)
    }),
    ("Lock::force_release", |(it, name)| {
        it.lock(name).force_release().map(drop)
    }),
    ("LockSet::acquire", |(it, name)| {
        it.all_of([name]).acquire(NO_TIME).map(drop)
    }),
    ("LockSet::try_acquire", |(it, name)| {
        it.all_of([name]).try_acquire().map(drop)
    }),
];

#[test]
fn of_a_lock_without_a_server_or_with_an_invalid_name_or_option() {
    let locks = Locks::connect("redis://127.0.0.1:1/").unwrap();
    let short = locks.with(Options::new().lease(NO_TIME));
    let cases = [(&locks, "a"), (&locks, INVALID), (&short, "a")];
    for (locks, name) in cases {
        for (way, call) in OF_LOCKS {
            if way == "Lock::inspect" || way == "Lock::force_release" || way == "Lock::last_run" {
                // These have no lease.
                let locks = locks.with(Options::new().lease(LONG));
                assert_eq!(named(way, call((&locks, name))), (way.into(), name.into()));
                continue;
            }
            assert_eq!(named(way, call((locks, name))), (way.into(), name.into()));
        }
    }
    let watchdog = Watchdog::new(&Pool::connect("redis://127.0.0.1:1/").unwrap()).unwrap();
    let hold = Hold::mutex("a", &Token::random()).unwrap();
    for lease in [NO_TIME, LONG] {
        let kept = watchdog.keep_with(&hold, Keep::new(lease)).map(drop);
        let expected = ("Watchdog::keep".into(), "a".into());
        assert_eq!(named("keep", kept), expected);
    }
    let listed = named("held", locks.held("a").map(drop));
    assert_eq!(listed, ("Locks::held".into(), "a".into()));
    let twice = named(
        "twice",
        locks.all_of(["a", "b", "a"]).acquire(LONG).map(drop),
    );
    assert_eq!(twice, ("LockSet::acquire".into(), "a, a, b".into()));
}

#[test]
fn of_a_lease_whose_server_is_gone() {
    let of_sets: [Way; 3] = [
        ("Leases::commit", |leases| leases.commit(incr)),
        ("Leases::transaction", |leases| {
            leases.transaction(&[], |_, pipe| {
                incr(pipe);
                Ok(())
            })
        }),
        // That of its lock.
        ("Lease::release", |leases| leases.release()),
    ];
    let mut server = Server::start().unwrap();
    let owner = Options::new()
        .owner(Owner::new("we").unwrap())
        .lease(6 * LONG);
    let locks = crate::connect(&server.url()).with(owner);
    let sets = of_sets.map(|(way, call)| {
        let set = locks.all_of([way.to_owned(), format!("{way}-2")]);
        (way, set.acquire(LONG).unwrap(), call)
    });
    let leases = CALLS.map(|(call_name, call)| {
        let way = format!("Lease::{call_name}");
        let kinds = every_kind(&locks).map(|lock| {
            // Each kind once for each way.
            let name = format!("{way}-{}", lock.name());
            let again = match lock.name() {
                "reentrant" => locks.reentrant(&name),
                "read" => locks.read(&name),
                "write" => locks.write(&name),
                _ => locks.lock(&name),
            };
            again.acquire(LONG).unwrap()
        });
        (way, kinds, call)
    });
    server.kill().unwrap();
    for (way, kinds, call) in leases {
        for lease in kinds {
            let name = lease.name().to_owned();
            let expected = (way.clone(), name);
            assert_eq!(named(&way, call(lease).0), expected);
        }
    }
    for (way, leases, call) in sets {
        // A commit concerns all locks, and a release the first that failed.
        let lock = match way {
            "Lease::release" => way.to_owned(),
            _ => format!("{way}, {way}-2"),
        };
        assert_eq!(named(way, call(leases)), (way.into(), lock));
    }
}

const OF_NAMES: [PlainWay; 30] = [
    ("acquire_lock", |(conn, name, _)| {
        acquire_lock(conn, name, NO_TIME).map(drop)
    }),
    ("acquire_lock_with_timeout", |(conn, name, _)| {
        acquire_lock_with_timeout(conn, name, NO_TIME, LONG).map(drop)
    }),
    ("release_lock", |(conn, name, token)| {
        release_lock(conn, name, token).map(drop)
    }),
    ("with_lock", |(conn, name, _)| {
        with_lock(conn, name, NO_TIME, LONG, |_, _| ()).map(drop)
    }),
    ("with_locks", |(conn, name, _)| {
        with_locks(conn, [name], NO_TIME, LONG, |_, _| ()).map(drop)
    }),
    ("commit_while_held", |(conn, name, token)| {
        commit_while_held(conn, name, token, incr)
    }),
    ("transaction_while_held", |(conn, name, token)| {
        transaction_while_held(conn, name, token, &[], |_, pipe| {
            incr(pipe);
            Ok(())
        })
    }),
    ("transaction_with_lock", |(conn, name, _)| {
        transaction_with_lock(conn, name, NO_TIME, LONG, &[], |_, pipe| {
            incr(pipe);
            Ok(())
        })
        .map(drop)
    }),
    ("mutex::try_acquire", |(conn, name, token)| {
        mutex::try_acquire(conn, name, token, End::After(LONG)).map(drop)
    }),
    ("mutex::acquire", |(conn, name, token)| {
        mutex::acquire(conn, name, token, NO_TIME, End::After(LONG)).map(drop)
    }),
    ("mutex::try_acquire_unfenced", |(conn, name, token)| {
        mutex::try_acquire_unfenced(conn, name, token, LONG).map(drop)
    }),
    ("mutex::renew", |(conn, name, token)| {
        mutex::renew(conn, name, token, LONG).map(drop)
    }),
    ("mutex::release", |(conn, name, token)| {
        mutex::release(conn, name, token).map(drop)
    }),
    ("reentrant::try_acquire", |(conn, name, token)| {
        reentrant::try_acquire(conn, name, &Owner::current_thread(), token, LONG).map(drop)
    }),
    ("reentrant::acquire", |(conn, name, token)| {
        let owner = Owner::current_thread();
        reentrant::acquire(conn, name, &owner, token, NO_TIME, LONG).map(drop)
    }),
    ("reentrant::renew", |(conn, name, token)| {
        reentrant::renew(conn, name, &Owner::current_thread(), token, LONG).map(drop)
    }),
    ("reentrant::release", |(conn, name, token)| {
        reentrant::release(conn, name, &Owner::current_thread(), token).map(drop)
    }),
    ("reentrant::holds", |(conn, name, _)| {
        reentrant::holds(conn, name, &Owner::current_thread()).map(drop)
    }),
    ("read_write::try_acquire_read", |(conn, name, token)| {
        read_write::try_acquire_read(conn, name, token, LONG).map(drop)
    }),
    ("read_write::acquire_read", |(conn, name, token)| {
        read_write::acquire_read(conn, name, token, NO_TIME, LONG).map(drop)
    }),
    ("read_write::renew_read", |(conn, name, token)| {
        read_write::renew_read(conn, name, token, LONG).map(drop)
    }),
    ("read_write::release_read", |(conn, name, token)| {
        read_write::release_read(conn, name, token).map(drop)
    }),
    ("read_write::try_acquire_write", |(conn, name, token)| {
        read_write::try_acquire_write(conn, name, token, LONG).map(drop)
    }),
    ("read_write::acquire_write", |(conn, name, token)| {
        read_write::acquire_write(conn, name, token, NO_TIME, LONG).map(drop)
    }),
    ("read_write::renew_write", |(conn, name, token)| {
        read_write::renew_write(conn, name, token, LONG).map(drop)
    }),
    ("read_write::release_write", |(conn, name, token)| {
        read_write::release_write(conn, name, token).map(drop)
    }),
    ("semaphore::try_acquire", |(conn, name, token)| {
        semaphore::try_acquire(conn, name, 1, token, LONG).map(drop)
    }),
    ("semaphore::acquire", |(conn, name, token)| {
        semaphore::acquire(conn, name, 1, token, NO_TIME, LONG).map(drop)
    }),
    ("semaphore::renew", |(conn, name, token)| {
        semaphore::renew(conn, name, token, LONG).map(drop)
    }),
    ("semaphore::release", |(conn, name, token)| {
        semaphore::release(conn, name, token).map(drop)
    }),
];

/// The book's names are refused only if they are empty or too long.
const OF_ANY_NAME: [PlainWay; 11] = [
    ("acquire_semaphore", |(conn, name, _)| {
        acquire_semaphore(conn, name, 1, LONG).map(drop)
    }),
    ("release_semaphore", |(conn, name, token)| {
        release_semaphore(conn, name, token).map(drop)
    }),
    ("acquire_fair_semaphore", |(conn, name, _)| {
        acquire_fair_semaphore(conn, name, 1, LONG).map(drop)
    }),
    ("release_fair_semaphore", |(conn, name, token)| {
        release_fair_semaphore(conn, name, token).map(drop)
    }),
    ("refresh_fair_semaphore", |(conn, name, token)| {
        refresh_fair_semaphore(conn, name, token).map(drop)
    }),
    ("acquire_semaphore_with_lock", |(conn, name, _)| {
        acquire_semaphore_with_lock(conn, name, 1, LONG).map(drop)
    }),
    ("one_hash::acquire_read", |(conn, name, token)| {
        one_hash::acquire_read(conn, name, token, NO_TIME, &one_hash::Lifetimes::default())
            .map(drop)
    }),
    ("one_hash::release_write", |(conn, name, token)| {
        one_hash::release_write(conn, name, token, &one_hash::Lifetimes::default()).map(drop)
    }),
    ("list_item", |(conn, name, _)| {
        list_item(conn, name, "17", 1).map(drop)
    }),
    ("list_item_with_lock", |(conn, name, _)| {
        list_item_with_lock(conn, name, "17", 1).map(drop)
    }),
    ("list_item_with_market_lock", |(conn, name, _)| {
        list_item_with_market_lock(conn, MarketLock::Book, name, "17", 1).map(drop)
    }),
];

const PURCHASES: [PlainWay; 3] = [
    ("purchase_item", |(conn, name, _)| {
        purchase_item(conn, "27", name, "17", 1).map(drop)
    }),
    ("purchase_item_with_lock", |(conn, name, _)| {
        purchase_item_with_lock(conn, "27", name, "17", None).map(drop)
    }),
    ("purchase_item_with_market_lock", |(conn, name, _)| {
        let lock = MarketLock::Article;
        purchase_item_with_market_lock(conn, lock, "27", name, "17", None).map(drop)
    }),
];

/// Of a name that is too long, the error repeats as much as a valid one has.
#[test]
fn of_a_plain_function_with_an_invalid_name() {
    let server = Server::start().unwrap();
    let (mut conn, token) = (server.connection().unwrap(), Token::random());
    let too_long = "x".repeat(100_000);
    for (way, call) in OF_NAMES {
        let (operation, lock) = named(way, call((&mut conn, INVALID, &token)));
        assert_eq!((&*operation, &*lock), (way, INVALID));
    }
    for (way, call) in OF_ANY_NAME.into_iter().chain(PURCHASES).chain(OF_NAMES) {
        let (operation, lock) = named(way, call((&mut conn, &too_long, &token)));
        assert_eq!((&*operation, &*lock), (way, &too_long[..512]));
    }
}
