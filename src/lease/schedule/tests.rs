//! The schedule against a world in which time passes only here, and the server answers whatever it likes.

use proptest::prelude::*;

use super::*;
use world::{Event, MS, Mood, World, terms};

mod world;

#[test]
fn those_due_first_go_first() {
    let (mut schedule, start) = (Schedule::default(), Instant::now());
    let ending_in = |ms: u32| Terms {
        end: Some(start + MS * (ms + 200)),
        ..terms(300)
    };
    for (name, due) in [("c", 30), ("a", 10), ("b", 20)] {
        schedule.keep(name, ending_in(due), start);
    }
    assert_eq!(schedule.due_at(), Some(start + MS * 10));
    assert!(schedule.take(start + MS * 9).turns.is_empty());
    let names: Vec<_> = schedule
        .take(start + MS * 10)
        .turns
        .iter()
        .map(|turn| turn.what)
        .collect();
    assert_eq!(names, ["a", "b", "c"]);
}

#[test]
fn a_forgotten_script_is_sent_again_at_once_and_a_refused_renewal_soon() {
    let (mut schedule, start) = (Schedule::default(), Instant::now());
    let id = schedule.keep((), terms(3_000), start);
    assert_eq!(schedule.take(start).turns.len(), 1);
    assert_eq!(schedule.answered(id, Answer::Forgotten, start), None);
    for pause in [10, 20, 40, 80, 160, 320, 500, 500] {
        let now = schedule.due_at().unwrap();
        assert_eq!(schedule.take(now).turns.len(), 1);
        schedule.answered(id, Answer::Refused, now);
        assert_eq!(schedule.due_at(), Some(now + MS * pause));
    }
}

fn keep(lease: std::ops::Range<u32>) -> impl Strategy<Value = Event> {
    let (max_hold, known_end) = (prop::option::of(1_u32..2_000), prop::option::of(0_u32..100));
    (lease, max_hold, known_end, any::<bool>()).prop_map(|(lease, max_hold, known_end, alarm)| {
        Event::Keep {
            lease,
            max_hold,
            known_end,
            alarm,
        }
    })
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        3 => keep(5..600),
        1 => any::<prop::sample::Index>().prop_map(Event::Stop),
        4 => (0_u32..300).prop_map(Event::Pass),
    ];
    prop::collection::vec(event, 1..60)
}

fn moods() -> impl Strategy<Value = Vec<Mood>> {
    let mood = prop_oneof![
        8 => Just(Mood::Ours),
        1 => Just(Mood::NotOurs),
        1 => Just(Mood::Forgotten),
        1 => Just(Mood::Refused),
        1 => Just(Mood::Unanswered),
        2 => Just(Mood::Unreachable),
        1 => Just(Mood::StoppedMeanwhile),
    ];
    prop::collection::vec(mood, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(50))]

    /// Nothing is renewed that is stopped, lost or over; every end is told once; no end moves back.
    #[test]
    fn whatever_the_server_does(events in events(), moods in moods()) {
        let mut world = World::moody(moods);
        for event in &events {
            world.happen(event);
        }
        world.pass(MS * 700);
        prop_assert_eq!(world.schedule.len(), world.leases.iter().filter(|lease| !lease.gone).count());
    }

    #[test]
    fn none_is_starved_while_the_server_answers(events in events()) {
        let mut world = World::new(|| Mood::Ours);
        for event in &events {
            world.happen(event);
            world.pass(Duration::ZERO);
            for lease in world.leases.iter().filter(|lease| !lease.gone && lease.terms.cap.is_none()) {
                let Some(renewed) = lease.renewed else { continue };
                prop_assert!(world.now < renewed + lease.terms.third() + MS);
                prop_assert!(lease.terms.end > Some(world.now));
            }
        }
    }

    /// An outage costs only what runs out in it, and is felt out every few milliseconds until the last lease has ended.
    #[test]
    fn it_is_tried_until_the_end(lease in 30_u32..900, count in 1..150, outage in 1_u32..1_200, silent in any::<bool>()) {
        let mut world = World::new(|| Mood::Ours);
        for _ in 0..count {
            world.happen(&Event::Keep { lease, max_hold: None, known_end: None, alarm: false });
        }
        world.pass(MS * 5);
        world.moods = Box::new(move || if silent { Mood::Unanswered } else { Mood::Unreachable });
        let mark = world.attempts.len();
        world.pass(MS * outage);
        let attempts = world.attempts.split_off(mark);
        prop_assert!(attempts.windows(2).all(|pair| pair[1] <= pair[0] + MS * 10));
        if let Some(last) = attempts.last() {
            let end = world.leases[0].terms.end;
            prop_assert!(end.min(Some(world.now)) <= Some(*last + MS * 10));
        }
        world.moods = Box::new(|| Mood::Ours);
        world.pass(MS * 10);
        for lease in &world.leases {
            let stood = lease.terms.end > Some(world.now);
            prop_assert_eq!(lease.gone, !stood);
            prop_assert!(lease.gone || !lease.failed);
        }
    }

    /// ⌈N/100⌉ round trips a third, whenever the leases began.
    #[test]
    fn leases_come_to_share_their_round_trips(starts in prop::collection::vec(0_u32..100, 1..450)) {
        let (mut world, mut starts) = (World::new(|| Mood::Ours), starts);
        starts.sort_unstable();
        let (count, mut time) = (starts.len(), 0);
        for start in starts {
            world.pass(MS * (start - time));
            time = start;
            world.happen(&Event::Keep { lease: 300, max_hold: None, known_end: Some(99), alarm: false });
        }
        world.pass(MS * 300);
        let begun = world.now;
        world.pass(MS * 1_000);
        let batches: Vec<_> = world.attempts.into_iter().filter(|at| *at >= begun).collect();
        for first in &batches {
            let in_a_third = batches.iter().filter(|at| *at >= first && **at < *first + MS * 100).count();
            prop_assert!(in_a_third <= count.div_ceil(BATCH), "{} for {}", in_a_third, count);
        }
    }
}
