//! Nodes of a cluster that say of the slots what cannot be, or was: what is believed of it. Nobody is asked for a lock who may not
//! have it, and no call takes longer than it has.

mod another_cluster;
mod cut_off;
mod held;
mod redirects;

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use leasehold::{Error, Nodes, NodesBuilder, Result, acquire_lock_with_timeout};
use parking_lot::Mutex;

use crate::common::{
    Fake, LONG, MS, Server,
    slack::slack,
    wait::{TOO_SLOW, comes_true, unless_halted},
};

/// How long a call has.
const LIMIT: Duration = Duration::from_secs(2);
const SLOTS: u16 = 16_384;
/// Who goes round without end meets another answer after so many, so that the test ends.
const ENOUGH: usize = 2_000;
/// The slot of the lock `a`.
const SLOT: u16 = 6_035;

/// What the nodes say, to be changed.
#[derive(Clone)]
struct Said(Arc<Mutex<Words>>);

struct Words {
    /// To `CLUSTER SLOTS`.
    slots: String,
    epoch: u64,
    /// By `CLUSTER INFO`.
    state: &'static str,
    role: &'static str,
    /// To `SET`, if it is another one.
    set: Option<&'static str>,
    /// To everything else.
    rest: String,
}

impl Said {
    fn new(rest: &str) -> Self {
        Self(Arc::new(Mutex::new(Words {
            slots: String::from("*0\r\n"),
            epoch: 1,
            state: "ok",
            role: "master",
            set: None,
            rest: rest.to_owned(),
        })))
    }

    fn by_a_node(&self) -> Fake {
        let said = self.clone();
        Fake::saying(move |command, before| said.answer(command, before))
    }

    fn answer(&self, command: &str, before: usize) -> Vec<u8> {
        let said = self.0.lock();
        let bulk = |text: &str| format!("${}\r\n{text}\r\n", text.len());
        let answer = match command {
            _ if before > ENOUGH => String::from("-ERR enough\r\n"),
            "CLUSTER SLOTS" => said.slots.clone(),
            "CLUSTER INFO" => bulk(&format!(
                "cluster_state:{}\r\ncluster_current_epoch:{}\r\n",
                said.state, said.epoch
            )),
            "INFO" => bulk("redis_version:7.0.0\r\n"),
            "ROLE" => format!("*1\r\n{}", bulk(said.role)),
            "SET" => said.set.unwrap_or(&said.rest).to_owned(),
            _ => said.rest.clone(),
        };
        answer.into_bytes()
    }

    fn now(&self, change: impl FnOnce(&mut Words)) {
        change(&mut self.0.lock());
    }
}

/// The answer to `CLUSTER SLOTS`: the first and the last slot, and the host and port of the master.
fn slots(ranges: &[(u16, u16, &str, u16)]) -> String {
    let range = |(first, last, host, port): &(u16, u16, &str, u16)| {
        let (id, length) = (format!("id-of-{port}"), host.len());
        let id = format!("${}\r\n{id}\r\n", id.len());
        format!("*3\r\n:{first}\r\n:{last}\r\n*3\r\n${length}\r\n{host}\r\n:{port}\r\n{id}")
    };
    let ranges: Vec<_> = ranges.iter().map(range).collect();
    format!("*{}\r\n{}", ranges.len(), ranges.concat())
}

fn all_at(port: u16) -> String {
    slots(&[(0, SLOTS - 1, "127.0.0.1", port)])
}

/// The half with the lock `a` is at the first port, the other half at the second.
fn half_at(port: u16, other: u16) -> String {
    slots(&[
        (0, 8_191, "127.0.0.1", port),
        (8_192, SLOTS - 1, "127.0.0.1", other),
    ])
}

/// One master has all slots, and the other node is its replica.
fn master_and_replica_at(master: u16, replica: u16) -> String {
    let node = |port: u16| {
        let id = format!("id-of-{port}");
        let length = id.len();
        format!("*3\r\n$9\r\n127.0.0.1\r\n:{port}\r\n${length}\r\n{id}\r\n")
    };
    let (master, replica) = (node(master), node(replica));
    format!("*1\r\n*4\r\n:0\r\n:{}\r\n{master}{replica}", SLOTS - 1)
}

/// How often nodes were asked who serves what.
fn questions(nodes: &[Fake]) -> usize {
    let asked = nodes.iter().flat_map(Fake::asked);
    asked.filter(|name| name == "CLUSTER SLOTS").count()
}

/// Two nodes that have a half each, answer this to `SET`, and say this of the other's address to everything else.
fn halves(set: Option<&'static str>, says: impl Fn(u16) -> String) -> (Fake, Fake) {
    let (one, other) = (Said::new(""), Said::new(""));
    let (a, b) = (one.by_a_node(), other.by_a_node());
    let halves = half_at(a.port(), b.port());
    for (said, to) in [(&one, b.port()), (&other, a.port())] {
        said.now(|words| {
            (words.slots, words.set, words.rest) = (halves.clone(), set, says(to));
        });
    }
    (a, b)
}

fn builder() -> NodesBuilder {
    Nodes::builder()
        .get_timeout(LIMIT)
        .connect_timeout(LIMIT / 2)
        .io_timeout(LIMIT)
}

fn nodes_of(ports: &[u16]) -> Nodes {
    builder().connect(&url_of(ports)).unwrap()
}

/// For connections that are opened soon or not at all, and calls that may take long.
fn patient_builder() -> NodesBuilder {
    builder().get_timeout(LONG).io_timeout(LONG)
}

/// Of those that are counted, none is left out for want of time.
fn patient_nodes_of(ports: &[u16]) -> Nodes {
    let builder = patient_builder().connect_timeout(LONG);
    builder.connect(&url_of(ports)).unwrap()
}

fn url_of(ports: &[u16]) -> String {
    let hosts = ports.iter().map(|port| format!("127.0.0.1:{port}"));
    format!("redis+cluster://{}", hosts.collect::<Vec<_>>().join(","))
}

fn acquire(nodes: &Nodes) -> Result<bool> {
    let token = nodes.run("a", |conn| acquire_lock_with_timeout(conn, "a", MS, LONG))?;
    Ok(token.is_some())
}

/// Acquires no lock and fails in time. Says why.
fn refused(nodes: &Nodes) -> Error {
    let asked = Instant::now();
    let error = acquire(nodes).unwrap_err();
    assert!(asked.elapsed() < LIMIT + slack(), "{:?}", asked.elapsed());
    error
}

fn text(error: Error) -> String {
    format!("{:#}", anyhow::Error::from(error))
}

/// So many commands came that are neither a question of ours about the node nor about the cluster.
fn attempts(node: &Fake) -> usize {
    let asked = node.asked();
    let is_ours = |name: &&String| {
        !["CLUSTER SLOTS", "CLUSTER INFO", "INFO", "ROLE"].contains(&name.as_str())
    };
    asked.iter().filter(is_ours).count()
}

#[test]
fn where_a_map_leaves_the_slot_open_nobody_is_asked_for_a_lock() {
    let half = |host: &'static str| (8_192, SLOTS - 1, host, 1);
    let hole = "serves the slot 6035 of `lock:a`";
    for (answer, why) in [
        (String::from("*0\r\n"), "every slot"),
        (slots(&[half("127.0.0.1")]), hole),
        (
            slots(&[
                (0, SLOT - 1, "127.0.0.1", 1),
                (SLOT + 1, SLOTS - 1, "127.0.0.1", 1),
            ]),
            hole,
        ),
        (slots(&[(0, 8_191, "?", 2), half("127.0.0.1")]), hole),
        (slots(&[(0, SLOTS - 1, "?", 1)]), "where every master is"),
        (
            String::from("-ERR This instance has cluster support disabled\r\n"),
            "disabled",
        ),
        (String::from("-CLUSTERDOWN The cluster is down\r\n"), "down"),
        (String::from("+OK\r\n"), "no sense"),
        (String::from("?what\r\n"), ""),
        (slots(&[(0, SLOTS, "127.0.0.1", 1)]), "no sense"),
    ] {
        let said = Said::new("+OK\r\n");
        let node = said.by_a_node();
        said.now(|words| words.slots = answer.clone());
        let refused = text(refused(&nodes_of(&[node.port()])));
        assert!(refused.contains("no node of the cluster "), "{refused}");
        assert!(refused.contains(why), "{answer} {refused}");
        assert_eq!(attempts(&node), 0, "{answer}");
    }
}

/// A hole that one leaves, another fills.
#[test]
fn the_next_node_is_asked_when_one_cannot_be_believed() {
    let (server, empty, broken) = (Server::start().unwrap(), Said::new(""), Said::new(""));
    let (first, second) = (empty.by_a_node(), broken.by_a_node());
    // Like one that has just been added, and has heard of a part.
    empty.now(|words| words.slots = slots(&[(0, 8_191, "127.0.0.1", 1)]));
    broken.now(|words| words.slots = String::from("?what\r\n"));
    let knows = Said::new("");
    knows.now(|words| words.slots = all_at(server.port()));
    let third = knows.by_a_node();
    let nodes = patient_nodes_of(&[first.port(), second.port(), third.port()]);
    assert!(acquire(&nodes).unwrap());
}

#[test]
fn who_says_most_of_the_newest_configuration_is_believed_where_all_leave_holes() {
    let (server, stranger) = (Server::start().unwrap(), Server::start().unwrap());
    let said = [(); 3].map(|()| Said::new(""));
    let part = |last, server: &Server| slots(&[(0, last, "127.0.0.1", server.port())]);
    let [little, much, old] = &said;
    little.now(|words| (words.slots, words.epoch) = (part(SLOT, &stranger), 3));
    much.now(|words| (words.slots, words.epoch) = (part(SLOT + 1, &server), 3));
    old.now(|words| (words.slots, words.epoch) = (part(SLOTS - 2, &stranger), 2));
    let fakes = said.each_ref().map(Said::by_a_node);
    let ports: Vec<_> = fakes.iter().map(Fake::port).collect();
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let nodes = patient_nodes_of(&order.map(|at| ports[at]));
        acquire(&nodes).unwrap();
    }
    let count = |server: &Server| {
        let size = redis::cmd("DBSIZE");
        size.query::<usize>(&mut server.connection().unwrap())
            .unwrap()
    };
    assert_eq!((count(&server), count(&stranger)), (1, 0));
}

#[test]
fn an_older_configuration_is_never_believed() {
    let (new, old) = (Server::start().unwrap(), Server::start().unwrap());
    let said = Said::new("");
    let node = said.by_a_node();
    let half_at = |server: &Server| half_at(server.port(), node.port());
    said.now(|words| (words.slots, words.epoch) = (half_at(&new), 7));
    let nodes = nodes_of(&[node.port()]);
    assert!(acquire(&nodes).unwrap());
    // It has forgotten, and the connections to who has the lock are cut.
    said.now(|words| (words.slots, words.epoch) = (half_at(&old), 6));
    let mut kill = redis::cmd("CLIENT");
    kill.arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"]);
    let asked_before = node.asked().len();
    for _ in 0..3 {
        let _: u64 = kill.query(&mut new.connection().unwrap()).unwrap();
        // One attempt meets the connection that was cut, and after a rest the nodes are asked.
        thread::sleep(120 * MS);
        let _ = acquire(&nodes);
    }
    assert!(node.asked().len() > asked_before);
    assert!(!acquire(&nodes).unwrap());
    let keys: Vec<String> = redis::cmd("KEYS")
        .arg("*")
        .query(&mut old.connection().unwrap())
        .unwrap();
    assert!(keys.is_empty());
}

#[test]
fn a_node_that_is_no_master_gets_no_connection() {
    let said = Said::new("+OK\r\n");
    let node = said.by_a_node();
    said.now(|words| (words.slots, words.role) = (all_at(node.port()), "slave"));
    let nodes = patient_builder().connect(&url_of(&[node.port()])).unwrap();
    let refused = text(refused(&nodes));
    assert!(refused.contains("is no master: slave"), "{refused}");
    assert_eq!(attempts(&node), 0);
    said.now(|words| words.role = "master");
    assert!(comes_true(|| matches!(acquire(&nodes), Ok(true))));
}

/// A try at the end of the time that a connection may take says nothing new.
#[test]
fn what_a_node_said_is_told_though_the_last_try_is_too_late() {
    let said = Said::new("+OK\r\n");
    let says = said.clone();
    let node = Fake::saying(move |command, before| {
        if command == "INFO" && before > 0 {
            thread::sleep(LIMIT);
        }
        says.answer(command, before)
    });
    said.now(|words| (words.slots, words.role) = (all_at(node.port()), "slave"));
    let nodes = patient_builder().connect(&url_of(&[node.port()])).unwrap();
    let refused = text(refused(&nodes));
    assert!(refused.contains("is no master: slave"), "{refused}");
}

/// They take their parts once.
#[test]
fn silent_nodes_take_no_longer_than_the_call_has() {
    unless_halted(|| {
        let silent = [(); 3].map(|()| Fake::saying(|_, _| Vec::new()));
        let ports: Vec<_> = silent.iter().map(Fake::port).collect();
        let error = refused(&nodes_of(&ports));
        assert!(matches!(error, Error::Pool { .. }), "{error:?}");
        let server = Server::start().unwrap();
        let said = Said::new("");
        said.now(|words| words.slots = all_at(server.port()));
        let knows = said.by_a_node();
        let silent = [(); 2].map(|()| Fake::saying(|_, _| Vec::new()));
        let nodes = nodes_of(&[silent[0].port(), silent[1].port(), knows.port()]);
        let asked = |fake: &Fake| fake.asked().len();
        let first = acquire(&nodes);
        assert!(matches!(first, Ok(true)), "{TOO_SLOW}: {first:?}");
        let asked_before = asked(&knows);
        // Whoever meets this has the nodes asked again; the two are not waited for once more.
        let down = || {
            let answer = redis::parse_redis_value(b"-CLUSTERDOWN no\r\n").unwrap();
            Err::<(), _>(Error::from(answer.extract_error().unwrap_err()))
        };
        let mut called = 0;
        let started = Instant::now();
        nodes.run("b", |_| (called += 1, down()).1).unwrap_err();
        assert!(
            started.elapsed() < LIMIT + slack() && called > 3,
            "{called}"
        );
        assert!(asked(&knows) > asked_before);
        for fake in &silent {
            // Two questions at first, and again where the node that knows was late, as on a busy machine: thirty if each time.
            assert!(asked(fake) <= 14, "{:?}", fake.asked());
        }
    });
}
