//! The two documents' programs and ours on a cluster: both go to the master of the key and exclude
//! each other there.

use std::{sync::Arc, time::Duration};

use leasehold::{
    Nodes, Owner, PooledConnection, Token,
    book::article::{
        one_hash,
        two_key::{self, Keys},
    },
    recipes::reentrant::{self, Release},
};
use redis::Connection;

use crate::{
    clusters::patient_nodes,
    common::{Cluster, Document, article, clock::millis, cluster::shared, hash_world::LEASES},
};

const LEASE: Duration = Duration::from_secs(10);

/// The cluster, and a hash tag for each of its shards.
fn cluster(begins: &str) -> (Arc<Cluster>, Nodes, [String; 3]) {
    let cluster = shared();
    let nodes = patient_nodes(&cluster);
    let tags = [0, 1, 2].map(|master| format!("{{{}}}", cluster.tag(master, begins).unwrap()));
    (cluster, nodes, tags)
}

/// The connection of a foreign program.
fn theirs(cluster: &Cluster, key: &str) -> Connection {
    cluster.nodes[cluster.master_of(key).unwrap()]
        .connection()
        .unwrap()
}

fn ours(nodes: &Nodes, key: &str) -> PooledConnection {
    nodes.get_for_key(key).unwrap()
}

#[test]
fn the_documents_reentrant_locks_and_ours_exclude_each_other_on_each_shard() {
    let (cluster, nodes, tags) = cluster("document");
    let owner = Owner::new("ours").unwrap();
    for tag in tags {
        let name = &format!("{tag}:job");
        let key = &format!("lock:{name}");
        let mut document = Document::new(theirs(&cluster, key), key);
        let token = &Token::random();
        let enter = || {
            nodes.run(name, |conn| {
                reentrant::try_acquire(conn, name, &owner, token, LEASE)
            })
        };
        let leave = || nodes.run(name, |conn| reentrant::release(conn, name, &owner, token));

        assert!(enter().unwrap().is_some());
        assert_eq!(document.acquire("theirs", "10").unwrap(), 0);
        assert_eq!(
            (document.release("theirs"), document.renew("theirs", 60)),
            (None, 0)
        );
        assert_eq!(leave().unwrap(), Release::Freed);

        assert_eq!(document.acquire("theirs", "10").unwrap(), 1);
        assert!(enter().unwrap().is_none());
        assert_eq!(leave().unwrap(), Release::NotHeld);
        assert_eq!(document.release("theirs"), Some(1));
        assert!(enter().unwrap().is_some());
    }
}

#[test]
fn the_articles_cluster_edition_and_ours_exclude_each_other_on_each_shard() {
    let (cluster, nodes, tags) = cluster("article");
    for tag in tags {
        let key = &format!("{tag}:prices");
        let (conn, them) = (&mut ours(&nodes, key), &mut theirs(&cluster, key));
        let (reader, writer) = (Token::random(), Token::random());
        let now = millis(them);
        assert!(article::one_hash::acquire(them, "read", key, now));
        assert!(!one_hash::acquire_write(conn, key, &writer, Duration::ZERO, &LEASES).unwrap());
        article::one_hash::release(them, "read", key, &now.to_string());
        assert!(one_hash::acquire_read(conn, key, &reader, Duration::ZERO, &LEASES).unwrap());
        assert!(!article::one_hash::acquire(them, "write", key, now));
        assert!(one_hash::release_read(conn, key, &reader, &LEASES).unwrap());

        assert!(article::one_hash::acquire(them, "write", key, now));
        assert!(!one_hash::acquire_read(conn, key, &reader, Duration::ZERO, &LEASES).unwrap());
        article::one_hash::release(them, "write", key, &now.to_string());
        assert!(one_hash::acquire_write(conn, key, &writer, Duration::ZERO, &LEASES).unwrap());
        assert!(!article::one_hash::acquire(them, "read", key, now));
        assert!(one_hash::release_write(conn, key, &writer, &LEASES).unwrap());
    }
}

/// There its two keys need a tag.
#[test]
fn the_articles_two_keys_and_ours_exclude_each_other_with_a_hash_tag() {
    let (cluster, nodes, tags) = cluster("two-keys");
    for tag in tags {
        let names = [&*format!("{tag}:readKey"), &*format!("{tag}:writeKey")];
        let keys = Keys::new(names[0], names[1]).unwrap();
        let (conn, them) = (&mut ours(&nodes, names[0]), &mut theirs(&cluster, names[0]));
        let (reader, writer) = (Token::random(), Token::random());
        assert!(article::two_key::write(them, names, 10));
        assert!(!two_key::acquire_read(conn, &keys, &reader, Duration::ZERO, LEASE).unwrap());
        redis::cmd("DEL").arg(names[1]).exec(them).unwrap();
        assert!(two_key::acquire_read(conn, &keys, &reader, Duration::ZERO, LEASE).unwrap());
        assert!(!article::two_key::write(them, names, 10));
        assert!(two_key::release_read(conn, &keys, &reader).unwrap());
        assert!(two_key::acquire_write(conn, &keys, &writer, Duration::ZERO, LEASE).unwrap());
        assert!(!article::two_key::read(them, names, 10));
        assert!(two_key::release_write(conn, &keys, &writer).unwrap());
    }
    // Without one they are on two nodes, or in two slots of one node.
    let keys = Keys::new("readKey", "writeKey").unwrap();
    let conn = &mut ours(&nodes, "readKey");
    let refused =
        two_key::acquire_read(conn, &keys, &Token::random(), Duration::ZERO, LEASE).unwrap_err();
    let text = format!("{:#}", anyhow::Error::from(refused));
    assert!(text.contains("in one slot"), "{text}");
}
