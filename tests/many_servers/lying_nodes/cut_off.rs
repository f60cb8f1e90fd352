//! Nodes that do not reach most of the masters, and say so: what they say of the slots counts only where no other node answers. And
//! masters that were silent, which say that they are well before they have heard of anything.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::Instant,
};

use leasehold::{Error, Nodes, Result, acquire_lock_with_timeout};

use super::{LIMIT, SLOTS, Said, acquire, half_at, nodes_of, patient_nodes_of, questions, slots};
use crate::common::{
    Fake, LONG, MS, Server,
    hold::comes_true,
    slack::slack,
    wait::{PATIENCE, comes_true_within},
};

/// Takes a lock of the slot of `a`.
fn acquire_one_more(nodes: &Nodes, number: usize) -> Result<bool> {
    let name = format!("{{lock:a}}{number}");
    let token = nodes.run(&name, |conn| {
        acquire_lock_with_timeout(conn, &name, MS, LONG)
    })?;
    Ok(token.is_some())
}

fn locks_on(server: &Server) -> usize {
    let size = redis::cmd("DBSIZE");
    size.query(&mut server.connection().unwrap()).unwrap()
}

fn cut_connections_to(server: &Server) {
    let mut kill = redis::cmd("CLIENT");
    kill.arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"]);
    let _: u64 = kill.query(&mut server.connection().unwrap()).unwrap();
}

/// A node that is cut off and names the master that was replaced, and one that is well and names the one that is it now.
struct Split {
    replaced: Server,
    now: Server,
    cut_off: Fake,
    well: Fake,
    /// The one that is well says nothing.
    is_silent: Arc<AtomicBool>,
}

impl Split {
    fn new() -> Self {
        let (replaced, now) = (Server::start().unwrap(), Server::start().unwrap());
        let (cut, says) = (Said::new(""), Said::new(""));
        let is_silent = Arc::new(AtomicBool::new(false));
        let (silent, said) = (Arc::clone(&is_silent), says.clone());
        let well = Fake::saying(move |command, before| {
            if silent.load(SeqCst) {
                return Vec::new();
            }
            said.answer(command, before)
        });
        cut.now(|words| {
            (words.slots, words.state) = (half_at(replaced.port(), well.port()), "fail");
        });
        says.now(|words| words.slots = half_at(now.port(), well.port()));
        Self {
            cut_off: cut.by_a_node(),
            replaced,
            now,
            well,
            is_silent,
        }
    }

    /// How many locks were granted by each.
    fn granted(&self) -> (usize, usize) {
        (locks_on(&self.replaced), locks_on(&self.now))
    }
}

/// A replica that is cut off counts its own elections, which nobody answers.
#[test]
fn who_is_cut_off_and_counts_further_than_the_others_has_nobody_refused() {
    let (gone, now) = (Server::start().unwrap(), Server::start().unwrap());
    let (cut_off, others) = (Said::new(""), Said::new(""));
    let (first, second) = (cut_off.by_a_node(), others.by_a_node());
    let half_at = |server: &Server| half_at(server.port(), second.port());
    cut_off.now(|words| {
        (words.slots, words.epoch, words.state) = (half_at(&gone), 9, "fail");
    });
    others.now(|words| (words.slots, words.epoch) = (half_at(&now), 7));
    drop(gone);
    let nodes = nodes_of(&[first.port(), second.port()]);
    let is_granted = (0..20).any(|_| {
        thread::sleep(120 * MS);
        matches!(acquire(&nodes), Ok(true))
    });
    assert!(is_granted);
}

/// The master that it names goes on granting, since it was not told either. Where nobody else answers, its word is all there is.
#[test]
fn who_is_cut_off_leads_nobody_to_who_was_replaced_while_another_answers() {
    let cut = Split::new();
    let nodes = patient_nodes_of(&[cut.cut_off.port(), cut.well.port()]);
    for number in 0..5 {
        let _ = acquire_one_more(&nodes, number);
        // One attempt meets the connection that was cut, and after a rest the nodes are asked.
        cut_connections_to(&cut.now);
        thread::sleep(120 * MS);
    }
    let (replaced, now) = cut.granted();
    assert!(replaced == 0 && now > 0, "{replaced} {now}");
    cut.is_silent.store(true, SeqCst);
    assert!(acquire_one_more(&nodes_of(&[cut.cut_off.port()]), 5).unwrap());
    assert_eq!(cut.granted(), (1, now));
}

#[test]
fn a_node_that_only_one_names_that_is_cut_off_is_asked_at_once() {
    let cut = Split::new();
    assert!(acquire(&patient_nodes_of(&[cut.cut_off.port()])).unwrap());
    assert_eq!(cut.granted(), (0, 1));
}

#[test]
fn when_the_others_answer_again_they_are_believed_within_seconds() {
    let cut = Split::new();
    cut.is_silent.store(true, SeqCst);
    let nodes = nodes_of(&[cut.well.port(), cut.cut_off.port()]);
    assert!(comes_true(|| matches!(
        acquire_one_more(&nodes, 0),
        Ok(true)
    )));
    let asked = || questions(std::slice::from_ref(&cut.well));
    let mut number = 0;
    let mut comes_true_while_acquiring = |condition: &dyn Fn() -> bool| {
        comes_true_within(3 * PATIENCE, || {
            thread::sleep(50 * MS);
            number += 1;
            let _ = acquire_one_more(&nodes, number);
            condition()
        })
    };
    // It is asked once more in vain, as the master of the other half.
    let before = asked();
    assert!(comes_true_while_acquiring(&|| asked() > before));
    cut.is_silent.store(false, SeqCst);
    // And goes on to count, unless it takes too long to answer, as on a busy machine.
    assert!((0..5).any(|_| {
        let granted = locks_on(&cut.now);
        assert!(comes_true_while_acquiring(&|| locks_on(&cut.now) > granted));
        let (replaced, before) = (locks_on(&cut.replaced), asked());
        assert!(comes_true_while_acquiring(&|| {
            cut_connections_to(&cut.now);
            asked() > before + 2
        }));
        locks_on(&cut.replaced) == replaced
    }));
}

#[test]
fn what_is_older_or_names_no_master_keeps_no_other_from_being_believed() {
    let (before, server) = (Server::start().unwrap(), Server::start().unwrap());
    let (with_a_hole, cut) = (Said::new(""), Said::new(""));
    let (first, second) = (with_a_hole.by_a_node(), cut.by_a_node());
    let half_of = |master: &Server| half_at(master.port(), second.port());
    let hole = slots(&[(8_192, SLOTS - 1, "127.0.0.1", second.port())]);
    with_a_hole.now(|words| (words.slots, words.epoch) = (hole, 2));
    cut.now(|words| (words.slots, words.epoch) = (half_of(&before), 7));
    let nodes = nodes_of(&[first.port(), second.port()]);
    assert!(acquire(&nodes).unwrap());
    cut.now(|words| (words.slots, words.state) = (half_of(&server), "fail"));
    drop(before);
    let is_granted = |nodes: &Nodes| {
        let mut number = 0;
        comes_true(|| {
            thread::sleep(120 * MS);
            number += 1;
            matches!(acquire_one_more(nodes, number), Ok(true))
        })
    };
    assert!(is_granted(&nodes));
    // Of two that are cut off, the one that has counted further has lost sight of all masters.
    with_a_hole.now(|words| {
        words.slots = slots(&[(0, SLOTS - 1, "?", 1)]);
        (words.epoch, words.state) = (9, "fail");
    });
    assert!(is_granted(&nodes_of(&[first.port(), second.port()])));
}

/// As where a shard is down and the whole cluster refuses: there are no better answers, and who asks all for them asks for long.
#[test]
fn where_all_are_cut_off_a_few_are_asked() {
    let said = Said::new("-CLUSTERDOWN The cluster is down\r\n");
    let all: Vec<_> = (0..30).map(|_| said.by_a_node()).collect();
    said.now(|words| {
        (words.slots, words.state) = (half_at(all[0].port(), all[1].port()), "fail");
    });
    let ports: Vec<_> = all.iter().map(Fake::port).collect();
    let nodes = nodes_of(&ports);
    acquire(&nodes).unwrap_err();
    // Ten times a second at the most, and five each time.
    let most = 5 * (LIMIT.as_millis() as usize / 100 + 2);
    let asked = questions(&all);
    assert!(asked <= most, "{asked}");
}

/// It takes the connections of a call, so that the call has no time left to ask with.
#[test]
fn while_a_master_is_silent_the_others_are_asked_who_has_its_place() {
    let (silent, now) = (Fake::saying(|_, _| Vec::new()), Server::start().unwrap());
    let said = Said::new("-CLUSTERDOWN The cluster is down\r\n");
    let others: Vec<_> = (0..5).map(|_| said.by_a_node()).collect();
    let shards = |master: u16| half_at(master, others[0].port());
    said.now(|words| words.slots = shards(silent.port()));
    let ports: Vec<_> = others.iter().map(Fake::port).collect();
    let nodes = nodes_of(&ports);
    nodes.run("a", |_| Ok::<_, Error>(())).unwrap_err();
    said.now(|words| (words.slots, words.epoch) = (shards(now.port()), 2));
    let replaced = Instant::now();
    assert!(comes_true(|| matches!(acquire(&nodes), Ok(true))));
    // One attempt to connect.
    let took = replaced.elapsed();
    assert!(took < LIMIT + slack(), "{took:?}");
}
