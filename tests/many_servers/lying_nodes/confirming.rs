//! A grant that is in question is confirmed in time, or it is not known whose the lock is: a call takes no longer for it than it may, and
//! whoever may know of another master is asked.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use leasehold::{Cancel, Error, Lock, Locks, Options};

use super::{
    SLOT, Said, half_at, master_and_replica, master_and_replica_at, patient_builder,
    patient_nodes_of, questions,
    silent::{SILENCE, count, silent_at, silent_when},
    url_of,
};
use crate::common::{
    Fake, LONG, MS,
    fake::HANG_UP,
    hold::comes_true,
    server::free_port,
    slack::slack,
    wait::{TOO_SLOW, unless_halted},
};

/// More than a wait may be late.
const LATE: Duration = Duration::from_millis(250);

fn unfenced() -> Options {
    Options::new().fencing(false)
}

/// A try, or a wait. Says whether the lock was granted, and how long that took.
fn asked(lock: &Lock, wait: Option<Duration>) -> (Result<bool, Error>, Duration) {
    let asked = Instant::now();
    let answer = match wait {
        None => lock.try_acquire().map(|lease| lease.is_some()),
        Some(wait) => lock.acquire(wait).map(|_| true),
    };
    (answer, asked.elapsed())
}

/// The replica does not say who the master is. The wait has all the time in the world, but may be called off.
#[test]
fn a_wait_that_is_called_off_does_not_wait_for_the_others_to_name_the_master() {
    unless_halted(|| {
        let said = Said::new(":1\r\n");
        let says = said.clone();
        let silent = Fake::saying(move |command, before| {
            if (command, before) == ("SET", 0) {
                thread::sleep(SILENCE);
            }
            says.answer(command, before)
        });
        let mute = Fake::saying(|_, _| Vec::new());
        said.now(|words| {
            words.slots = master_and_replica(&silent, &mute);
            words.set = Some("+OK\r\n");
        });
        let nodes = patient_nodes_of(&[silent.port(), mute.port()]);
        drop(nodes.get_for("a"));
        let cancel = Cancel::new();
        let options = Options::new().fencing(false).cancel(&cancel);
        let locks = Locks::on_nodes(&nodes).with(options);
        let asked = || questions(std::slice::from_ref(&mute));
        let asked_before = asked();
        thread::scope(|scope| {
            let waits = scope.spawn(|| locks.lock("a").acquire(LONG));
            assert!(comes_true(|| asked() > asked_before));
            let called_off = Instant::now();
            cancel.cancel();
            let answer = waits.join().unwrap();
            let took = called_off.elapsed();
            assert!(took < 250 * MS + slack(), "{took:?}");
            // The others have an eighth of a second, after which the grant counts.
            assert!(answer.is_err(), "{TOO_SLOW}: {answer:?}");
        });
    });
}

/// Somebody else takes the only connection before the grant is confirmed, and keeps it.
#[test]
fn a_grant_that_is_not_confirmed_in_time_is_unknown() {
    for wait in [None, Some(SILENCE * 9 / 10)] {
        unless_halted(|| {
            let (silent, other, _) = silent_at(&["SET"]);
            let url = url_of(&[silent.port(), other.port()]);
            let nodes = patient_builder().max_size(1).connect(&url).unwrap();
            drop(nodes.get_for("a"));
            let lock = Locks::on_nodes(&nodes).with(unfenced()).lock("a");
            let (ended, has_ended) = mpsc::channel();
            thread::scope(|scope| {
                let asks = scope.spawn(|| asked(&lock, wait));
                assert!(comes_true(|| count(&silent, "SET") == 1), "{TOO_SLOW}");
                let nodes = &nodes;
                scope.spawn(move || {
                    let lent = nodes.get_for("a").unwrap();
                    let _ = has_ended.recv();
                    drop(lent);
                });
                let (answer, took) = asks.join().unwrap();
                ended.send(()).unwrap();
                assert!(matches!(answer, Err(Error::Unknown { .. })), "{answer:?}");
                assert!(took < SILENCE + LATE + slack(), "{took:?}");
            });
        });
    }
}

/// Where another is the master by then, and cannot be reached.
#[test]
fn a_wait_that_cannot_ask_the_next_master_ends() {
    unless_halted(|| {
        let (silent, other, new) = silent_at(&["SET"]);
        let gone = free_port().unwrap();
        let url = url_of(&[silent.port(), other.port()]);
        let nodes = patient_builder().io_timeout(2 * SILENCE).connect(&url);
        let nodes = nodes.unwrap();
        drop(nodes.get_for("a"));
        let lock = Locks::on_nodes(&nodes).with(unfenced()).lock("a");
        let (says, heard) = mpsc::channel();
        thread::spawn(move || says.send(asked(&lock, Some(SILENCE / 2))));
        assert!(comes_true(|| count(&silent, "SET") == 1), "{TOO_SLOW}");
        let slots = master_and_replica_at(gone.number(), other.port());
        new.now(|words| (words.slots, words.epoch) = (slots.clone(), 2));
        let ended = heard.recv_timeout(LONG);
        assert!(ended.is_ok(), "it does not end");
        let (answer, took) = ended.unwrap();
        // The other has a part of an eighth of a second to name the next master in.
        assert!(answer.is_err(), "{TOO_SLOW}: {answer:?}");
        assert!(matches!(answer, Err(Error::Unknown { .. })), "{answer:?}");
        assert!(took < SILENCE + LATE + slack(), "{took:?}");
    });
}

/// The attempt that is to confirm the grant is led to the next master, which is gone or answers nothing.
#[test]
fn a_grant_is_unknown_where_its_key_has_moved_to_who_answers_nothing() {
    for is_gone in [true, false] {
        unless_halted(|| {
            let (gone, mute) = (free_port().unwrap(), Fake::saying(|_, _| Vec::new()));
            let to = if is_gone { gone.number() } else { mute.port() };
            let said = Said::new(&format!("-MOVED {SLOT} 127.0.0.1:{to}\r\n"));
            let (says, next) = (said.clone(), Arc::new(OnceLock::new()));
            let says_next: Arc<OnceLock<String>> = Arc::clone(&next);
            let silent = Fake::saying(move |command, before| {
                match (command, before) {
                    ("SET", 0) => thread::sleep(SILENCE),
                    ("EVALSHA", 0) => says.now(|words| {
                        words.slots = says_next.get().cloned().unwrap_or_default();
                        words.epoch = 2;
                    }),
                    _ => {}
                }
                says.answer(command, before)
            });
            said.now(|words| {
                words.slots = master_and_replica_at(silent.port(), to);
                words.set = Some("+OK\r\n");
            });
            next.set(master_and_replica_at(to, silent.port())).unwrap();
            let io_timeout = 2 * SILENCE;
            let nodes = patient_builder().io_timeout(io_timeout);
            let nodes = nodes.connect(&url_of(&[silent.port()])).unwrap();
            drop(nodes.get_for("a"));
            let lock = Locks::on_nodes(&nodes).with(unfenced()).lock("a");
            let (answer, took) = asked(&lock, None);
            assert!(matches!(answer, Err(Error::Unknown { .. })), "{answer:?}");
            assert!(took < io_timeout + LATE + slack(), "{took:?}");
            assert!(count(&silent, "EVALSHA") > 0, "{TOO_SLOW}");
        });
    }
}

/// It was sent by a connection that was closed then, and once more by another, whose answer leads to a node that is gone.
#[test]
fn what_may_have_been_executed_is_unknown_where_the_answer_leads_to_nobody() {
    let gone = free_port().unwrap();
    let said = Said::new(&format!("-ASK {SLOT} 127.0.0.1:{}\r\n", gone.number()));
    let says = said.clone();
    let master = Fake::saying(move |command, before| match (command, before) {
        ("SET", 0) => HANG_UP.to_vec(),
        _ => says.answer(command, before),
    });
    said.now(|words| words.slots = master_and_replica_at(master.port(), gone.number()));
    let nodes = patient_nodes_of(&[master.port()]);
    let lock = Locks::on_nodes(&nodes).with(unfenced()).lock("a");
    let answer = lock.try_acquire();
    assert!(matches!(answer, Err(Error::Unknown { .. })), "{answer:?}");
    assert!(count(&master, "EVALSHA") > 0);
}

/// As above, until the slot has arrived. Who waits goes on.
#[test]
fn who_waits_goes_on_where_an_answer_leads_to_nobody() {
    let gone = free_port().unwrap();
    let ask = format!("-ASK {SLOT} 127.0.0.1:{}\r\n", gone.number());
    let said = Said::new(":1\r\n");
    let says = said.clone();
    let master = Fake::saying(move |command, before| match (command, before) {
        ("SET", 0) => HANG_UP.to_vec(),
        ("EVALSHA", 0) => ask.clone().into_bytes(),
        _ => says.answer(command, before),
    });
    said.now(|words| words.slots = master_and_replica_at(master.port(), gone.number()));
    let nodes = patient_nodes_of(&[master.port()]);
    let lock = Locks::on_nodes(&nodes).with(unfenced()).lock("a");
    drop(lock.acquire(LONG).unwrap());
}

/// The key has gone with our token, which a bare `SET` would take for another's.
#[test]
fn a_grant_whose_key_has_moved_is_confirmed_where_it_is() {
    unless_halted(|| {
        let new = Said::new(":1\r\n");
        let other = new.by_a_node();
        let moved = format!("-MOVED {SLOT} 127.0.0.1:{}\r\n", other.port());
        let old = Said::new(&moved);
        let says = old.clone();
        let silent = Fake::saying(move |command, before| {
            if (command, before) == ("SET", 0) {
                thread::sleep(SILENCE);
            }
            says.answer(command, before)
        });
        for said in [&old, &new] {
            said.now(|words| words.slots = master_and_replica(&silent, &other));
        }
        old.now(|words| words.set = Some("+OK\r\n"));
        new.now(|words| words.set = Some("$-1\r\n"));
        let nodes = patient_nodes_of(&[silent.port(), other.port()]);
        drop(nodes.get_for("a"));
        let lock = Locks::on_nodes(&nodes).with(unfenced()).lock("a");
        // A try gives the connection to the other node up within a quarter of a second, which a busy machine may need for it.
        let lease = lock.acquire(LONG).unwrap();
        // Before the release, which sends an `EVALSHA` as well.
        assert!(count(&silent, "EVALSHA") > 0);
        assert_eq!((count(&silent, "SET"), count(&other, "SET")), (1, 0));
        drop(lease);
    });
}

/// One time-out, and not another one for the attempt that is to confirm the grant.
#[test]
fn a_master_that_is_silent_twice_costs_one_time_out() {
    unless_halted(|| {
        let (silent, replica, _) = silent_when(|command, before| match (command, before) {
            ("SET", 0) => thread::sleep(SILENCE),
            ("EVALSHA", 0) => thread::sleep(4 * SILENCE),
            _ => {}
        });
        let io_timeout = 2 * SILENCE;
        let nodes = patient_builder().io_timeout(io_timeout);
        let url = url_of(&[silent.port(), replica.port()]);
        let nodes = nodes.connect(&url).unwrap();
        drop(nodes.get_for("a"));
        let lock = Locks::on_nodes(&nodes).with(unfenced()).lock("a");
        let (answer, took) = asked(&lock, None);
        assert!(matches!(answer, Err(Error::Unknown { .. })), "{answer:?}");
        assert!(took < io_timeout + LATE + slack(), "{took:?}");
    });
}

/// A call for another shard, which nobody serves, has had them asked just before.
#[test]
fn nodes_are_asked_who_the_master_is_however_lately_they_were() {
    unless_halted(|| {
        let (old, new) = (Said::new(":1\r\n"), Said::new(":1\r\n"));
        let is_silent = Arc::new(AtomicBool::new(true));
        let (says, is_silent_now) = (old.clone(), Arc::clone(&is_silent));
        let silent = Fake::saying(move |command, before| {
            while command == "SET" && is_silent_now.load(Ordering::SeqCst) {
                thread::sleep(MS);
            }
            says.answer(command, before)
        });
        let (other, nobody) = (new.by_a_node(), free_port().unwrap());
        let gone = nobody.number();
        for said in [&old, &new] {
            said.now(|words| {
                words.slots = half_at(silent.port(), gone);
                words.set = Some("+OK\r\n");
            });
        }
        let nodes = patient_nodes_of(&[other.port(), silent.port()]);
        drop(nodes.get_for("a").unwrap());
        let mut names = (0..).map(|n: u32| n.to_string());
        let of_nobody = names.find(|name| nodes.get_for(name).is_err()).unwrap();
        let locks = Locks::on_nodes(&nodes).with(unfenced());
        thread::scope(|scope| {
            let asks = scope.spawn(|| locks.lock("a").acquire(LONG));
            assert!(comes_true(|| count(&silent, "SET") == 1), "{TOO_SLOW}");
            thread::sleep(400 * MS);
            let asked = || questions(std::slice::from_ref(&other));
            let asked_before = asked();
            nodes.get_for(&of_nobody).unwrap_err();
            assert!(asked() > asked_before);
            new.now(|words| (words.slots, words.epoch) = (half_at(other.port(), gone), 2));
            is_silent.store(false, Ordering::SeqCst);
            drop(asks.join().unwrap().unwrap());
        });
        assert!(count(&other, "EVAL") > 0);
    });
}
