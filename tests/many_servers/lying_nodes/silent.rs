//! A master that is silent while another takes its place, and does not hear of that when it goes on: what it grants then is no lock.

use std::{thread, time::Duration};

use leasehold::{Locks, Options};

use super::{Said, master_and_replica, patient_builder, patient_nodes_of, questions, url_of};
use crate::common::{
    Fake, MS,
    hold::comes_true,
    wait::{TOO_SLOW, unless_halted},
};

/// How long the master is silent, from the first call on, and when the second call comes.
const SILENCE: Duration = Duration::from_millis(600);
const LATE: Duration = Duration::from_millis(550);

fn count(node: &Fake, name: &str) -> usize {
    let asked = node.asked();
    asked.iter().filter(|it| it.starts_with(name)).count()
}

/// A master that is silent at the first of each of these commands, its replica, and what the replica says.
fn silent_at(commands: &'static [&'static str]) -> (Fake, Fake, Said) {
    let (old, new) = (Said::new(":1\r\n"), Said::new(":1\r\n"));
    let says = old.clone();
    let silent = Fake::saying(move |command, before| {
        if before == 0 && commands.contains(&command) {
            thread::sleep(SILENCE);
        }
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

/// The second call is answered soon: its thread alone does not see the silence.
#[test]
fn each_grant_of_a_master_that_was_silent_is_confirmed_by_the_one_that_others_name() {
    unless_halted(|| {
        let (silent, other, new) = silent_at(&["SET"]);
        let nodes = patient_nodes_of(&[silent.port(), other.port()]);
        // Each call has a connection that is open by then.
        drop([nodes.get_for("a"), nodes.get_for("a")]);
        let locks = Locks::on_nodes(&nodes).with(Options::new().fencing(false));
        let granted = |name| matches!(locks.lock(name).try_acquire(), Ok(Some(_)));
        thread::scope(|scope| {
            let early = scope.spawn(|| granted("early"));
            assert!(comes_true(|| count(&silent, "SET") == 1));
            new.now(|words| (words.slots, words.epoch) = (master_and_replica(&other, &silent), 2));
            thread::sleep(LATE);
            assert!(granted("late") && early.join().unwrap());
        });
        let attempts = (count(&silent, "SET"), count(&silent, "EVAL"));
        // The other has a part of a second to answer in; then the word of the silent one is all there is.
        let (is_confirmed, was_asked) = (count(&other, "EVAL") > 1, questions(&[other]) > 0);
        assert!(is_confirmed || was_asked, "{TOO_SLOW}: {attempts:?}");
        assert_eq!((attempts, is_confirmed), ((2, 0), true));
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
            let asks = scope.spawn(|| locks.lock("a").try_acquire());
            assert!(comes_true(|| count(&silent, "EVALSHA") == 1));
            new.now(|words| (words.slots, words.epoch) = (master_and_replica(&other, &silent), 2));
            assert!(asks.join().unwrap().unwrap().is_some());
        });
        let (is_confirmed, asked) = (count(&other, "EVAL") > 0, questions(&[other]));
        assert!(is_confirmed || asked > 1, "{TOO_SLOW}: {asked}");
        assert!(is_confirmed);
    });
}

/// The server was not asked in that time, so that it was not silent.
#[test]
fn a_try_that_is_lent_no_connection_is_no_silence() {
    unless_halted(|| {
        let said = Said::new(":1\r\n");
        let (master, replica) = (said.by_a_node(), said.by_a_node());
        said.now(|words| {
            words.slots = master_and_replica(&master, &replica);
            words.set = Some("+OK\r\n");
        });
        let url = url_of(&[master.port(), replica.port()]);
        let nodes = patient_builder().max_size(1).connect(&url).unwrap();
        let lent = nodes.get_for("a").unwrap();
        let locks = Locks::on_nodes(&nodes).with(Options::new().fencing(false));
        locks.lock("a").try_acquire().unwrap_err();
        thread::sleep(100 * MS);
        drop(lent);
        let lease = locks.lock("a").try_acquire().unwrap().unwrap();
        assert_eq!((count(&master, "SET"), count(&master, "EVAL")), (1, 0));
        drop(lease);
    });
}
