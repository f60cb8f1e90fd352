//! A signal, or a halt of the whole process, ends every read that has a time limit.
#![cfg(unix)]

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use nix::sys::{
    pthread::{pthread_kill, pthread_self},
    signal::Signal,
};
use signal_hook::{consts::SIGUSR1, flag};

use leasehold::Locks;

use crate::{
    common::{
        Proxy, Server,
        wait::comes_true_within,
        world::{self, Kind},
    },
    trial::{LONG, at_every_command},
};

#[test]
fn a_signal_while_waiting_for_any_reply() {
    flag::register(SIGUSR1, Arc::default()).unwrap();
    at_every_command(|mut trial| {
        let caller = pthread_self();
        let is_interrupted = |_| {
            trial.begin_anew();
            trial.point().run(move || {
                for _ in 0..20 {
                    pthread_kill(caller, Signal::SIGUSR1).unwrap();
                    thread::sleep(Duration::from_millis(1));
                }
            });
            let outcome = trial.call(LONG);
            trial.judge(&outcome);
            if !trial.is_acquiring() {
                let left = world::new_locks(&mut trial.direct);
                assert_eq!(left, [""; 0], "{}", trial.what);
            }
            trial.is_acquiring() || outcome.text.contains("Interrupted")
        };
        // The caller has to be in its read when the signal comes; on a busy machine it may be late.
        assert!((0..20).any(is_interrupted), "{}", trial.what);
        world::assert_nothing_is_watched(&mut trial.conn, &mut trial.direct, &trial.what);
        trial.next_on_the_same_connection();
    });
}

/// A release that a signal interrupted is sent again.
#[test]
fn a_signal_while_releasing_the_lock_of_a_failed_trade() {
    flag::register(SIGUSR1, Arc::default()).unwrap();
    at_every_command(|mut trial| {
        if trial.function.kind != Kind::UnderLock || trial.command() != "SISMEMBER" {
            return;
        }
        let is_look = |name: &&String| *name == "GET";
        let releasing = trial.commands.iter().filter(is_look).count() + 1;
        let looks = Arc::new(AtomicUsize::new(0));
        let (seen, caller) = (Arc::clone(&looks), pthread_self());
        trial.proxy.at("GET").run_each_time(move || {
            if seen.fetch_add(1, SeqCst) + 1 == releasing {
                thread::sleep(Duration::from_millis(20));
                pthread_kill(caller, Signal::SIGUSR1).unwrap();
                thread::sleep(Duration::from_millis(20));
            }
        });
        // Repeats until the signal arrives during the wait for the reply.
        let arrives = comes_true_within(Duration::from_secs(30), || {
            trial.begin_anew();
            trial.point().refuse("ERR not today");
            looks.store(0, SeqCst);
            let outcome = trial.call(LONG);
            assert!(outcome.text.contains("not today"), "{}", outcome.text);
            assert!(!trial.is_done(), "{}", trial.what);
            let left = world::new_locks(&mut trial.direct);
            assert_eq!(left, [""; 0], "{}", trial.what);
            looks.load(SeqCst) > releasing
        });
        assert!(arrives, "{}", trial.what);
        trial.next_on_the_same_connection();
    });
}

/// Nothing of these calls is unsafe to send twice, except the `EXEC` of a commit.
#[test]
fn a_call_that_a_signal_interrupts_is_sent_again() {
    flag::register(SIGUSR1, Arc::default()).unwrap();
    let server = Server::start().unwrap();
    let proxy = Proxy::in_front_of(&server).unwrap();
    let locks = Locks::connect(&proxy.url()).unwrap();
    let lock = locks.lock("a");
    let lease = lock.acquire(LONG).unwrap();
    let set = |writes: &mut redis::Pipeline| {
        writes.set("a", 1);
    };
    let calls: [(&str, &dyn Fn() -> leasehold::Result<()>); 5] = [
        ("inspect", &|| lock.inspect().map(drop)),
        ("verify", &|| lease.verify()),
        ("renew", &|| lease.renew(LONG)),
        ("commit", &|| lease.commit(set)),
        ("acquire", &|| locks.lock("b").try_acquire().map(drop)),
    ];
    for (name, call) in calls {
        // It is read directly only just after another.
        lease.verify().unwrap();
        let caller = pthread_self();
        proxy.at_command(1).run(move || {
            thread::sleep(Duration::from_millis(20));
            pthread_kill(caller, Signal::SIGUSR1).unwrap();
            thread::sleep(Duration::from_millis(20));
        });
        let done = call();
        assert!(done.is_ok(), "{name}: {done:?}");
        assert!(proxy.happened());
    }
    lease.release().unwrap();
}
