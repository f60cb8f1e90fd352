//! A state machine of several leases of one schedule, their batches, the server and its
//! notifications. Stateright explores every order of events: late replies, refusals, connections
//! that break before or after the server has executed a batch, commands that arrive long after
//! their time-out, deleted keys, a failover that loses renewals, hand-overs, renewals and releases
//! by the holders, and time.
//!
//! All decisions are made by production code: the [`Schedule`], and [`Outstanding`], which forbids
//! hand-overs. The machine models the threads and the server by their rules.
//!
//! [`Rule`] lists the rules. For each one a test shows that the exploration finds a violation
//! without it: otherwise the model would prove nothing.

use stateright::{Checker, HasDiscoveries, Model};

use super::super::*;
use crate::renewing::lease_state::Outstanding;
use state::Tick;

mod effects;
mod state;
mod steps;

const BELIEVED: &str =
    "no holder counts on a lease that has ended on the server, unless a report or look is pending";
const NOT_BY_THE_FORMER: &str = "no former holder renews a lease after a hand-over";
const TOLD_ONCE: &str = "an end is reported once, not too early, and to the current holder";
const GIVEN_BACK: &str = "a release is repeated until the server answers";
const ON_TIME: &str = "while the server answers, a lease is renewed after a third of its length";
const LOOKED_AT: &str =
    "while the server answers, a changed key is looked at within ten milliseconds";
const GOES_ON: &str = "a renewal extends a lease that would have ended";

/// The rules of the threads. With all of them no holder counts on a lease that it does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// A lease counts from before the question was sent.
    CountsFromBefore,
    /// A hand-over checks for outstanding commands first.
    AsksWhatIsOut,
    /// The next holder inherits the pending look, and takes no lease that is being renewed.
    KeepsLooks,
    /// A failover repeats the last renewals.
    Repeats,
    /// A notification of a key schedules a look at its leases.
    Looks,
    /// The renewal of a lease stops before its release.
    Stops,
    /// A release without a reply is sent again.
    GivesBackAgain,
    /// After a batch with replies the next one is sent as soon as it is due.
    RestsOnlyWhenBroken,
}

/// The limits of one exploration.
struct World {
    /// The rule that is off.
    without: Option<Rule>,
    /// The elapsed part of each lease at the start.
    begun: &'static [Tick],
    /// The length of a lease.
    lease: Tick,
    /// The last tick.
    last: Tick,
    /// Time passes only when there is nothing to do. Otherwise everything may be late.
    is_prompt: bool,
    /// The most times that each event may happen.
    refusals: u8,
    breaks: u8,
    deletions: u8,
    failovers: u8,
    hand_overs: u8,
    extensions: u8,
    releases: u8,
}

impl World {
    /// Two leases, renewed at every tick, in a world long enough to reach an end.
    const fn without(without: Option<Rule>) -> Self {
        Self {
            without,
            begun: &[0, 0],
            lease: 3,
            last: 4,
            is_prompt: false,
            refusals: 0,
            breaks: 0,
            deletions: 0,
            failovers: 0,
            hand_overs: 0,
            extensions: 0,
            releases: 0,
        }
    }

    /// Leases that converge on shared batches.
    const fn prompt() -> Self {
        Self {
            begun: &[0, 1, 2],
            lease: 6,
            last: 12,
            is_prompt: true,
            ..Self::without(None)
        }
    }

    fn has(&self, rule: Rule) -> bool {
        self.without != Some(rule)
    }
}

/// Explores every order of events, and asserts that no property is violated.
fn holds(world: World) {
    let checker = world.checker().threads(2).spawn_bfs().join();
    checker.assert_properties();
}

/// Asserts that the exploration finds this violation without the rule, and not with it.
fn is_found(wrong: &'static str, rule: Rule, world: fn(World) -> World) {
    let found = HasDiscoveries::AnyOf([wrong].into());
    let checker = world(World::without(Some(rule))).checker().threads(2);
    let checker = checker.finish_when(found).spawn_bfs().join();
    checker.assert_any_discovery(wrong);
    holds(world(World::without(None)));
}

#[test]
fn no_lease_is_trusted_too_long_however_late_replies_are() {
    holds(World {
        refusals: 1,
        ..World::without(None)
    });
}

#[test]
fn no_lease_is_trusted_too_long_after_a_broken_connection() {
    holds(World {
        breaks: 1,
        ..World::without(None)
    });
}

#[test]
fn no_lease_is_trusted_too_long_after_a_deletion() {
    holds(World {
        deletions: 1,
        ..World::without(None)
    });
}

/// A refused renewal does not clear the look that it covered.
#[test]
fn the_next_holder_learns_of_a_change_even_after_a_refusal() {
    holds(World {
        lease: 6,
        refusals: 1,
        deletions: 1,
        hand_overs: 1,
        ..World::without(None)
    });
}

#[test]
fn a_failover_does_not_harm_the_next_holder_even_after_a_refusal() {
    holds(World {
        lease: 6,
        refusals: 1,
        failovers: 1,
        hand_overs: 1,
        ..World::without(None)
    });
}

#[test]
fn a_release_without_a_reply_is_sent_again() {
    holds(World {
        releases: 1,
        breaks: 1,
        ..World::without(None)
    });
}

#[test]
fn holders_that_renew_trust_no_lease_too_long() {
    holds(World {
        extensions: 1,
        breaks: 1,
        ..World::without(None)
    });
}

#[test]
fn no_lease_is_trusted_too_long_when_everything_happens() {
    for (deletions, failovers) in [(1, 0), (0, 1)] {
        holds(World {
            lease: 6,
            refusals: 1,
            breaks: 1,
            deletions,
            failovers,
            hand_overs: 1,
            ..World::without(None)
        });
    }
}

#[test]
fn no_lease_of_three_is_trusted_too_long() {
    for (refusals, hand_overs) in [(1, 0), (0, 1)] {
        holds(World {
            begun: &[0, 0, 0],
            refusals,
            breaks: 1,
            hand_overs,
            ..World::without(None)
        });
    }
}

#[test]
fn no_lease_is_trusted_too_long_after_two_broken_connections() {
    holds(World {
        begun: &[0, 1],
        lease: 6,
        last: 6,
        breaks: 2,
        hand_overs: 1,
        ..World::without(None)
    });
}

#[test]
fn three_leases_with_different_starts_are_renewed_on_time() {
    holds(World::prompt());
}

#[test]
fn a_changed_key_is_looked_at_soon_and_the_others_are_renewed_on_time() {
    holds(changes_and_hand_overs(None));
}

#[test]
#[ignore = "half a minute: `cargo test --release --manifest-path tests/models/Cargo.toml model -- --ignored`"]
fn a_changed_key_is_looked_at_soon_for_two_leases() {
    holds(World {
        last: 12,
        ..changes_and_hand_overs(None)
    });
}

/// A deletion, a refusal and a hand-over, in any order within a lease and a half.
const fn changes_and_hand_overs(without: Option<Rule>) -> World {
    World {
        without,
        last: 9,
        deletions: 1,
        refusals: 1,
        hand_overs: 1,
        ..World::prompt()
    }
}

#[test]
fn a_broken_look_rule_is_found_within_a_lease_and_a_half() {
    for (wrong, rule) in [
        (LOOKED_AT, Rule::Looks),
        (LOOKED_AT, Rule::KeepsLooks),
        (ON_TIME, Rule::RestsOnlyWhenBroken),
    ] {
        let found = HasDiscoveries::AnyOf([wrong].into());
        let checker = changes_and_hand_overs(Some(rule)).checker().threads(2);
        let checker = checker.finish_when(found).spawn_bfs().join();
        checker.assert_any_discovery(wrong);
    }
}

#[test]
fn a_failover_that_loses_renewals_costs_no_lease() {
    holds(World {
        failovers: 1,
        ..World::prompt()
    });
}

#[test]
fn counting_from_the_reply_is_found() {
    is_found(BELIEVED, Rule::CountsFromBefore, |world| world);
}

#[test]
fn a_hand_over_with_a_command_outstanding_is_found() {
    is_found(NOT_BY_THE_FORMER, Rule::AsksWhatIsOut, |world| World {
        breaks: 1,
        hand_overs: 1,
        ..world
    });
}

#[test]
fn a_hand_over_that_drops_a_look_is_found() {
    is_found(BELIEVED, Rule::KeepsLooks, |world| World {
        deletions: 1,
        hand_overs: 1,
        ..world
    });
}

#[test]
fn looking_instead_of_renewing_after_a_failover_is_found() {
    is_found(BELIEVED, Rule::Repeats, |world| World {
        lease: 9,
        last: 5,
        failovers: 1,
        ..world
    });
}

#[test]
fn ignoring_a_changed_key_is_found() {
    is_found(LOOKED_AT, Rule::Looks, |world| World {
        without: world.without,
        deletions: 1,
        ..World::prompt()
    });
}

#[test]
fn renewing_a_released_lease_is_found() {
    is_found(TOLD_ONCE, Rule::Stops, |world| World {
        releases: 1,
        ..world
    });
}

#[test]
fn forgetting_a_release_without_a_reply_is_found() {
    is_found(GIVEN_BACK, Rule::GivesBackAgain, |world| World {
        releases: 1,
        breaks: 1,
        ..world
    });
}

#[test]
fn resting_after_each_batch_is_found() {
    is_found(ON_TIME, Rule::RestsOnlyWhenBroken, |world| World {
        without: world.without,
        ..World::prompt()
    });
}
