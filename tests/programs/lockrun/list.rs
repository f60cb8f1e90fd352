//! The list of held locks and their holders.

use std::collections::BTreeMap;

use leasehold::{Lease, Lock, Locks, Options, Owner};
use redis::Commands;
use serde_json::Value;

use crate::{
    common::{
        Server,
        cluster::{Cluster, Layout},
        hold::PATIENCE,
        resharding::{Resharding, send_key},
        wait::unless_halted,
    },
    lockrun::tool::{Ended, Tool, program},
};

fn list(url: &str, args: &str) -> Ended {
    let mut command = program();
    command.args(["--url", url, "--list"]);
    let ended = Tool::spawn(command.args(args.split_whitespace())).ends();
    assert_eq!(ended.code, 0, "{ended:?}");
    ended
}

/// The names and kinds in the list.
fn named(url: &str, args: &str) -> Vec<String> {
    let said = list(url, args).out;
    let mut lines = said.lines();
    let head = lines.next().unwrap_or("NAME");
    assert!(head.starts_with("NAME"), "{said}");
    let words = lines.map(|line| line.split_whitespace().take(2).collect::<Vec<_>>());
    words.map(|words| words.join(" ")).collect()
}

fn taken(lock: &Lock) -> Lease {
    lock.acquire(PATIENCE).unwrap()
}

fn locks(url: &str) -> Locks {
    let owner = Owner::new("somebody").unwrap();
    let options = Options::new().owner(owner).lease(PATIENCE * 10);
    Locks::connect(url).unwrap().with(options)
}

#[test]
fn list_shows_every_kind_of_lock_and_nothing_else() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let (url, mut conn) = (server.url(), server.connection().unwrap());
        let nothing = list(&url, "");
        let said = (&*nothing.out, &*nothing.err);
        assert_eq!(said, ("", "lockrun: no lock is held\n"));
        let locks = locks(&url);
        let all = [
            locks.lock("a"),
            locks.lock("b{tag}"),
            locks.reentrant("c"),
            locks.read("d"),
            locks.write("e"),
            locks.semaphore("f", 2),
            locks.semaphore("f", 2),
            locks.lock("g*h"),
        ];
        let _held: Vec<_> = all.iter().map(taken).collect();
        // The companion remains after a release, in both forms of its name.
        for name in ["free", "free{tag}"] {
            taken(&locks.lock(name)).release().unwrap();
        }
        let _: () = conn.rpush("lock:foreign", "something").unwrap();
        let _: () = conn.set("lock:free{tag}:done{id}", 1).unwrap();
        let _: () = conn.set("elsewhere", "somebody").unwrap();

        let kinds = [
            "a mutex",
            "b{tag} mutex",
            "c reentrant",
            "d reader",
            "e writer",
            "f semaphore",
            "f semaphore",
            "g*h mutex",
        ];
        assert_eq!(named(&url, ""), kinds);
        assert_eq!(named(&url, "c"), ["c reentrant"]);
        assert_eq!(named(&url, "g*"), ["g*h mutex"]);
        assert_eq!(named(&url, "*"), Vec::<String>::new());
        assert_eq!(named(&url, "--prefix else"), ["where mutex"]);
        let line = list(&url, "a").out;
        for text in ["somebody", "s ago", "  in 4"] {
            assert!(line.contains(text), "{text}: {line}");
        }

        let said = list(&url, "f --json").out;
        let told: Value = serde_json::from_str(&said).unwrap();
        assert_eq!(told["complete"], true);
        assert_eq!(told["locks"].as_array().unwrap().len(), 1);
        let holders = &told["locks"][0]["holders"];
        assert_eq!(holders.as_array().unwrap().len(), 2);
        assert_eq!(holders[0]["kind"], "semaphore");
        assert_eq!(holders[1]["owner"], "somebody");
        assert!(holders[1]["remaining_ms"].as_u64() > Some(0));
    });
}

#[test]
fn list_shows_the_locks_of_every_shard() {
    let cluster = Cluster::start().unwrap();
    let locks = locks(&cluster.url());
    let names: Vec<_> = (10..40).map(|name| format!("{name}")).collect();
    let _held: Vec<_> = names.iter().map(|name| taken(&locks.lock(name))).collect();
    let listed: Vec<_> = names.iter().map(|name| format!("{name} mutex")).collect();
    assert_eq!(named(&cluster.url(), ""), listed);
}

/// A shard is down, and a slot is open: one key of a lock has moved, and the other has not.
#[test]
fn list_goes_on_past_what_cannot_be_asked() {
    let mut cluster = Cluster::laid_out(Layout {
        node_timeout: 12 * PATIENCE,
        gated: false,
        bus_gated: false,
        settings: &["--cluster-require-full-coverage", "no"],
    })
    .unwrap();
    let locks = locks(&cluster.url());
    let names: Vec<_> = (10..40).map(|name| format!("{name}")).collect();
    let _held: Vec<_> = names.iter().map(|name| taken(&locks.lock(name))).collect();
    let master_of = |name: &str| cluster.master_of(&format!("lock:{name}")).unwrap();
    let masters: BTreeMap<_, _> = names.iter().map(|it| (it.clone(), master_of(it))).collect();
    let (open, _) = masters.iter().find(|(_, master)| **master == 0).unwrap();
    let slot = cluster.slot_of(&format!("lock:{open}")).unwrap();
    let mut moving = Resharding::new(&cluster, 0, 1).unwrap();
    moving.open(&[slot]).unwrap();
    let mut source = cluster.nodes[0].connection().unwrap();
    let companion = format!("{{lock:{open}}}:lease");
    send_key(&mut source, cluster.nodes[1].port(), &companion).unwrap();
    drop(moving);
    let dead = cluster.nodes[2].port();
    for node in [2, 5] {
        cluster.nodes[node].kill().unwrap();
    }

    let url = cluster.nodes[0].url().replace("redis:", "redis+cluster:");
    let asked = |args: &str| {
        let mut command = program();
        command.args(["--url", &url, "--list"]);
        Tool::spawn(command.args(args.split_whitespace())).ends_with(69)
    };
    let said = asked("");
    for (name, master) in &masters {
        let is_listed = said.out.contains(&format!("\n{name}  "));
        assert_eq!(is_listed, *master != 2 && name != open, "{name}: {said:?}");
    }
    let moves = format!("lockrun: cannot inspect `{open}`: the cluster is moving this key");
    assert!(said.err.contains(&moves), "{said:?}");
    assert!(said.err.contains(&format!("127.0.0.1:{dead}")), "{said:?}");
    assert!(!said.err.contains("URL"), "{said:?}");
    let told: Value = serde_json::from_str(&asked("--json").out).unwrap();
    assert_eq!(
        (&told["complete"], &told["exit_code"]),
        (&false.into(), &69.into())
    );
    assert_eq!(told["missing"].as_array().unwrap().len(), 2, "{told}");
}

#[test]
fn list_stops_at_its_limit_and_says_so() {
    let server = Server::start().unwrap();
    let mut conn = server.connection().unwrap();
    let keys: Vec<_> = (0..10_001).map(|at| (format!("lock:{at}"), "x")).collect();
    let _: () = conn.mset(&keys).unwrap();
    // On a busy machine this takes longer than other tests wait for an end.
    let listed = (program()
        .args(["--url", &server.url(), "--list", "--json"])
        .output())
    .unwrap();
    let told: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(told["complete"], false);
    assert!(told["locks"].as_array().unwrap().len() <= 10_000);
    let message = told["message"].as_str().unwrap();
    assert!(message.contains("the list is incomplete"), "{message}");
}

#[test]
fn list_takes_no_name() {
    for args in [["--name", "a"], ["--permits", "3"]] {
        let mut command = program();
        Tool::spawn(command.arg("--list=x").args(args)).ends_with(64);
    }
}

#[test]
fn an_unreachable_server_is_reported_in_json() {
    let mut command = program();
    command.args(["--url", "redis://127.0.0.1:1/", "--list", "--json"]);
    let ended = Tool::spawn(&mut command).ends();
    assert_eq!((ended.code, &*ended.err), (69, ""), "{ended:?}");
    let told: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(
        (&told["complete"], &told["exit_code"]),
        (&false.into(), &69.into())
    );
    assert!(told["message"].as_str().unwrap().contains("127.0.0.1:1"));
}
