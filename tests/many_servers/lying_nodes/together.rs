//! Calls of several threads in one write, to a master that another takes the place of.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use leasehold::{Locks, Options};

use super::{
    Said, master_and_replica, patient_nodes_of, questions,
    silent::{SILENCE, count, silent_when},
};
use crate::common::{Fake, LONG, MS, fake::HANG_UP, hold::comes_true, wait::unless_halted};

fn together() -> Options {
    Options::new().fencing(false).renewal(false)
}

/// The thread that sends for all has its connection since before, and waits for the answer to a `PING`.
#[test]
fn who_knows_of_another_master_is_granted_nothing_by_the_one_before() {
    unless_halted(|| {
        let is_held = Arc::new(AtomicBool::new(true));
        let held = Arc::clone(&is_held);
        let (said, new) = (Said::new(":1\r\n"), Said::new(":1\r\n"));
        let (says, other) = (said.clone(), new.by_a_node());
        let old = Fake::saying(move |command, before| {
            while command == "PING" && held.load(Ordering::SeqCst) {
                thread::sleep(MS);
            }
            match command {
                "GET" => HANG_UP.to_vec(),
                "PING" => b"+PONG\r\n".to_vec(),
                _ => says.answer(command, before),
            }
        });
        for said in [&said, &new] {
            said.now(|words| {
                words.slots = master_and_replica(&old, &other);
                words.set = Some("+OK\r\n");
            });
        }
        let nodes = patient_nodes_of(&[other.port(), old.port()]);
        let conns = [(); 4].map(|()| nodes.get_for("a").unwrap());
        let [first, second, broken, broken_later] = conns;
        drop((first, second));
        let [broken, broken_later] = [broken, broken_later].map(|mut conn| {
            redis::cmd("GET").arg("a").exec(&mut conn).unwrap_err();
            conn
        });
        // Those that are left have to show that they still are there.
        drop(broken);
        let locks = Locks::on_nodes(&nodes).with(together());
        locks.go_together_always();
        thread::scope(|scope| {
            let leads = scope.spawn(|| locks.lock("leads").acquire(LONG).unwrap());
            assert!(comes_true(|| count(&old, "PING") == 1));
            new.now(|words| (words.slots, words.epoch) = (master_and_replica(&other, &old), 2));
            // Nodes may be asked again by then, and it is in doubt who the master is.
            thread::sleep(100 * MS);
            drop(broken_later);
            let asked = questions(std::slice::from_ref(&other));
            let lent = scope.spawn(|| nodes.get_for("a").unwrap());
            let is_asked = comes_true(|| questions(std::slice::from_ref(&other)) > asked);
            assert!(is_asked, "{:?} {:?}", old.asked(), other.asked());
            thread::sleep(60 * MS);
            let follows = scope.spawn(|| locks.lock("follows").acquire(LONG).unwrap());
            thread::sleep(60 * MS);
            is_held.store(false, Ordering::SeqCst);
            drop((leads.join().unwrap(), follows.join().unwrap()));
            drop(lent.join().unwrap());
        });
        assert_eq!((count(&old, "SET"), count(&other, "SET")), (0, 2));
    });
}

/// The first of two is answered at once, and the master is halted before the second.
#[test]
fn a_silence_before_the_last_answer_counts() {
    unless_halted(|| {
        let (silent, other, new) = silent_when(|command, before| match (command, before) {
            ("SET", 0) => thread::sleep(50 * MS),
            ("SET", 2) => thread::sleep(SILENCE),
            _ => {}
        });
        let nodes = patient_nodes_of(&[silent.port(), other.port()]);
        drop(nodes.get_for("a"));
        let locks = Locks::on_nodes(&nodes).with(together());
        locks.go_together_always();
        let granted = |name| drop(locks.lock(name).acquire(LONG).unwrap());
        thread::scope(|scope| {
            scope.spawn(|| granted("first"));
            assert!(comes_true(|| count(&silent, "SET") == 1));
            scope.spawn(|| granted("second"));
            scope.spawn(|| granted("third"));
            assert!(comes_true(|| count(&silent, "SET") == 3));
            new.now(|words| (words.slots, words.epoch) = (master_and_replica(&other, &silent), 2));
        });
        assert!(count(&other, "EVAL") > 0);
    });
}
