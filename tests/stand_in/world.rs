//! A real server and the stand-in, for tests that run on both.

use std::{thread, time::Duration};

use leasehold::{Error, Lock, Locks, Options, Owner, Pool, testing::StandIn};
use redis::Commands;

use crate::common::Server;

/// The holder of a stolen lock.
pub(crate) const THIEF: &str = "someone else";

/// The server or the stand-in.
pub(crate) trait World {
    /// Locks of a separate process.
    fn locks(&self) -> Locks;
    /// For the data of jobs.
    fn pool(&self) -> Pool;
    /// Lets this much time pass.
    fn pass(&self, time: Duration);
    /// Expires a lock with the default prefix. False if it was free.
    fn expire(&self, name: &str) -> bool;
    /// Gives a lock of this kind to another holder.
    fn steal(&self, lock: &Lock);
    /// Frees all locks and forgets everything about them.
    fn start_again(&mut self);
    /// Runs the closure while the server is unreachable.
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
        // Default options, like the stand-in's thief, whatever the lock's options.
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

/// Runs the same on both, and compares the results.
pub(crate) fn on_both<T: PartialEq + std::fmt::Debug>(run: impl Fn(&mut dyn World) -> T) {
    let real = run(&mut Server::start().unwrap());
    let stand_in = run(&mut StandIn::new());
    assert_eq!(real, stand_in, "the server, and the stand-in");
}

/// The result without the parts that differ from run to run.
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
