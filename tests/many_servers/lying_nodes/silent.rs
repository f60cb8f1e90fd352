//! A master that is silent while another takes its place, and does not hear of that when it goes on: what it grants then is no lock.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use leasehold::{Locks, Options};

use super::{Said, master_and_replica, patient_builder, patient_nodes_of, url_of};
use crate::attempts::Attempts;
use crate::common::{
    Fake, LONG, MS,
    hold::comes_true,
    wait::{TOO_SLOW, unless_halted},
};

/// How long the master is silent, from the first call on. All wait: the others have a part of the time of the wait to say who the
/// master is.
pub(super) const SILENCE: Duration = Duration::from_millis(600);
/// When the second call comes, where the master is silent until then.
const LATE: Duration = Duration::from_millis(550);

pub(super) fn count(node: &Fake, name: &str) -> usize {
    let asked = node.asked();
    asked.iter().filter(|it| it.starts_with(name)).count()
}

/// A master that waits like this before it answers a command, its replica, and what the replica says.
pub(super) fn silent_when(waits: impl Fn(&str, usize) + Send + 'static) -> (Fake, Fake, Said) {
    let (old, new) = (Said::new(":1\r\n"), Said::new(":1\r\n"));
    let says = old.clone();
    let silent = Fake::saying(move |command, before| {
        waits(command, before);
        says.answer(command, before)
    });
    let other = new.by_a_node();
    for said in [&old, &new] {
        said.now(|words| {
            words.slots = master_and_replica(&silent, &other);
            words.set = Some("+OK\r\n");
        });
    }
    (silent, other, new)
}

/// A master that is silent at the first of each of these commands.
pub(super) fn silent_at(commands: &'static [&'static str]) -> (Fake, Fake, Said) {
    silent_when(move |command, before| {
        if before == 0 && commands.contains(&command) {
            thread::sleep(SILENCE);
        }
    })
}

/// A master that is silent from the first of these commands on until the flag is cleared.
fn silent_from(command: &'static str) -> (Fake, Fake, Said, Arc<AtomicBool>) {
    let is_silent = Arc::new(AtomicBool::new(true));
    let is_silent_now = Arc::clone(&is_silent);
    let (silent, other, new) = silent_when(move |asked, _| {
        while asked == command && is_silent_now.load(Ordering::SeqCst) {
            thread::sleep(MS);
        }
    });
    (silent, other, new, is_silent)
}

/// The second call is answered soon: its thread alone does not see the silence.
#[test]
fn each_grant_of_a_master_that_was_silent_is_confirmed_by_the_one_that_others_name() {
    unless_halted(|| {
        let (silent, other, new, is_silent) = silent_from("SET");
        let nodes = patient_nodes_of(&[silent.port(), other.port()]);
        // Each call has a connection that is open by then.
        drop([nodes.get_for("a"), nodes.get_for("a")]);
        let locks = Locks::on_nodes(&nodes).with(Options::new().fencing(false));
        let granted = |name| locks.lock(name).acquire(LONG).is_ok();
        thread::scope(|scope| {
            let early = scope.spawn(|| granted("early"));
            assert!(comes_true(|| count(&silent, "SET") == 1));
            new.now(|words| (words.slots, words.epoch) = (master_and_replica(&other, &silent), 2));
            thread::sleep(LATE);
            let late = scope.spawn(|| granted("late"));
            assert!(comes_true(|| count(&silent, "SET") == 2), "{TOO_SLOW}");
            is_silent.store(false, Ordering::SeqCst);
            assert!(late.join().unwrap() && early.join().unwrap());
        });
        let attempts = (count(&silent, "SET"), count(&silent, "EVAL"));
        let told = (attempts, count(&other, "EVAL") > 1);
        assert_eq!(told, ((2, 0), true), "{TOO_SLOW}");
    });
}

/// Of an attempt that was to confirm a grant, and was answered after another silence, in which another has taken the place.
#[test]
fn a_master_that_is_silent_a_second_time_confirms_nothing() {
    unless_halted(|| {
        let (silent, other, new) = silent_at(&["SET", "EVALSHA"]);
        let nodes = patient_nodes_of(&[silent.port(), other.port()]);
        drop(nodes.get_for("a"));
        let locks = Locks::on_nodes(&nodes).with(Options::new().fencing(false));
        thread::scope(|scope| {
            let asks = scope.spawn(|| locks.lock("a").acquire(LONG));
            assert!(comes_true(|| count(&silent, "EVALSHA") == 1));
            new.now(|words| (words.slots, words.epoch) = (master_and_replica(&other, &silent), 2));
            drop(asks.join().unwrap().unwrap());
        });
        assert!(count(&other, "EVAL") > 0);
    });
}

/// A release was out all the time, and no call for a lock.
#[test]
fn a_silence_that_a_release_has_met_counts() {
    unless_halted(|| {
        let is_silent = Arc::new(AtomicBool::new(false));
        let is_silent_now = Arc::clone(&is_silent);
        let (silent, other, new) = silent_when(move |_, _| {
            while is_silent_now.load(Ordering::SeqCst) {
                thread::sleep(MS);
            }
        });
        let nodes = patient_nodes_of(&[silent.port(), other.port()]);
        drop([nodes.get_for("a"), nodes.get_for("a")]);
        let locks = Locks::on_nodes(&nodes).with(Options::new().fencing(false).renewal(false));
        let held = locks.lock("held").acquire(LONG).unwrap();
        is_silent.store(true, Ordering::SeqCst);
        thread::scope(|scope| {
            let released = scope.spawn(|| held.release());
            thread::sleep(400 * MS);
            let late = scope.spawn(|| locks.lock("late").acquire(LONG));
            assert!(comes_true(|| count(&silent, "SET") == 2));
            new.now(|words| (words.slots, words.epoch) = (master_and_replica(&other, &silent), 2));
            is_silent.store(false, Ordering::SeqCst);
            drop(late.join().unwrap().unwrap());
            let _ = released.join().unwrap();
        });
        assert!(count(&other, "EVAL") > 0);
    });
}

/// No call was out, and no renewal: the thread that listens has asked whether the server is there.
#[test]
fn a_silence_that_only_the_listener_has_met_counts() {
    unless_halted(|| {
        let (silent, other, new, is_silent) = silent_from("PING");
        let nodes = patient_nodes_of(&[silent.port(), other.port()]);
        let locks = Locks::on_nodes(&nodes).with(Options::new().fencing(false));
        let held = locks.lock("held").acquire(LONG).unwrap();
        assert!(comes_true(|| count(&silent, "PING") == 1));
        new.now(|words| (words.slots, words.epoch) = (master_and_replica(&other, &silent), 2));
        thread::sleep(LATE);
        thread::scope(|scope| {
            let late = scope.spawn(|| locks.lock("late").acquire(LONG));
            assert!(comes_true(|| count(&silent, "SET") == 2), "{TOO_SLOW}");
            is_silent.store(false, Ordering::SeqCst);
            drop(late.join().unwrap().unwrap());
        });
        let told = (count(&silent, "SET"), count(&other, "EVAL") > 0);
        assert_eq!(told, (2, true), "{TOO_SLOW}");
        drop(held);
    });
}

/// The server was not asked in that time, so that it was not silent.
#[test]
fn who_waits_for_a_connection_has_met_no_silence() {
    let is_judged = || {
        let said = Said::new(":1\r\n");
        let (master, replica) = (said.by_a_node(), said.by_a_node());
        said.now(|words| {
            words.slots = master_and_replica(&master, &replica);
            words.set = Some("+OK\r\n");
        });
        let url = url_of(&[master.port(), replica.port()]);
        let nodes = patient_builder().max_size(1).connect(&url).unwrap();
        let lent = nodes.get_for("a").unwrap();
        let (attempts, events) = Attempts::counted();
        let locks = Locks::on_nodes(&nodes).with(Options::new().fencing(false).events(events));
        locks.lock("a").try_acquire().unwrap_err();
        let took = thread::scope(|scope| {
            let waits = scope.spawn(|| locks.lock("a").acquire(LONG));
            thread::sleep(300 * MS);
            let given_back = Instant::now();
            drop(lent);
            let lease = waits.join().unwrap().unwrap();
            let took = given_back.elapsed();
            drop(lease);
            took
        });
        // An answer that comes late follows a silence.
        let is_judged = took < 200 * MS;
        assert!(!is_judged || attempts.at_most() == 1);
        is_judged
    };
    // On a busy machine one may be late, and is not judged.
    unless_halted(|| assert!((0..20).any(|_| is_judged()), "{TOO_SLOW}"));
}
