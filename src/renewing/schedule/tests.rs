//! Tests of the schedule in a world that controls the time and the server's replies.

use proptest::prelude::*;

use super::*;
use world::{Event, MS, Mood, World, terms};

mod known;
#[cfg(feature = "models")]
mod model;
mod orphans;
mod world;

#[test]
fn the_earliest_due_go_first() {
    let (mut schedule, start) = (Schedule::<_, ()>::default(), Instant::now());
    let ending_in = |ms: u32| Terms {
        end: Some(start + MS * (ms + 200)),
        ..terms(300)
    };
    for (name, due) in [("c", 30), ("a", 10), ("b", 20)] {
        schedule.keep(name, ending_in(due), start);
    }
    assert_eq!(schedule.due_at(), Some(start + MS * 10));
    assert!(schedule.take(start + MS * 9).questions.is_empty());
    let names: Vec<_> = schedule
        .take(start + MS * 10)
        .questions
        .iter()
        .map(|question| question.item)
        .collect();
    assert_eq!(names, ["a", "b", "c"]);
}

#[test]
fn a_lease_that_ends_later_than_its_length_is_renewed_after_a_third_of_it() {
    let (mut schedule, start) = (Schedule::<_, ()>::default(), Instant::now());
    let terms = Terms {
        end: Some(start + MS * 60_000),
        ..terms(300)
    };
    schedule.keep((), terms, start);
    assert_eq!(schedule.due_at(), Some(start + MS * 100));
}

#[test]
fn a_forgotten_script_is_sent_again_at_once_and_a_refused_renewal_soon() {
    let (mut schedule, start) = (Schedule::<_, ()>::default(), Instant::now());
    let id = schedule.keep((), terms(3_000), start);
    assert_eq!(schedule.take(start).questions.len(), 1);
    assert_eq!(schedule.answered(id, RenewalAnswer::Forgotten, start), None);
    for pause in [10, 20, 40, 80, 160, 320, 500, 500] {
        let now = schedule.due_at().unwrap();
        assert_eq!(schedule.take(now).questions.len(), 1);
        schedule.answered(id, RenewalAnswer::Refused, now);
        assert_eq!(schedule.due_at(), Some(now + MS * pause));
    }
}

#[test]
fn a_refused_release_does_not_delay_the_others() {
    let (mut schedule, start) = (Schedule::<(), _>::default(), Instant::now());
    schedule.abandon("refused", false, start);
    let refused = schedule.take(start).orphans.remove(0);
    schedule.was_released(refused, RenewalAnswer::Refused, start);
    schedule.abandon("new", false, start);
    assert_eq!(schedule.due_at(), Some(start));
    let names =
        |batch: &RenewalBatch<_, _>| batch.orphans.iter().map(|o| o.item).collect::<Vec<_>>();
    assert_eq!(names(&schedule.take(start)), ["new"]);
    assert_eq!(schedule.due_at(), Some(start + MS * 500));
    assert_eq!(names(&schedule.take(start + MS * 500)), ["refused"]);
    assert_eq!(schedule.due_at(), None);
}

#[test]
fn an_unanswered_check_is_repeated() {
    let (mut schedule, start) = (Schedule::<_, ()>::default(), Instant::now());
    let terms = Terms {
        end: Some(start + MS * 3_000),
        renews: false,
        look_at: Some(start),
        skew: Duration::ZERO,
        ..terms(3_000)
    };
    let id = schedule.keep((), terms, start);
    let pauses = [
        (RenewalAnswer::Unanswered, 0),
        (RenewalAnswer::Forgotten, 0),
    ];
    for (answer, pause) in pauses.into_iter().chain([(RenewalAnswer::Refused, 10)]) {
        let now = schedule.due_at().unwrap();
        assert_eq!(schedule.take(now).questions[0].ask, Ask::Look);
        schedule.answered(id, answer, now);
        assert_eq!(schedule.due_at(), Some(now + MS * pause), "{answer:?}");
    }
}

/// A new master may have missed the last renewal, the holder's own (longer) one or the watchdog's.
#[test]
fn after_a_failover_each_lease_is_renewed_for_at_least_the_time_left() {
    let (mut schedule, start) = (Schedule::<_, ()>::default(), Instant::now());
    let known = Terms {
        end: Some(start + MS * 3_000),
        skew: MS * 50,
        ..terms(3_000)
    };
    let kept = schedule.keep("kept", known, start);
    let only_runs_out = Terms {
        renews: false,
        ..known
    };
    let runs_out = schedule.keep("runs out", only_runs_out, start);
    let capped = Terms {
        cap: known.end,
        ..known
    };
    let capped = schedule.keep("capped", capped, start);
    let longer = schedule.keep("longer", known, start);
    schedule.extend(longer, start + MS * 9_000);
    let now = start + MS * 100;
    schedule.renew_all(now);
    let asked: Vec<_> = schedule.take(now).questions;
    let asks: Vec<_> = asked.iter().map(|question| question.ask).collect();
    assert_eq!(
        asks,
        [3_000, 2_950, 2_900, 8_950].map(|ms| Ask::Renew(MS * ms))
    );
    let ends = [3_050, 3_000, 3_000, 9_000].map(|ms| Some(RenewalOutcome::Held(start + MS * ms)));
    let answered = |id| schedule.answered(id, RenewalAnswer::Ours(now), now);
    assert_eq!([kept, runs_out, capped, longer].map(answered), ends);
    // After the failover the lease is renewed as before: after a third of it.
    assert_eq!(schedule.due_at(), Some(start + MS * 1_100));
}

/// The previous master may have answered the question that was in flight.
#[test]
fn a_failover_during_a_renewal_repeats_it_and_the_next_holder_inherits_that() {
    let (mut schedule, start) = (Schedule::<_, ()>::default(), Instant::now());
    let terms = Terms {
        end: Some(start + MS * 3_000),
        ..terms(3_000)
    };
    let first = schedule.keep("a", terms, start);
    let now = start + MS * 1_000;
    assert_eq!(schedule.take(now).questions[0].ask, Ask::Renew(MS * 3_000));
    // The renewal would reach the server during the next hold.
    assert_eq!(schedule.hand_over(first, "b", terms, now), None);
    schedule.renew_all(now);
    schedule.answered(first, RenewalAnswer::Ours(now), now);
    let terms = Terms {
        end: Some(start + MS * 4_000),
        ..terms
    };
    let second = schedule.hand_over(first, "b", terms, now).unwrap();
    assert_eq!(schedule.due_at(), Some(now + MS * 10));
    let asked = schedule.take(now + MS * 10).questions;
    assert_eq!(
        (asked[0].id, asked[0].ask),
        (second, Ask::Renew(MS * 3_000))
    );
}

/// Changes of a key by others must not keep us busy: a semaphore changes with each grant and
/// release of a permit.
#[test]
fn a_lease_rests_after_its_grant_and_between_checks() {
    let (mut schedule, start) = (Schedule::<_, ()>::default(), Instant::now());
    let terms = Terms {
        end: Some(start + MS * 3_000),
        ..terms(3_000)
    };
    let id = schedule.keep((), terms, start);
    let granted = start;
    schedule.look(id, granted);
    let start = granted + MS * 10;
    assert_eq!(
        schedule.due_at(),
        Some(start),
        "no question right after its grant"
    );
    assert_eq!(schedule.take(start).questions[0].ask, Ask::Look);
    schedule.look(id, start + MS * 2);
    schedule.answered(id, RenewalAnswer::Ours(start), start + MS * 3);
    assert_eq!(schedule.due_at(), Some(start + MS * 10));
    schedule.look(id, start + MS * 5);
    assert_eq!(schedule.due_at(), Some(start + MS * 10));
}

/// After a success, refusals start with a short pause again, and the lease joins batches early
/// again.
#[test]
fn an_answer_resets_the_count_of_refusals() {
    let (mut schedule, start) = (Schedule::<_, ()>::default(), Instant::now());
    let id = schedule.keep("refused", terms(3_000), start);
    for _ in 0..8 {
        let now = schedule.due_at().unwrap();
        schedule.take(now);
        schedule.answered(id, RenewalAnswer::Refused, now);
    }
    let now = schedule.due_at().unwrap();
    schedule.take(now);
    schedule.answered(id, RenewalAnswer::Ours(now), now);
    let soon = now + MS * 600;
    schedule.keep("due", terms(3_000), soon);
    let asked = schedule.take(soon).questions;
    assert_eq!(asked.len(), 2, "it joins the batch");
    schedule.answered(id, RenewalAnswer::Refused, soon);
    assert_eq!(schedule.due_at(), Some(soon + MS * 10));
}

#[test]
fn a_lease_with_unknown_expiry_is_renewed_and_not_checked() {
    let (mut schedule, start) = (Schedule::<_, ()>::default(), Instant::now());
    let id = schedule.keep((), terms(3_000), start);
    schedule.take(start);
    schedule.answered(id, RenewalAnswer::Refused, start);
    schedule.look(id, start);
    let now = schedule.due_at().unwrap();
    assert_eq!(schedule.take(now).questions[0].ask, Ask::Renew(MS * 3_000));
}

#[test]
fn the_next_holder_inherits_the_time_of_the_look() {
    let (mut schedule, start) = (Schedule::<_, ()>::default(), Instant::now());
    let terms = Terms {
        end: Some(start + MS * 3_000),
        ..terms(3_000)
    };
    let look_at = Some(start + MS * 20);
    let first = schedule.keep("a", Terms { look_at, ..terms }, start);
    let second = schedule.hand_over(first, "b", terms, start).unwrap();
    assert_eq!(schedule.due_at(), look_at);
    let looking = schedule.take(start + MS * 20).questions;
    assert_eq!((looking[0].id, looking[0].ask), (second, Ask::Look));
    // The reply does not apply to the next holder.
    let now = start + MS * 21;
    let third = schedule.hand_over(second, "c", terms, now).unwrap();
    schedule.answered(second, RenewalAnswer::Ours(start + MS * 20), now);
    let looking = schedule.take(now).questions;
    assert_eq!((looking[0].id, looking[0].ask), (third, Ask::Look));
}

/// A refused renewal does not clear the look that it covered.
#[test]
fn the_next_holder_is_looked_at_even_after_a_refused_renewal() {
    let (mut schedule, start) = (Schedule::<_, ()>::default(), Instant::now());
    let terms = Terms {
        end: Some(start + MS * 3_000),
        ..terms(3_000)
    };
    let first = schedule.keep("a", terms, start);
    let now = start + MS * 900;
    schedule.look(first, now);
    // The renewal is early, since the look needs a question anyway.
    assert_eq!(schedule.take(now).questions[0].ask, Ask::Renew(MS * 3_000));
    schedule.answered(first, RenewalAnswer::Refused, now);
    schedule.hand_over(first, "b", terms, now).unwrap();
    assert_eq!(schedule.due_at(), Some(now + MS * 10));
}

/// The look does not wait as long as the refused renewal.
#[test]
fn a_change_during_a_refused_renewal_is_looked_at_soon() {
    let (mut schedule, mut now) = (Schedule::<_, ()>::default(), Instant::now());
    let terms = Terms {
        end: Some(now + MS * 3_000),
        ..terms(3_000)
    };
    let id = schedule.keep((), terms, now);
    now += MS * 1_000;
    for _ in 0..5 {
        now = schedule.due_at().unwrap().max(now);
        schedule.look(id, now);
        schedule.take(now);
        schedule.answered(id, RenewalAnswer::Refused, now);
    }
    now = schedule.due_at().unwrap();
    schedule.take(now);
    schedule.look(id, now);
    schedule.answered(id, RenewalAnswer::Refused, now);
    assert_eq!(schedule.due_at(), Some(now + MS * 10));
}

/// The schedule must remove it at its end, so that it does not count as the holder later.
#[test]
fn a_lease_with_refused_renewals_ends_at_its_expiry() {
    let (mut schedule, start) = (Schedule::<_, ()>::default(), Instant::now());
    let terms = Terms {
        end: Some(start + MS * 3_000),
        ..terms(3_000)
    };
    let id = schedule.keep((), terms, start);
    let mut refusals = 0;
    while schedule.len() > 0 && refusals < 100 {
        let now = schedule.due_at().unwrap();
        assert!(
            now <= start + MS * 3_000,
            "due {:?} after it began",
            now - start
        );
        if schedule.take(now).over.is_empty() {
            schedule.answered(id, RenewalAnswer::Refused, now);
            refusals += 1;
        }
    }
    assert!(refusals > 5 && refusals < 100);
}

#[test]
fn holds_are_released_in_batches() {
    let (mut schedule, start) = (Schedule::<(), _>::default(), Instant::now());
    for orphan in 0..BATCH + 20 {
        schedule.abandon(orphan, false, start);
    }
    assert_eq!(schedule.take(start).orphans.len(), BATCH);
    assert_eq!(schedule.take(start).orphans.len(), 20);
}

#[test]
fn a_release_is_repeated_until_the_server_answers() {
    let (mut schedule, mut now) = (Schedule::<(), _>::default(), Instant::now());
    schedule.abandon((), false, now);
    for _ in 0..100 {
        let orphan = schedule.take(now).orphans.remove(0);
        schedule.was_released(orphan, RenewalAnswer::Unanswered, now);
        now += MS * 3_600_000;
    }
    let orphan = schedule.take(now).orphans.remove(0);
    schedule.was_released(orphan, RenewalAnswer::NotOurs, now);
    assert_eq!(schedule.due_at(), None);
}

#[test]
fn a_late_acquire_is_released_again_each_time_its_age_doubles() {
    let (mut schedule, start) = (Schedule::<(), _>::default(), Instant::now());
    schedule.abandon((), true, start);
    let mut asked = Vec::new();
    while let Some(due) = schedule.due_at() {
        let orphan = schedule.take(due).orphans.remove(0);
        schedule.was_released(orphan, RenewalAnswer::NotOurs, due);
        asked.push(due - start);
    }
    assert_eq!(asked[..4], [Duration::ZERO, MS * 10, MS * 20, MS * 40]);
    let (last, before) = (asked[asked.len() - 1], asked[asked.len() - 2]);
    assert!(before < LAST_DELIVERY && last >= LAST_DELIVERY);
    assert!(asked.len() < 20, "{asked:?}");
}

fn keep(lease: std::ops::Range<u32>) -> impl Strategy<Value = Event> {
    let (max_hold, known_end) = (prop::option::of(1_u32..2_000), prop::option::of(0_u32..100));
    let (renews, look) = (prop::bool::weighted(0.7), prop::option::of(0_u32..60));
    let terms = (lease, max_hold, known_end, renews, look, any::<bool>());
    terms.prop_map(
        |(lease, max_hold, known_end, renews, look, alarm)| Event::Keep {
            lease,
            max_hold,
            known_end,
            renews,
            look,
            alarm,
        },
    )
}

fn hand_over() -> impl Strategy<Value = Event> {
    let which = any::<prop::sample::Index>();
    let (max_hold, renews) = (prop::option::of(1_u32..2_000), prop::bool::weighted(0.7));
    let terms = (which, 5_u32..600, max_hold, renews, any::<bool>());
    terms.prop_map(|(which, lease, max_hold, renews, alarm)| Event::HandOver {
        which,
        lease,
        max_hold,
        renews,
        alarm,
    })
}

/// A lease as a watchdog keeps it: renewed at once, or with a known end.
fn kept(lease: u32, known_end: Option<u32>) -> Event {
    Event::Keep {
        lease,
        max_hold: None,
        known_end,
        renews: true,
        look: None,
        alarm: false,
    }
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let which = any::<prop::sample::Index>;
    let event = prop_oneof![
        3 => keep(5..600),
        1 => which().prop_map(Event::Stop),
        2 => hand_over(),
        2 => which().prop_map(Event::Look),
        1 => Just(Event::LookAtAll),
        1 => Just(Event::RenewAll),
        1 => (which(), 1_u32..900).prop_map(|(which, ms)| Event::Extend(which, ms)),
        1 => any::<bool>().prop_map(Event::Abandon),
        5 => (0_u32..300).prop_map(Event::Pass),
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
        1 => Just(Mood::ChangedMeanwhile),
        1 => Just(Mood::HandedOverMeanwhile),
        1 => (1_u32..900).prop_map(Mood::ExtendedMeanwhile),
        1 => (1_u32..100).prop_map(Mood::Late),
    ];
    prop::collection::vec(mood, 1..40)
}

/// Moods of a server that replies.
fn kind_moods() -> impl Strategy<Value = Vec<Mood>> {
    let mood = prop_oneof![4 => Just(Mood::Ours), 1 => Just(Mood::HandedOverMeanwhile)];
    prop::collection::vec(mood, 1..20)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(50))]

    /// No question is about a lease that is stopped, lost, over or handed over, and no look renews
    /// a lease. Every end is reported once. No end moves back or is later than the server's. No
    /// release is repeated too often.
    #[test]
    fn whatever_the_server_does(events in events(), moods in moods()) {
        let mut world = World::moody(moods);
        for event in &events {
            world.happen(event);
        }
        world.pass(MS * 700);
        prop_assert_eq!(world.schedule.len(), world.leases.iter().filter(|lease| !lease.gone).count());
        prop_assert_eq!(world.schedule.orphans.len(), world.orphans.left());
        world.moods = Box::new(|| Mood::Ours);
        world.pass(MS * 1_000);
        prop_assert_eq!(world.orphans.due(world.now), 0);
    }

    #[test]
    fn no_lease_starves_while_the_server_answers(events in events(), moods in kind_moods()) {
        let mut world = World::moody(moods);
        for event in &events {
            world.happen(event);
            world.pass(Duration::ZERO);
            prop_assert_eq!(world.orphans.due(world.now), 0);
            for lease in world.leases.iter().filter(|lease| !lease.gone) {
                prop_assert!(lease.looked_at_by().is_none_or(|by| world.now < by + MS));
            }
            for lease in world.leases.iter().filter(|lease| !lease.gone && lease.terms.cap.is_none()) {
                let Some(renewed) = lease.renewed else { continue };
                prop_assert!(world.now < renewed + lease.terms.third() + MS);
                prop_assert!(lease.terms.end > Some(world.now));
            }
        }
    }

    /// An outage loses only the leases that end in it, and attempts continue every few milliseconds
    /// until the last lease has ended.
    #[test]
    fn a_renewal_is_retried_until_the_end(lease in 30_u32..900, count in 1..150, outage in 1_u32..1_200, silent in any::<bool>()) {
        let mut world = World::new(|| Mood::Ours);
        for _ in 0..count {
            world.happen(&kept(lease, None));
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

    /// ⌈N/100⌉ round trips for each third of a lease, whenever the leases began.
    #[test]
    fn leases_come_to_share_round_trips(starts in prop::collection::vec(0_u32..100, 1..450)) {
        let (mut world, mut starts) = (World::new(|| Mood::Ours), starts);
        starts.sort_unstable();
        let (count, mut time) = (starts.len(), 0);
        for start in starts {
            world.pass(MS * (start - time));
            time = start;
            world.happen(&kept(300, Some(99)));
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
