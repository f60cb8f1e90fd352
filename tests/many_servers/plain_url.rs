//! A URL for a single server that leads to one of several.

use leasehold::{
    Error, Locks, Pool, Result, acquire_lock_with_timeout, list_item, list_item_with_lock,
    list_item_with_market_lock,
    market::MarketLock,
    market::{MARKET, inventory_key, user_key},
    purchase_item, purchase_item_with_lock, purchase_item_with_market_lock, release_lock,
};
use redis::Commands;

use crate::common::{Cluster, LONG, MS, Server, cluster::shared};

#[test]
fn a_plain_url_of_a_cluster_says_which_url_to_use() {
    let cluster = shared();
    let url = cluster.nodes[0].url();
    let pool = || {
        let builder = Pool::builder().get_timeout(LONG).io_timeout(LONG);
        builder.connect_timeout(LONG).connect(&url).unwrap()
    };
    let (pool, locks) = (pool(), Locks::new(&pool()).unwrap());
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
        for part in ["another node of the cluster does", "redis+cluster:// URL"] {
            assert!(text.contains(part), "{text}");
        }
    }
}

/// On each node, so each function has a key of another node or keys in two of its slots.
#[test]
fn the_market_refuses_a_cluster_and_leaves_nothing_there() {
    let cluster = shared();
    for node in &cluster.nodes[..3] {
        let conn = &mut node.connection().unwrap();
        for user in 0..12 {
            // All that a trade needs of this node's keys.
            let _ = conn.sadd::<_, _, ()>(inventory_key(&user.to_string()), "sword");
            let _ = conn.hset::<_, _, _, ()>(user_key(&user.to_string()), "funds", 100);
            let _ = conn.zadd::<_, _, _, ()>(MARKET, format!("shield.{user}"), 5);
        }
    }
    let before = all_of_a_market_on(&cluster);
    for node in &cluster.nodes[..3] {
        let conn = &mut node.connection().unwrap();
        for n in 0..11 {
            let (user, other) = (n.to_string(), (n + 1).to_string());
            let refused = [
                list_item(conn, "sword", &user, 5).map(drop),
                list_item_with_lock(conn, "sword", &user, 5).map(drop),
                list_item_with_market_lock(conn, MarketLock::Article, "sword", &user, 5).map(drop),
                purchase_item(conn, &user, "shield", &other, 5).map(drop),
                purchase_item_with_lock(conn, &user, "shield", &other, Some(5)).map(drop),
                purchase_item_with_market_lock(
                    conn,
                    MarketLock::Article,
                    &user,
                    "shield",
                    &other,
                    None,
                )
                .map(drop),
            ];
            for (at, refused) in refused.into_iter().enumerate() {
                let text = format!("{:#}", anyhow::Error::from(refused.unwrap_err()));
                let parts = ["many slots of a Redis Cluster", "use a single server"];
                assert!(parts.iter().all(|part| text.contains(part)), "{at}: {text}");
            }
        }
    }
    assert_eq!(all_of_a_market_on(&cluster), before);
}

fn all_of_a_market_on(cluster: &Cluster) -> Vec<Vec<String>> {
    let keys_of = |node: &Server| {
        let conn = &mut node.connection().unwrap();
        let mut keys = Vec::<String>::new();
        for begins in [
            "market:",
            "users:",
            "inventory:",
            "lock:market",
            "{lock:market",
        ] {
            keys.extend(conn.keys::<_, Vec<String>>(format!("{begins}*")).unwrap());
        }
        keys.sort();
        let dump = |key: String| {
            let dumped = redis::cmd("DUMP").arg(&key).query::<Vec<u8>>(conn);
            let value = dumped.unwrap();
            format!("{key} {value:?}")
        };
        keys.into_iter().map(dump).collect()
    };
    cluster.nodes[..3].iter().map(keys_of).collect()
}
