//! Cluster nodes that send impossible or wrong answers: a `MOVED` corrects them, after an error the
//! next node is asked, and no call exceeds its time limit.

mod held;
mod redirects;

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use leasehold::{Error, Locks, Nodes, Pool, PoolBuilder, Result, acquire_lock_with_timeout};
use parking_lot::Mutex;

use crate::common::{
    Fake, LONG, MS, SLACK, Server,
    server::free_port,
    wait::{TOO_SLOW, comes_true, unless_halted},
};

/// The time limit of a call.
const LIMIT: Duration = Duration::from_secs(2);
const SLOTS: u16 = 16_384;
/// A client in an endless loop gets another answer after this many, so the test ends.
const ENOUGH: usize = 2_000;
/// The slot of the lock `a`.
const SLOT: u16 = 6_035;

/// The answers of the nodes, which a test can change.
#[derive(Clone)]
struct Said(Arc<Mutex<Words>>);

struct Words {
    /// To `CLUSTER SLOTS`.
    slots: String,
    role: &'static str,
    /// To `SET`, if different.
    set: Option<&'static str>,
    /// To everything else.
    rest: String,
}

impl Said {
    fn new(rest: &str) -> Self {
        Self(Arc::new(Mutex::new(Words {
            slots: String::from("*0\r\n"),
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

/// The answer to `CLUSTER SLOTS`: first slot, last slot, and the master's host and port.
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

/// The half with the lock `a` is on the first port, the other half on the second.
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

/// Number of times that nodes were asked for the slot map.
fn questions(nodes: &[Fake]) -> usize {
    let asked = nodes.iter().flat_map(Fake::asked);
    asked.filter(|name| name == "CLUSTER SLOTS").count()
}

/// Two nodes with half of the slots each. `says` makes an answer from the other's port, for all
/// commands but a `SET` that `set` answers.
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

fn builder() -> PoolBuilder {
    Pool::builder()
        .get_timeout(LIMIT)
        .connect_timeout(LIMIT / 2)
        .io_timeout(LIMIT)
}

fn nodes_of(ports: &[u16]) -> Nodes {
    builder().connect_nodes(&url_of(ports)).unwrap()
}

/// For connections that open soon or not at all, and calls that may take long.
fn patient_builder() -> PoolBuilder {
    builder().get_timeout(LONG).io_timeout(LONG)
}

/// No counted attempt is skipped because of time limits.
fn patient_nodes_of(ports: &[u16]) -> Nodes {
    let builder = patient_builder().connect_timeout(LONG);
    builder.connect_nodes(&url_of(ports)).unwrap()
}

fn url_of(ports: &[u16]) -> String {
    let hosts = ports.iter().map(|port| format!("127.0.0.1:{port}"));
    format!("redis+cluster://{}", hosts.collect::<Vec<_>>().join(","))
}

fn acquire(nodes: &Nodes) -> Result<bool> {
    let token = nodes.run("a", |conn| acquire_lock_with_timeout(conn, "a", MS, LONG))?;
    Ok(token.is_some())
}

/// Acquires no lock and fails in time. Returns the error.
fn refused(nodes: &Nodes) -> Error {
    let asked = Instant::now();
    let error = acquire(nodes).unwrap_err();
    assert!(asked.elapsed() < LIMIT + SLACK, "{:?}", asked.elapsed());
    error
}

fn text(error: Error) -> String {
    format!("{:#}", anyhow::Error::from(error))
}

/// Number of commands that ask neither about the node nor about the cluster.
fn attempts(node: &Fake) -> usize {
    let asked = node.asked();
    let is_ours = |name: &&String| !["CLUSTER SLOTS", "INFO", "ROLE"].contains(&name.as_str());
    asked.iter().filter(is_ours).count()
}

#[test]
fn no_node_is_asked_for_a_lock_in_an_unserved_slot() {
    let half = |host: &'static str| (8_192, SLOTS - 1, host, 1);
    let hole = "serves the slot 6035 of `lock:a`";
    for (answer, why) in [
        (String::from("*0\r\n"), "knows no slots"),
        (slots(&[half("127.0.0.1")]), hole),
        (
            slots(&[
                (0, SLOT - 1, "127.0.0.1", 1),
                (SLOT + 1, SLOTS - 1, "127.0.0.1", 1),
            ]),
            hole,
        ),
        (slots(&[(0, 8_191, "?", 2), half("127.0.0.1")]), hole),
        (slots(&[(0, SLOTS - 1, "?", 1)]), hole),
        (
            String::from("-ERR This instance has cluster support disabled\r\n"),
            "disabled",
        ),
        (String::from("-CLUSTERDOWN The cluster is down\r\n"), "down"),
        (String::from("+OK\r\n"), "unexpected reply"),
        (String::from("?what\r\n"), ""),
        (slots(&[(0, SLOTS, "127.0.0.1", 1)]), "unexpected reply"),
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

#[test]
fn the_next_node_is_asked_after_a_useless_answer() {
    let (server, knows) = (Server::start().unwrap(), Said::new(""));
    knows.now(|words| words.slots = all_at(server.port()));
    let useless = ["*0\r\n", "?what\r\n", "-LOADING not yet\r\n"].map(|answer| {
        let said = Said::new("");
        said.now(|words| words.slots = answer.to_owned());
        said.by_a_node()
    });
    let knows = knows.by_a_node();
    let ports = useless.iter().chain([&knows]).map(Fake::port);
    let nodes = patient_nodes_of(&ports.collect::<Vec<_>>());
    assert!(acquire(&nodes).unwrap());
}

/// A call is refused, unless the next node answers before the call gets the error.
#[test]
fn after_an_error_the_next_node_is_asked() {
    let gone = free_port().unwrap();
    for wrong in [
        all_at(gone.number()),
        slots(&[(SLOT + 1, SLOTS - 1, "127.0.0.1", 1)]),
    ] {
        let server = Server::start().unwrap();
        let (believed, knows) = (Said::new(""), Said::new(""));
        believed.now(|words| words.slots = wrong.clone());
        knows.now(|words| words.slots = all_at(server.port()));
        let (first, second) = (believed.by_a_node(), knows.by_a_node());
        let ports = [first.port(), second.port()];
        let locks = Locks::on_nodes(&patient_nodes_of(&ports));
        drop(locks.lock("a").acquire(LONG).unwrap());
        let nodes = nodes_of(&ports);
        let is_held = || matches!(acquire(&nodes), Ok(true));
        assert!(is_held() || comes_true(is_held));
    }
}

/// A node with a wrong answer is asked again only after the others.
#[test]
fn a_node_named_only_by_moved_is_asked_next() {
    let server = Server::start().unwrap();
    let [old, older, new] = [(); 3].map(|()| Said::new(""));
    let [a, b, c] = [&old, &older, &new].map(Said::by_a_node);
    old.now(|words| {
        words.slots = all_at(a.port());
        words.rest = format!("-MOVED {SLOT} 127.0.0.1:{}\r\n", c.port());
    });
    older.now(|words| words.slots = all_at(a.port()));
    new.now(|words| words.slots = all_at(server.port()));
    let nodes = patient_nodes_of(&[a.port(), b.port()]);
    assert!(acquire(&nodes).unwrap());
    assert_eq!(questions(&[a, b, c]), 2);
}

#[test]
fn a_node_that_is_not_a_master_gets_no_connection() {
    let said = Said::new("+OK\r\n");
    let node = said.by_a_node();
    said.now(|words| (words.slots, words.role) = (all_at(node.port()), "slave"));
    let nodes = patient_builder()
        .connect_nodes(&url_of(&[node.port()]))
        .unwrap();
    let refused = text(refused(&nodes));
    assert!(refused.contains("is a replica"), "{refused}");
    assert_eq!(attempts(&node), 0);
    said.now(|words| words.role = "master");
    assert!(comes_true(|| matches!(acquire(&nodes), Ok(true))));
}

/// An attempt at the end of the connect limit says nothing new.
#[test]
fn a_nodes_refusal_is_reported_even_if_the_last_retry_is_too_late() {
    let said = Said::new("+OK\r\n");
    let says = said.clone();
    let node = Fake::saying(move |command, before| {
        if command == "INFO" && before > 0 {
            thread::sleep(LIMIT);
        }
        says.answer(command, before)
    });
    said.now(|words| (words.slots, words.role) = (all_at(node.port()), "slave"));
    let nodes = patient_builder()
        .connect_nodes(&url_of(&[node.port()]))
        .unwrap();
    let refused = text(refused(&nodes));
    assert!(refused.contains("is a replica"), "{refused}");
}

/// Each takes its share once.
#[test]
fn silent_nodes_stay_within_the_calls_deadline() {
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
        // A call that finds this has the nodes asked again, but does not wait for the two again.
        let down = || {
            let answer = redis::parse_redis_value(b"-CLUSTERDOWN no\r\n").unwrap();
            Err::<(), _>(Error::from(answer.extract_error().unwrap_err()))
        };
        let mut called = 0;
        let started = Instant::now();
        nodes.run("b", |_| (called += 1, down()).1).unwrap_err();
        assert!(started.elapsed() < LIMIT + SLACK && called > 3, "{called}");
        assert!(asked(&knows) > asked_before);
        for fake in &silent {
            // Two questions at first, and more if the node that knows was late, as on a busy
            // machine; with a wait each time there would be thirty.
            assert!(asked(fake) <= 14, "{:?}", fake.asked());
        }
    });
}

/// It occupies the connections of a call, so the call has no time left to ask.
#[test]
fn the_other_nodes_are_asked_about_a_silent_master() {
    let (silent, now) = (Fake::saying(|_, _| Vec::new()), Server::start().unwrap());
    let said = Said::new("-CLUSTERDOWN The cluster is down\r\n");
    let others: Vec<_> = (0..5).map(|_| said.by_a_node()).collect();
    let shards = |master: u16| half_at(master, others[0].port());
    said.now(|words| words.slots = shards(silent.port()));
    let ports: Vec<_> = others.iter().map(Fake::port).collect();
    let nodes = nodes_of(&ports);
    nodes.run("a", |_| Ok::<_, Error>(())).unwrap_err();
    said.now(|words| words.slots = shards(now.port()));
    let replaced = Instant::now();
    assert!(comes_true(|| matches!(acquire(&nodes), Ok(true))));
    // One attempt to connect.
    let took = replaced.elapsed();
    assert!(took < LIMIT + SLACK, "{took:?}");
}
