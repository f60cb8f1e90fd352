//! Who waits for an answer of the nodes, and who does not.

use super::*;
use crate::connection::cluster::{
    layout::{Group, Node},
    slot::SLOTS,
};

/// A map by which one master has all slots, at an address where nobody listens.
fn known_map() -> Map {
    let address = Address::new("127.0.0.1", 1);
    let master = Node {
        id: "a".to_owned(),
        address: Some(address.clone()),
    };
    let group = Group {
        master,
        replicas: Vec::new(),
        slots: vec![0..=SLOTS - 1],
    };
    let client = Client::open("redis://127.0.0.1:1").unwrap();
    let map = Map::new(client, vec![address], None, Duration::from_secs(1));
    map.known.lock().believe(&vec![group], Some(1)).unwrap();
    map
}

/// Whether it does not wait for another thread: who waits does so each time, and a busy machine keeps a thread waiting now and then.
fn is_once_short(took: impl Fn() -> Duration) -> bool {
    (0..5).any(|_| took() < LOOK)
}

#[test]
fn while_another_thread_asks_what_is_in_doubt_one_goes_where_the_map_says() {
    let map = known_map();
    let shard = map.known_shard_of("key").unwrap();
    map.doubt_all();
    let another = map.asking.lock();
    let took = || {
        let began = Instant::now();
        let found = map.shard_of("key", Deadline::after(Duration::from_secs(5)));
        assert_eq!(found.unwrap(), shard);
        began.elapsed()
    };
    assert!(is_once_short(took));
    drop(another);
}

#[test]
fn nodes_that_were_asked_just_now_are_not_asked_again() {
    let map = known_map();
    map.doubt_all();
    let long = Deadline::after(Duration::from_secs(5));
    map.shard_of("key", long).unwrap();
    let asked = map.known.lock().asked;
    assert!(asked.is_some());
    map.shard_of("key", long).unwrap();
    assert_eq!(map.known.lock().asked, asked);
}

#[test]
fn who_has_lost_a_connection_does_not_wait_for_a_thread_that_asks_and_who_has_reached_nobody_does()
{
    let map = known_map();
    let shard = map.known_shard_of("key").unwrap();
    let another = map.asking.lock();
    let took = || {
        let began = Instant::now();
        map.look(shard, Deadline::after(Duration::from_secs(1)))
            .unwrap();
        began.elapsed()
    };
    map.doubt(shard);
    assert!(is_once_short(took));
    map.not_reached(shard);
    assert!(took() >= LOOK);
    drop(another);
    map.confirm(shard, 0);
    assert!(is_once_short(took));
}
