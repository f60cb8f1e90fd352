//! `Locks::probe` on groups of servers.

use leasehold::{Locks, Probe, Severity};
use redis::Commands;

use crate::common::{
    Cluster, Sentinels,
    cluster::shared,
    hold::comes_true,
    sentinels::{MASTER, Plan},
    tell,
};

fn probe(url: &str) -> Probe {
    Locks::connect(url).unwrap().probe().unwrap()
}

/// Asserts the severity, and that these words are in the finding.
#[track_caller]
fn says(probe: &Probe, topic: &str, severity: Severity, words: &str) {
    let found = probe.finding(topic).unwrap();
    assert_eq!(found.severity, severity, "{found:?}");
    assert!(found.found.contains(words), "{found:?}");
}

#[test]
fn the_master_the_sentinels_and_the_replicas() {
    let password = Some("sEcret");
    let mut group = Sentinels::planned(Plan {
        password,
        ..Plan::default()
    })
    .unwrap();
    let url = format!("{}?sentinel_password=sEcret", group.url());
    let found = probe(&url);
    assert!(found.locks_work(), "{found}");
    let master = format!("127.0.0.1:{}", group.servers[0].port());
    says(&found, "server", Severity::Good, &master);
    says(
        &found,
        "topology",
        Severity::Good,
        &format!("`{MASTER}`, by sentinels"),
    );
    says(
        &found,
        "sentinels",
        Severity::Good,
        "3 of 3 answer, 3 name this master",
    );
    says(&found, "replicas", Severity::Good, "1 confirmed");
    let text = format!("{found} {found:?}");
    assert!(!text.contains("sEcret"), "{text}");

    group.watching[1].kill().unwrap();
    says(
        &probe(&url),
        "sentinels",
        Severity::Limits,
        "2 of 3 answer, 2 name this master",
    );
    let first = format!("127.0.0.1:{}", group.watching[0].port());
    let one = format!("redis+sentinel://{first}/{MASTER}?sentinel_password=sEcret");
    says(&probe(&one), "sentinels", Severity::Limits, "1 of 1 answer");
}

#[test]
fn the_masters_of_a_cluster() {
    let cluster = shared();
    let mut found = probe(&cluster.url());
    // Other tests keep the replicas busy.
    assert!(comes_true(|| {
        found = probe(&cluster.url());
        found.to_string().contains("1 confirmed")
    }));
    assert!(found.locks_work(), "{found}");
    says(&found, "topology", Severity::Good, "a cluster of 3 shards");
    says(&found, "wake-ups", Severity::Good, "a message arrived");
    says(&found, "replicas", Severity::Good, "1 confirmed");
    for node in &cluster.nodes[..3] {
        let left: Vec<String> = node.connection().unwrap().keys("*probe:*-*-*").unwrap();
        assert_eq!(left, Vec::<String>::new());
    }

    let one_node = probe(&cluster.nodes[0].url());
    assert!(!one_node.locks_work());
    says(
        &one_node,
        "topology",
        Severity::Fails,
        "one node of a cluster",
    );
}

#[test]
fn a_missing_shard_and_unserved_slots() {
    let cluster = Cluster::start().unwrap();
    // Its nodes announce host names, have none, and are reached by their IP addresses.
    for node in &cluster.nodes {
        tell(
            &mut node.connection().unwrap(),
            "CONFIG SET cluster-preferred-endpoint-type hostname",
        );
    }
    let found = probe(&cluster.url());
    says(&found, "topology", Severity::Good, "3 shards");
    // The slot of the key that a client looks up to learn the shards.
    let slot = cluster.slot_of("").unwrap();
    let owner = cluster.master_of("").unwrap();
    let mut conn = cluster.nodes[owner].connection().unwrap();
    tell(&mut conn, &format!("CLUSTER DELSLOTS {slot}"));
    let other = (owner + 1) % 3;
    let url = format!("redis+cluster://127.0.0.1:{}", cluster.nodes[owner].port());
    let found = probe(&url);
    assert!(!found.locks_work());
    says(&found, "topology", Severity::Fails, "unserved slots: 1");

    let mut cluster = cluster;
    tell(&mut conn, &format!("CLUSTER ADDSLOTS {slot}"));
    for gone in [other, other + 3] {
        cluster.nodes[gone].kill().unwrap();
    }
    // Until then each node believes that all is well.
    for _ in 0..8 {
        let found = probe(&url);
        let topology = found.finding("topology").unwrap();
        let told = ["of which 2 answer", "unserved slots"];
        assert!(told.iter().any(|it| topology.found.contains(it)), "{found}");
        assert!(!found.locks_work());
    }
}

#[test]
fn the_worst_master_is_named() {
    let cluster = Cluster::start().unwrap();
    let worst = &cluster.nodes[1];
    for (setting, value) in [("maxmemory-policy", "allkeys-lru"), ("maxmemory", "100mb")] {
        let mut config = redis::cmd("CONFIG");
        config.arg("SET").arg(setting).arg(value);
        config.exec(&mut worst.connection().unwrap()).unwrap();
    }
    let found = probe(&cluster.url());
    says(&found, "memory", Severity::Limits, "allkeys-lru");
    let expected = format!(", at 127.0.0.1:{}", worst.port());
    says(&found, "memory", Severity::Limits, &expected);
    assert!(!found.finding("scripts").unwrap().found.contains(" at "));
}
