//! Who waits for an answer of the nodes, and who does not.

use super::*;
use crate::connection::cluster::{
    layout::{Group, Node},
    slot::SLOTS,
};

/// A map by which one master has all slots, at an address where nobody listens.
fn known_map() -> Map {
    map_of(&layout_of(&[(&Address::new("127.0.0.1", 1), &[])]))
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
    let is_left_alone = || {
        map.doubt_all();
        let long = Deadline::after(Duration::from_secs(5));
        map.shard_of("key", long).unwrap();
        let asked = map.known.lock().asked;
        assert!(asked.is_some());
        map.shard_of("key", long).unwrap();
        map.known.lock().asked == asked
    };
    // On a busy machine it is not always just now.
    assert!((0..20).any(|_| is_left_alone()));
}

#[test]
fn who_has_lost_a_connection_does_not_wait_for_a_thread_that_asks() {
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
    drop(another);
}

#[test]
fn a_failed_connection_casts_doubt_on_the_master_that_was_there_and_on_no_later_one() {
    let map = known_map();
    let shard = map.known_shard_of("key").unwrap();
    let is_in_doubt = || map.known.lock().is_in_doubt();
    map.not_reached(shard, 0);
    assert!(is_in_doubt());
    map.confirm(shard, 0);
    assert!(!is_in_doubt());
    let another = Address::new("127.0.0.1", 2);
    let layout = layout_of(&[(&another, &[Address::new("127.0.0.1", 1)])]);
    map.known.lock().believe(&layout, Some(2)).unwrap();
    assert_eq!(map.place(shard).unwrap().epoch, 1);
    map.not_reached(shard, 0);
    assert!(!is_in_doubt());
}

/// Masters with as many slots each, and the replicas of each.
fn layout_of(shards: &[(&Address, &[Address])]) -> Vec<Group> {
    let node = |address: &Address| Node {
        id: address.port.to_string(),
        address: Some(address.clone()),
    };
    let each = SLOTS / u16::try_from(shards.len()).unwrap();
    let firsts = (0..).step_by(usize::from(each));
    let group = |((master, replicas), first): (&(&Address, &[Address]), u16)| Group {
        master: node(master),
        replicas: replicas.iter().map(node).collect(),
        slots: vec![first..=first + each - 1],
    };
    shards.iter().zip(firsts).map(group).collect()
}

/// A map by which the cluster is so, at the configuration 1.
fn map_of(layout: &Vec<Group>) -> Map {
    let client = Client::open("redis://127.0.0.1:1").unwrap();
    let map = Map::new(client, Vec::new(), None, Duration::from_secs(5));
    map.known.lock().believe(layout, Some(1)).unwrap();
    map
}

#[test]
fn a_node_that_was_silent_lately_is_asked_last() {
    let at = |port| Address::new("a", port);
    let mut asking = Asking::default();
    asking.silent.insert(at(2), crate::time::now());
    let all = vec![at(1), at(2), at(3)];
    let ports = asking.in_order(all, Some(&at(2)));
    let ports: Vec<_> = ports.iter().map(|at| at.port).collect();
    assert_eq!(ports, [1, 3, 2]);
}
