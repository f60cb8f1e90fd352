//! Connections to the master of a key, on a real cluster.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use leasehold::{Error, Nodes, Pool, PooledConnection, acquire_lock_with_timeout, release_lock};

use crate::{
    clusters::patient_nodes,
    common::{
        Cluster, LONG, MS,
        hold::comes_true,
        wait::{TOO_SLOW, unless_halted},
    },
};

fn port_of(conn: &mut PooledConnection) -> u16 {
    let info: String = redis::cmd("INFO").arg("server").query(conn).unwrap();
    let port = info.lines().find_map(|line| line.strip_prefix("tcp_port:"));
    port.unwrap().parse().unwrap()
}

#[test]
fn a_connection_reaches_the_master_of_its_key_across_failovers() {
    let cluster = Cluster::planned(Duration::from_secs(3), false).unwrap();
    let nodes = patient_nodes(&cluster);
    // The ports that connections lead to, if most nodes agree with them.
    let masters = || -> Option<HashSet<u16>> {
        let leads = |n| {
            let name = format!("lock-{n}");
            let master = cluster.master_of(&format!("lock:{name}")).ok()?;
            let port = port_of(&mut nodes.get_for(&name).unwrap());
            (port == cluster.nodes[master].port()).then_some(port)
        };
        (0..12).map(leads).collect()
    };
    assert!(comes_true(
        || masters().is_some_and(|ports| ports.len() == 3)
    ));
    // Planned: no connection breaks, and the first one used learns the lock's new master.
    let held = |n: usize| {
        let name = format!("held-{n}");
        // Longer than repeated failovers.
        let lease = 3 * LONG;
        let acquire =
            |conn: &mut redis::Connection| acquire_lock_with_timeout(conn, &name, MS, lease);
        let token = nodes.run(&name, acquire).unwrap().unwrap();
        assert_eq!(nodes.run(&name, acquire).unwrap(), None);
        (name, token)
    };
    let tokens: Vec<_> = (0..6).map(held).collect();
    let now = cluster.fail_over(0).unwrap();
    for (name, token) in &tokens {
        assert!(
            nodes
                .run(name, |conn| release_lock(conn, name, token))
                .unwrap()
        );
    }
    // Most nodes may learn of it later than the client that the old master redirected.
    let port = cluster.nodes[now].port();
    assert!(comes_true(
        || masters().is_some_and(|ports| ports.contains(&port))
    ));
}

/// Without `run`: the pool learns from the error that its borrower got.
#[test]
fn after_one_refusal_the_next_connection_reaches_the_new_master() {
    unless_halted(|| {
        let cluster = Cluster::start().unwrap();
        let nodes = Nodes::connect(&cluster.url()).unwrap();
        let acquire = || {
            let mut conn = nodes.get_for("a").unwrap();
            let token = acquire_lock_with_timeout(&mut conn, "a", MS, LONG)?;
            release_lock(&mut conn, "a", &token.unwrap())
        };
        let asked = Instant::now();
        assert!(acquire().unwrap());
        cluster
            .fail_over(cluster.master_of("lock:a").unwrap())
            .unwrap();
        // A node that does not know of it yet would be believed if it were asked after the refusal.
        cluster.wait_until_whole().unwrap();
        // A map that is ten seconds old is fetched again, without any refusal.
        assert!(asked.elapsed() < Duration::from_secs(9), "{TOO_SLOW}");
        assert!(matches!(acquire(), Err(Error::Redis { .. })));
        // The nodes have a quarter of a second to name the master; then the old one is asked.
        let next = acquire();
        assert!(matches!(next, Ok(true)), "{TOO_SLOW}: {next:?}");
    });
}

#[test]
fn a_pool_of_a_cluster_is_refused_with_advice() {
    let refused = [
        Pool::connect("redis+cluster://127.0.0.1:7000").map(drop),
        // Without TLS the error names the feature.
        #[cfg(feature = "tls-rustls")]
        Pool::builder()
            .connect("rediss+cluster://127.0.0.1:7000")
            .map(drop),
    ];
    for refused in refused {
        let Err(Error::Invalid {
            argument: "url",
            reason,
            ..
        }) = refused
        else {
            panic!("{refused:?}");
        };
        assert!(
            reason.contains("`Nodes`") && reason.contains("`Locks`"),
            "{reason}"
        );
    }
}
