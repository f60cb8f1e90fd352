//! No call writes after its hold has ended, even if another hold keeps the lock's key.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, SystemTime},
};

use leasehold::{Error, Lease, Leases, Lock, LockSet, Locks, LostSignal, Options, Owner, Result};
use redis::{Commands, Connection, Pipeline};

use crate::common::{
    LONG, MS, Proxy, Server,
    wait::{TOO_SLOW, at_once},
};

/// Every hold that ends by itself ends within this time.
const SHORT: Duration = Duration::from_millis(500);

type Kind = (&'static str, fn(&Locks, &str) -> Lock);

const KINDS: [Kind; 6] = [
    ("mutex", Locks::lock),
    ("bare", |locks, name| {
        locks.lock(name).with(Options::new().fencing(false))
    }),
    ("reentrant", |locks, name| {
        let owner = Owner::new("job").unwrap();
        locks.reentrant(name).with(Options::new().owner(owner))
    }),
    ("read", Locks::read),
    ("write", Locks::write),
    ("semaphore", |locks, name| locks.semaphore(name, 2)),
];

/// The lock, and another one for a set.
struct Job {
    lock: Lock,
    other: Lock,
    written: String,
    end: End,
}

type Call = (&'static str, fn(Job) -> Result<()>);

const CALLS: [Call; 7] = [
    ("commit", |job| job.held()?.commit(job.write())),
    ("commit_returning", |job| {
        job.held()?.commit_returning::<()>(job.write())
    }),
    ("commit_once", |job| {
        let lease = job.held()?;
        lease.commit_once("id", LONG, job.write()).map(drop)
    }),
    ("commit_and_release", |job| {
        job.held()?.commit_and_release(job.write())
    }),
    ("transaction", |job| {
        job.held()?.transaction(&[&job.written], |conn, pipe| {
            let _: Option<u32> = conn.get(&job.written)?;
            job.write()(pipe);
            Ok(())
        })
    }),
    ("set commit", |job| job.both()?.commit(job.write())),
    ("set transaction", |job| {
        job.both()?.transaction(&[], |_, pipe| {
            job.write()(pipe);
            Ok(())
        })
    }),
];

impl Job {
    fn held(&self) -> Result<Lease> {
        let lease = self.lock.acquire(LONG)?;
        self.until_lost(&lease.lost());
        Ok(lease)
    }

    fn both(&self) -> Result<Leases> {
        let leases = LockSet::of([self.lock.clone(), self.other.clone()]).acquire(LONG)?;
        self.until_lost(&leases.lost());
        Ok(leases)
    }

    fn until_lost(&self, lost: &LostSignal) {
        assert!(!matches!(self.end, End::OurClock) || lost.wait_for(LONG));
    }

    fn write(&self) -> impl FnOnce(&mut Pipeline) + use<> {
        let written = self.written.clone();
        move |pipe| _ = pipe.incr(written, 1)
    }
}

/// The ways in which a hold ends.
#[derive(Clone, Copy, Debug)]
enum End {
    Never,
    Lease,
    MaxHold,
    Deleted,
    Taken,
    /// Before the call: the server still has the lock.
    OurClock,
}

impl End {
    fn options(self) -> Options {
        let options = Options::new();
        match self {
            Self::Lease => options.lease(SHORT).renewal(false),
            Self::MaxHold => options.lease(LONG).max_hold(SHORT),
            Self::OurClock => options
                .lease(6_000 * MS)
                .clock_skew(3_000 * MS)
                .renewal(false),
            Self::Never | Self::Deleted | Self::Taken => options.lease(LONG),
        }
    }

    /// Ends the hold, between its proof and the writes.
    fn happens(self, lock: &Lock, conn: &mut Connection) {
        match self {
            Self::Never | Self::OurClock => {}
            // Longer than a busy machine may delay a renewal, which then ends later on the server.
            Self::Lease | Self::MaxHold => thread::sleep(SHORT + 500 * MS),
            Self::Deleted => conn.del(format!("lock:{}", lock.name())).unwrap(),
            Self::Taken => {
                let options = Options::new().owner(Owner::new("thief").unwrap());
                let _ = lock.force_release().unwrap();
                let _ = lock.clone().with(options).acquire(LONG).unwrap().detach();
            }
        }
    }
}

/// Another hold, for as long as the test takes, that keeps the lock's key. A mutex has none.
fn another_hold(kind: &str, lock: &Lock, conn: &mut Connection) {
    let key = format!("lock:{}", lock.name());
    match kind {
        "mutex" | "bare" => {}
        "write" => {
            // A waiting writer's intent.
            let millis = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            let end = (millis.unwrap() + LONG).as_millis().to_string();
            let () = conn
                .hset_multiple(&key, &[("kind", "rw"), ("i:another", &end)])
                .unwrap();
            let _: bool = conn.pexpire(&key, 10_000).unwrap();
        }
        _ => _ = lock.acquire(LONG).unwrap().detach(),
    }
}

#[test]
fn nothing_is_written_after_the_end_of_a_hold() {
    let kinds = KINDS.into_iter();
    let cases = kinds.flat_map(|kind| CALLS.map(|call| (kind, call)));
    let server = Server::start().unwrap();
    // A case that the machine was too slow for begins again, with names of its own.
    let attempts = AtomicU32::new(0);
    at_once(cases, |((kind, lock_of), (name, call))| {
        let attempt = attempts.fetch_add(1, Ordering::SeqCst);
        let proxy = Proxy::in_front_of(&server).unwrap();
        let mut conn = server.connection().unwrap();
        let locks = Locks::connect(&proxy.url()).unwrap();
        let others = Locks::connect(&server.url()).unwrap();
        for end in [
            End::Never,
            End::Lease,
            End::MaxHold,
            End::Deleted,
            End::Taken,
            End::OurClock,
        ] {
            let name = format!("{{{kind} {name} {end:?} {attempt}}}");
            let theirs = lock_of(&others, &name).with(Options::new().lease(2 * LONG));
            another_hold(kind, &theirs, &mut conn);
            let job = Job {
                lock: lock_of(&locks, &name).with(end.options()),
                other: locks.lock(&format!("{name} 2")),
                written: format!("{name} written"),
                end,
            };
            let written = job.written.clone();
            let mut admin = server.connection().unwrap();
            let happens = move || end.happens(&theirs, &mut admin);
            if !matches!(end, End::OurClock) {
                proxy.at("MULTI").run(happens);
            }

            let done = call(job);
            let written: Option<u32> = conn.get(written).unwrap();
            if matches!(end, End::Never) {
                done.unwrap();
                assert_eq!(written, Some(1), "{name}");
            } else {
                assert!(matches!(done, Err(Error::Lost { .. })), "{name}: {done:?}");
                assert_eq!(written, None, "{name}");
            }
            assert!(proxy.happened(), "{TOO_SLOW}");
            let proofs: Vec<String> = conn.keys(format!("*{name}*proof*")).unwrap();
            assert!(proofs.is_empty(), "{proofs:?}");
        }
    });
}
