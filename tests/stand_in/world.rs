//! A real server and the stand-in, for tests that do not know which it is.

use std::{thread, time::Duration};

use leasehold::{Error, Lock, Locks, Options, Owner, Pool, testing::StandIn};
use redis::Commands;

use crate::common::Server;

/// Who has a lock that was stolen.
pub(crate) const THIEF: &str = "somebody else";

/// What the same tests are run on.
pub(crate) trait World {
    /// Locks of a process of their own.
    fn locks(&self) -> Locks;
    /// For the data of jobs.
    fn pool(&self) -> Pool;
    /// So much time passes.
    fn pass(&self, time: Duration);
    /// Ends a lock of the usual prefix. False: nobody had it.
    fn expire(&self, name: &str) -> bool;
    /// Gives a lock of this kind to somebody else.
    fn steal(&self, lock: &Lock);
    /// All locks are free, and all that is known of them is forgotten.
    fn start_again(&mut self);
    /// The server cannot be reached while this runs.
    fn without(&mut self, run: &mut dyn FnMut());
}

impl World for StandIn {
    fn locks(&self) -> Locks {
        self.locks().unwrap()
    }

    fn pool(&self) -> Pool {
        self.pool().unwrap()
    }

    fn pass(&self, time: Duration) {
        self.advance(time);
    }

    fn expire(&self, name: &str) -> bool {
        self.expire(name)
    }

    fn steal(&self, lock: &Lock) {
        self.steal(lock.name());
    }

    fn start_again(&mut self) {
        *self = Self::new();
    }

    fn without(&mut self, run: &mut dyn FnMut()) {
        self.disconnect();
        run();
        self.reconnect();
    }
}

impl World for Server {
    fn locks(&self) -> Locks {
        Locks::connect(&self.url()).unwrap()
    }

    fn pool(&self) -> Pool {
        Pool::connect(&self.url()).unwrap()
    }

    fn pass(&self, time: Duration) {
        thread::sleep(time);
    }

    fn expire(&self, name: &str) -> bool {
        let key = format!("lock:{name}");
        self.connection().unwrap().pexpire(key, 0).unwrap()
    }

    fn steal(&self, lock: &Lock) {
        // As the stand-in's thief, by the defaults, whatever is said of the lock.
        let options = Options::new()
            .owner(Owner::new(THIEF).unwrap())
            .lease(Duration::from_secs(10))
            .renewal(true)
            .max_hold(Duration::MAX)
            .fencing(true)
            .hand_over(0, Duration::ZERO);
        let thief = lock.clone().with(options);
        let _ = thief.force_release().unwrap();
        let _ = thief.try_acquire().unwrap().unwrap().detach();
    }

    fn start_again(&mut self) {
        let mut conn = self.connection().unwrap();
        redis::cmd("FLUSHALL").exec(&mut conn).unwrap();
    }

    fn without(&mut self, run: &mut dyn FnMut()) {
        self.kill().unwrap();
        run();
        self.restart().unwrap();
    }
}

/// Runs the same on both, and compares what they tell.
pub(crate) fn on_both<T: PartialEq + std::fmt::Debug>(run: impl Fn(&mut dyn World) -> T) {
    let real = run(&mut Server::start().unwrap());
    let stand_in = run(&mut StandIn::new());
    assert_eq!(real, stand_in, "the server, and the stand-in");
}

/// Without what differs from run to run.
pub(crate) fn told<T>(result: &Result<T, Error>) -> &'static str {
    match result {
        Ok(_) => "ok",
        Err(Error::Contended { .. }) => "contended",
        Err(Error::Lost { .. }) => "lost",
        Err(Error::WrongKind { .. }) => "wrong kind",
        Err(Error::Pool { .. }) => "no connection",
        Err(Error::Unknown { .. }) => "unknown",
        Err(Error::Invalid { .. }) => "invalid",
        Err(_) => "another error",
    }
}
