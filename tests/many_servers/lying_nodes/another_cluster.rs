//! A node of a cluster that says from some moment on that it belongs to another cluster: when it is believed.

use std::{
    thread,
    time::{Duration, Instant},
};

use leasehold::Nodes;

use super::{SLOTS, Said, acquire, nodes_of};
use crate::common::{Fake, MS, Server, slack::slack};

/// The replica at `asked` says that the master of all is at `port`, both by names that begin like this.
fn group(begins: &str, port: u16, asked: u16) -> String {
    let node = |port: u16, role: &str| {
        let id = format!("{begins}-{role}");
        format!(
            "*3\r\n$9\r\n127.0.0.1\r\n:{port}\r\n${}\r\n{id}\r\n",
            id.len()
        )
    };
    let (master, replica) = (node(port, "master"), node(asked, "replica"));
    format!("*1\r\n*4\r\n:0\r\n:{}\r\n{master}{replica}", SLOTS - 1)
}

/// What a node says of its cluster, whose names begin with "old", and of another, whose names begin with "new"; and who has been granted a
/// lock by the first.
struct Bench {
    before: Server,
    now: Server,
    said: Said,
    node: Fake,
    nodes: Nodes,
}

impl Bench {
    fn new() -> Self {
        let (before, now) = (Server::start().unwrap(), Server::start().unwrap());
        let said = Said::new("");
        let node = said.by_a_node();
        let slots = group("old", before.port(), node.port());
        said.now(|words| words.slots = slots);
        let nodes = nodes_of(&[node.port()]);
        assert!(acquire(&nodes).unwrap());
        Self {
            before,
            now,
            said,
            node,
            nodes,
        }
    }

    /// From now on.
    fn says_the_other_cluster(&self) {
        let slots = group("new", self.now.port(), self.node.port());
        self.said.now(|words| words.slots = slots);
    }
}

/// Its count of configurations begins anew, and so do the names of its nodes. For ten seconds it may be a stranger at the address of a
/// node that has died, while the others of the known cluster are silent.
#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long:: --skip larger_world"]
fn another_cluster_at_the_same_addresses_is_believed_after_a_while_and_one_elsewhere_is_not() {
    let (before, now) = (Server::start().unwrap(), Server::start().unwrap());
    let said = Said::new("");
    let node = said.by_a_node();
    let (other, elsewhere) = (Said::new(""), Server::start().unwrap());
    let seed = other.by_a_node();
    let of = |begins: &str, server: &Server| group(begins, server.port(), node.port());
    said.now(|words| (words.slots, words.epoch) = (of("old", &before), 7));
    other.now(|words| words.slots = group("else", elsewhere.port(), seed.port()));
    // It is of no cluster, and knows of nobody.
    let alone = Said::new("").by_a_node();
    let nodes = nodes_of(&[alone.port(), node.port(), seed.port()]);
    assert!(acquire(&nodes).unwrap());
    said.now(|words| (words.slots, words.epoch) = (of("new", &now), 1));
    let mut kill = redis::cmd("CLIENT");
    kill.arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"]);
    let _: u64 = kill.query(&mut before.connection().unwrap()).unwrap();
    drop(before);
    let began = Instant::now();
    let moved = (0..200).any(|_| {
        thread::sleep(120 * MS);
        matches!(acquire(&nodes), Ok(true))
    });
    assert!(moved && began.elapsed() > 10_000 * MS);
    for (server, count) in [(&now, 1), (&elsewhere, 0)] {
        let keys = redis::cmd("DBSIZE");
        let found: usize = keys.query(&mut server.connection().unwrap()).unwrap();
        assert_eq!(found, count);
    }
}

/// Who goes on asking still knows his cluster, however long none of its nodes has answered.
#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long:: --skip larger_world"]
fn after_a_long_silence_another_cluster_is_not_believed_at_once() {
    let mut bench = Bench::new();
    bench.before.kill().unwrap();
    bench
        .said
        .now(|words| words.slots = String::from("-ERR not now\r\n"));
    let ask_for = |time: Duration| {
        let began = Instant::now();
        while began.elapsed() < time {
            assert!(acquire(&bench.nodes).is_err());
            thread::sleep(120 * MS);
        }
    };
    ask_for(21_000 * MS);
    bench.says_the_other_cluster();
    ask_for(5_000 * MS);
}

/// Whoever has not asked for so long knows no more of his cluster than one who comes now.
#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long:: --skip larger_world"]
fn who_has_not_asked_for_long_believes_another_cluster_at_once() {
    let mut bench = Bench::new();
    bench.before.kill().unwrap();
    bench.says_the_other_cluster();
    thread::sleep(21_000 * MS);
    let asked = Instant::now();
    let is_granted = (0..5).any(|_| {
        let answer = acquire(&bench.nodes);
        thread::sleep(120 * MS);
        matches!(answer, Ok(true))
    });
    let took = asked.elapsed();
    assert!(is_granted && took < 2_000 * MS + slack(), "{took:?}");
}
