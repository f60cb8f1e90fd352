//! What is believed of answers of a cluster.

use super::*;

const HALF: u16 = SLOTS / 2;

fn node(name: &str) -> Node {
    let address = Some(Address::new(name, 1));
    Node {
        id: name.to_owned(),
        address,
    }
}

fn group(names: &[&str], slots: std::ops::Range<u16>) -> Group {
    Group {
        master: node(names[0]),
        replicas: names[1..].iter().copied().map(node).collect(),
        slots: vec![slots.start..=slots.end - 1],
    }
}

/// Two shards, at the configuration 5.
fn two() -> (Known, ShardId, ShardId) {
    let mut known = Known::nothing();
    assert_eq!(known.shard_of(0), None);
    let layout = vec![group(&["a", "b"], 0..HALF), group(&["c", "d"], HALF..SLOTS)];
    assert_eq!(known.believe(&layout, Some(5)), Ok(true));
    assert_eq!(known.believe(&layout, Some(5)), Ok(false));
    let (one, other) = (known.shard_of(0).unwrap(), known.shard_of(HALF).unwrap());
    assert_ne!(one, other);
    (known, one, other)
}

fn leads_to(known: &Known, id: ShardId) -> (&str, u64) {
    let shard = known.shard(id).unwrap();
    (&shard.address.host, shard.epoch.load(Ordering::SeqCst))
}

#[test]
fn a_replica_that_takes_over_is_another_address_of_the_same_shard() {
    let (mut known, one, other) = two();
    let layout = vec![group(&["c", "d"], HALF..SLOTS), group(&["b", "a"], 0..HALF)];
    assert_eq!(known.believe(&layout, Some(6)), Ok(true));
    assert_eq!(
        (known.shard_of(0), known.shard_of(HALF)),
        (Some(one), Some(other))
    );
    assert_eq!(
        (leads_to(&known, one), leads_to(&known, other)),
        (("b", 1), ("c", 0))
    );
    // And one that was not known before, with the former master for its replica.
    let layout = vec![
        group(&["new", "b"], 0..HALF),
        group(&["c", "d"], HALF..SLOTS),
    ];
    assert_eq!(known.believe(&layout, Some(7)), Ok(true));
    assert_eq!(
        (known.shard_of(0), leads_to(&known, one)),
        (Some(one), ("new", 2))
    );
}

#[test]
fn a_replica_that_changes_its_shard_takes_over_there() {
    let (mut known, one, other) = two();
    // `b` has gone over to `c`, and has taken its place.
    let layout = vec![group(&["b", "c", "d"], HALF..SLOTS), group(&["a"], 0..HALF)];
    assert_eq!(known.believe(&layout, Some(6)), Ok(true));
    assert_eq!(
        (known.shard_of(0), known.shard_of(HALF)),
        (Some(one), Some(other))
    );
    assert_eq!(
        (leads_to(&known, one), leads_to(&known, other)),
        (("a", 0), ("b", 1))
    );
}

#[test]
fn an_older_configuration_a_hole_and_an_unknown_address_are_not_believed() {
    let (mut known, one, _) = two();
    let whole = |names: &[&str]| vec![group(names, 0..SLOTS)];
    assert!(known.believe(&whole(&["b"]), Some(4)).is_err());
    assert!(
        known
            .believe(&vec![group(&["b"], 0..SLOTS - 1)], Some(9))
            .is_err()
    );
    assert!(known.believe(&Layout::new(), Some(9)).is_err());
    let mut nowhere = whole(&["b"]);
    nowhere[0].master.address = None;
    assert!(known.believe(&nowhere, Some(9)).is_err());
    assert_eq!(
        (known.shard_of(0), leads_to(&known, one)),
        (Some(one), ("a", 0))
    );
    // One that does not say how old it is, is.
    assert_eq!(known.believe(&whole(&["a", "b"]), None), Ok(true));
    assert!(known.believe(&whole(&["b"]), Some(4)).is_err());
}

#[test]
fn an_answer_with_a_hole_takes_nothing_away() {
    let (mut known, one, other) = two();
    // A replica has taken over, and of the other half nobody says anything.
    let half = vec![group(&["b", "a"], 0..HALF)];
    assert_eq!(known.believe_in_part(&half, Some(6)), Ok(true));
    assert_eq!(
        (known.shard_of(0), known.shard_of(HALF)),
        (Some(one), Some(other))
    );
    assert_eq!(
        (leads_to(&known, one), leads_to(&known, other)),
        (("b", 1), ("c", 0))
    );
    assert_eq!(known.believe_in_part(&half, Some(6)), Ok(false));
    assert!(known.believe_in_part(&half, Some(5)).is_err());
    assert!(known.believe_in_part(&Layout::new(), Some(6)).is_err());
    // Whose master is nowhere is another hole.
    let mut nowhere = vec![group(&["d"], HALF..SLOTS), group(&["a"], 0..1)];
    nowhere[0].master.address = None;
    assert_eq!(known.believe_in_part(&nowhere, Some(6)), Ok(true));
    assert_eq!(leads_to(&known, other), ("c", 0));
    assert!(
        known
            .believe_in_part(&nowhere[..1].to_vec(), Some(6))
            .is_err()
    );
    // What nobody has ever said of anybody stays open, until one has it.
    let mut known = Known::nothing();
    assert_eq!(known.believe_in_part(&half, Some(1)), Ok(true));
    assert!(known.shard_of(0).is_some() && known.shard_of(HALF).is_none());
    let all = vec![group(&["b", "a"], 0..HALF), group(&["c"], HALF..SLOTS)];
    assert_eq!(known.believe(&all, Some(1)), Ok(true));
    assert!(known.shard_of(HALF).is_some());
}

#[test]
fn an_answer_that_names_no_known_node_is_of_another_cluster() {
    let (mut known, one, _) = two();
    let another = vec![group(&["x", "y"], 0..SLOTS)];
    assert!(known.is_strange(&another) && !Known::nothing().is_strange(&another));
    for same in [vec![group(&["x", "b"], 0..SLOTS)], Layout::new()] {
        assert!(!known.is_strange(&same));
    }
    assert!(known.believe(&another, Some(1)).is_err(), "it is older");
    known.begin_anew();
    assert!(known.believe(&another, Some(1)).is_ok());
    assert_eq!(leads_to(&known, one), ("x", 1));
}

#[test]
fn a_move_corrects_its_one_slot_at_once() {
    let (mut known, one, other) = two();
    assert_eq!(known.moved(3, &Address::new("c", 1)), Some(other));
    assert_eq!(
        (known.shard_of(3), known.shard_of(4)),
        (Some(other), Some(one))
    );
    // It explains itself: nobody has to be asked.
    assert!(!known.is_in_doubt() && leads_to(&known, other) == ("c", 0));
    // To a replica: it has taken over.
    assert_eq!(known.moved(4, &Address::new("b", 1)), Some(one));
    assert_eq!(
        (known.shard_of(4), leads_to(&known, one)),
        (Some(one), ("b", 1))
    );
    assert!(known.is_in_doubt());
    assert_eq!(known.named, Some(Address::new("b", 1)));
    // To somebody of whom nothing is known.
    assert_eq!(known.moved(5, &Address::new("new", 1)), None);
    assert_eq!((known.shard_of(5), known.shard_of(6)), (None, Some(one)));
    assert_eq!(known.moved(SLOTS, &Address::new("c", 1)), Some(other));
}

#[test]
fn a_shard_without_slots_leads_to_who_has_got_them_and_back() {
    let (mut known, one, other) = two();
    let all = vec![group(&["c", "d"], 0..SLOTS)];
    assert_eq!(known.believe(&all, Some(6)), Ok(true));
    assert_eq!(
        (known.shard_of(0), known.shard_of(HALF)),
        (Some(other), Some(other))
    );
    assert_eq!(
        (leads_to(&known, one), leads_to(&known, other)),
        (("c", 1), ("c", 0))
    );
    assert_eq!(known.believe(&all, Some(6)), Ok(false));
    // It goes along when another one takes over there.
    assert_eq!(
        known.believe(&vec![group(&["d", "c"], 0..SLOTS)], Some(7)),
        Ok(true)
    );
    assert_eq!(
        (leads_to(&known, one), leads_to(&known, other)),
        (("d", 2), ("d", 1))
    );
    let again = vec![group(&["a", "b"], 0..1), group(&["d", "c"], 1..SLOTS)];
    assert_eq!(known.believe(&again, Some(8)), Ok(true));
    assert_eq!(
        (known.shard_of(0), leads_to(&known, one)),
        (Some(one), ("a", 3))
    );
}

#[test]
fn a_port_that_several_have_names_nobody() {
    let (known, ..) = two();
    assert_eq!((known.only_one_at(1), known.only_one_at(2)), (None, None));
    let mut known = Known::nothing();
    assert!(known.believe(&vec![group(&["a"], 0..SLOTS)], None).is_ok());
    assert_eq!(known.only_one_at(1), Some(Address::new("a", 1)));
}
