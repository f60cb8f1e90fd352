//! Who waits for an answer of the nodes, and who does not.

mod asked;

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
    map.not_reached(shard, 0);
    assert!(took() >= LOOK);
    drop(another);
    map.confirm(shard, 0);
    assert!(is_once_short(took));
}

#[test]
fn what_one_meets_who_connects_is_entered_of_the_master_where_he_was() {
    let map = known_map();
    let shard = map.known_shard_of("key").unwrap();
    let silent = || map.known.lock().silent_masters().len();
    map.not_reached(shard, 0);
    assert_eq!(silent(), 1);
    map.confirm(shard, 0);
    assert_eq!(silent(), 0);
    // Another master has taken over meanwhile.
    let another = Address::new("127.0.0.1", 2);
    let layout = layout_of(&[(&another, &[Address::new("127.0.0.1", 1)])]);
    map.known.lock().believe(&layout, Some(2)).unwrap();
    assert_eq!(map.place(shard).unwrap().epoch, 1);
    map.not_reached(shard, 0);
    assert_eq!(silent(), 0);
}

#[test]
fn a_connection_ends_the_silence_of_all_shards_that_lead_to_its_master() {
    let (one, other) = (Address::new("127.0.0.1", 1), Address::new("127.0.0.1", 2));
    let map = map_of(&layout_of(&[(&one, &[]), (&other, &[])]));
    let all_at_one = layout_of(&[(&one, &[])]);
    map.known.lock().believe(&all_at_one, Some(2)).unwrap();
    map.known.lock().was_silent(&one);
    assert_eq!(map.known.lock().silent_masters().len(), 2);
    let shard = map.known_shard_of("key").unwrap();
    map.confirm(shard, map.place(shard).unwrap().epoch);
    assert!(map.known.lock().silent_masters().is_empty());
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
fn a_master_in_question_is_asked_after_a_node_that_was_silent() {
    let at = |port| Address::new("a", port);
    let mut asking = Asking::default();
    asking.silent.insert(at(2), crate::time::now());
    let in_question = round::InQuestion {
        masters: vec![at(1)],
        other_names: vec![at(3)],
    };
    let all = vec![at(1), at(2), at(3), at(4)];
    let ports = asking.in_order(all, None, &in_question);
    let ports: Vec<_> = ports.iter().map(|at| at.port).collect();
    assert_eq!(ports, [4, 3, 2, 1]);
}
