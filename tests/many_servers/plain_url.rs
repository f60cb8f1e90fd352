//! A URL for one server that leads to one of several.

use leasehold::{Error, Locks, Pool, Result, acquire_lock_with_timeout, release_lock};

use crate::common::{Cluster, LONG, MS};

#[test]
fn a_plain_url_of_a_cluster_says_what_it_has_met_and_which_url_to_use() {
    let cluster = Cluster::start().unwrap();
    let url = cluster.nodes[0].url();
    let (pool, locks) = (Pool::connect(&url).unwrap(), Locks::connect(&url).unwrap());
    assert_ne!(cluster.master_of("lock:a").unwrap(), 0);
    let mut conn = pool.get().unwrap();
    let token = leasehold::Token::random();
    let answers: [Result<()>; 4] = [
        acquire_lock_with_timeout(&mut conn, "a", MS, LONG).map(drop),
        release_lock(&mut conn, "a", &token).map(drop),
        locks.lock("a").acquire(LONG).map(drop),
        locks.write("a").try_acquire().map(drop),
    ];
    for answer in answers {
        let error = answer.unwrap_err();
        assert!(matches!(error, Error::Redis { .. }), "{error:?}");
        let text = format!("{:#}", anyhow::Error::from(error));
        for part in ["one node of a Redis Cluster", "redis:// URL"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
