//! A master, its replicas, sentinels and two processes that want one lock, as one state machine, of which stateright tries every order
//! of what can happen: writes that are not replicated yet, a promotion, a master that was replaced and goes on answering, sentinels that
//! lag behind, answers that are late or lost, time.
//!
//! What a process decides is the code of production: which sentinel it believes ([`Known`]), what an answer to an acquire means
//! ([`Attempts`]) and to a renewal ([`judged`], [`confirmed`], [`Schedule`]), what is given back again ([`GivenBack`]). Of the rest, which
//! are threads and connections, the machine has the rules, and of Redis what the scripts and `WAIT` do.
//!
//! [`Rule`] names the rules. For each a test shows that without it the exploration finds something wrong: otherwise it would prove
//! nothing.

use std::{sync::LazyLock, time::Duration};

use stateright::{Checker, HasDiscoveries, Model};

use crate::{
    locks::{
        Options,
        attempts::{Attempts, Outcome},
        given_back::{GivenBack, Release},
        settings::Settings,
    },
    renewing::{entry::RenewalOutcome, schedule::Schedule},
    server::{Answer, Reply, confirmed, judged},
};
use state::{LEASE, Tick};

mod client;
mod state;
mod steps;

const ALONE: &str = "the times in which two believe that they have the lock do not overlap";
const ALONE_WHERE_KNOWN: &str = "two who have heard of the master, and been answered by it, do not both believe that they have the lock";
const OF_THE_MASTER: &str = "nobody is granted a lock by a server that he knows to be replaced";
const CONFIRMED: &str = "nobody believes that he has the lock after the end that replicas have";
const NOT_LEFT: &str = "what was given back is not left on the master that was told of it again";
const GOES_ON: &str = "somebody has the lock on the last master";

/// What a process does, so that no failover harms it more than is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// An older configuration than one that was heard of is not believed.
    NothingOlder,
    /// A server is asked for its role before a connection to it is used.
    Role,
    /// No connection of before is used once another server is the master.
    NewConnections,
    /// All leases are looked at then, and renewed for what is left of them.
    LooksAtLeases,
    /// What was given back is given back there as well.
    GivesBackAgain,
    /// Also what got no answer at first, so that the watchdog has sent it until there was one.
    RemembersUnanswered,
    /// And what was granted without being confirmed, and was given up.
    RemembersGivenUp,
    /// What a server has granted before is asked of the new master.
    AsksAgain,
    /// A grant that too few replicas have is none.
    ConfirmedGrants,
    /// Nor does a renewal count that too few have.
    ConfirmedRenewals,
    /// A lease ends sooner here than on a server, by as much as clocks may differ.
    Skew,
    /// It counts from before the question was sent.
    CountsFromBefore,
    /// A release deletes what is ours, and nothing of anybody else.
    ReleasesOnlyOurs,
}

/// What is explored.
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is something that may happen"
)]
struct World {
    /// All rules but this are in force.
    without: Option<Rule>,
    /// How many servers there are, the master among them.
    servers: usize,
    /// How many replicas have to have a lock.
    replicas: u32,
    /// Whether the server that is promoted may lack the last writes.
    loses: bool,
    /// Whether a master that was replaced goes on until it is told. Otherwise it is dead.
    goes_on: bool,
    promotions: usize,
    /// How often a sentinel may name a master of before, and one that is none yet.
    lags: u8,
    early: bool,
    /// How often a connection breaks for no reason.
    cuts: u8,
    /// Whether the answers to the watchdog may be late. Others always may.
    late: bool,
    /// By how much the clock of each server is ahead.
    ahead: [Tick; 3],
    /// By how much a lease ends sooner.
    skew: Tick,
    /// How often each process wants the lock.
    wants: [u8; 2],
    renews: bool,
    /// When time ends.
    last: Tick,
    settings: Settings,
}

impl World {
    fn without(without: Option<Rule>) -> Self {
        Self {
            without,
            servers: 2,
            replicas: 0,
            loses: false,
            goes_on: false,
            promotions: 1,
            lags: 0,
            early: false,
            cuts: 0,
            late: false,
            ahead: [0; 3],
            skew: 0,
            wants: [1, 1],
            renews: true,
            last: 1,
            settings: Settings::default(),
        }
    }

    fn with(mut self) -> Self {
        let options = Options::new()
            .lease(state::length(LEASE))
            .clock_skew(state::length(self.skew))
            .replicas(self.replicas, Duration::from_millis(100))
            .fencing(false);
        self.settings = Settings::default().changed_by(options);
        self
    }

    fn has(&self, rule: Rule) -> bool {
        self.without != Some(rule)
    }
}

/// What is found wrong in all orders of everything.
fn wrong(world: World) -> Vec<&'static str> {
    let checker = world.with().checker().threads(2).spawn_bfs().join();
    checker.assert_any_discovery(GOES_ON);
    let all = [ALONE, ALONE_WHERE_KNOWN, OF_THE_MASTER, CONFIRMED, NOT_LEFT];
    let is_wrong = |name: &&'static str| checker.discovery(name).is_some();
    all.into_iter().filter(is_wrong).collect()
}

/// That this is wrong in some order.
fn finds(wrong: &'static str, world: World) {
    let checker = world.with().checker().threads(2);
    let found = HasDiscoveries::AnyOf([wrong].into());
    let checker = checker.finish_when(found).spawn_bfs().join();
    checker.assert_any_discovery(wrong);
}

/// That this is wrong is found without the rule, and is not with it.
fn is_found(wrong_then: &'static str, rule: Rule, world: fn(World) -> World) {
    finds(wrong_then, world(World::without(Some(rule))));
    assert!(!wrong(world(World::without(None))).contains(&wrong_then));
}

#[test]
#[ignore = "seconds: `cargo test --lib -- --ignored model failovers --skip larger_world`"]
fn a_failover_that_loses_nothing_harms_nobody() {
    let world = World {
        early: true,
        late: true,
        ..World::without(None)
    };
    assert!(wrong(world).is_empty());
}

/// What is promised of a lock that no replica has to have. If nothing at all were found, the model would be worth nothing.
#[test]
#[ignore = "seconds: `cargo test --lib -- --ignored model failovers --skip larger_world`"]
fn two_have_a_lock_whose_write_was_lost_until_both_have_heard_of_the_new_master() {
    for goes_on in [false, true] {
        let world = World {
            loses: true,
            goes_on,
            ..World::without(None)
        };
        assert_eq!(wrong(world), [ALONE]);
    }
}

#[test]
#[ignore = "seconds: `cargo test --lib -- --ignored model failovers --skip larger_world`"]
fn what_all_replicas_have_to_have_nobody_else_has_whatever_is_lost() {
    let world = World {
        loses: true,
        goes_on: true,
        replicas: 1,
        ..World::without(None)
    };
    assert!(wrong(world).is_empty());
}

#[test]
#[ignore = "seconds: `cargo test --lib -- --ignored model failovers --skip larger_world`"]
fn nor_where_a_server_is_ahead_by_as_much_as_was_said() {
    let world = World {
        loses: true,
        goes_on: true,
        replicas: 1,
        ahead: [0, 1, 0],
        skew: 1,
        ..World::without(None)
    };
    assert!(wrong(world).is_empty());
}

#[test]
#[ignore = "seconds: `cargo test --lib -- --ignored model failovers --skip larger_world`"]
fn one_replica_of_two_is_not_enough_and_both_are() {
    let world = |replicas| World {
        servers: 3,
        loses: true,
        replicas,
        last: 0,
        ..World::without(None)
    };
    finds(ALONE, world(1));
    assert!(wrong(world(2)).is_empty());
}

#[test]
#[ignore = "seconds: `cargo test --lib -- --ignored model failovers --skip larger_world`"]
fn an_answer_that_gets_lost_lets_nobody_in_and_leaves_nothing_that_was_given_back() {
    let world = World {
        loses: true,
        goes_on: true,
        replicas: 1,
        cuts: 1,
        last: 0,
        ..World::without(None)
    };
    assert!(wrong(world).is_empty());
}

#[test]
#[ignore = "seconds: `cargo test --lib -- --ignored model failovers --skip larger_world`"]
fn one_that_believes_an_older_configuration_is_found() {
    is_found(ALONE_WHERE_KNOWN, Rule::NothingOlder, |world| World {
        goes_on: true,
        lags: 1,
        last: 0,
        ..world
    });
}

#[test]
fn one_that_asks_no_server_for_its_role_is_found() {
    is_found(ALONE, Rule::Role, |world| World {
        early: true,
        last: 0,
        ..world
    });
}

#[test]
fn one_that_keeps_its_connections_is_found() {
    is_found(ALONE_WHERE_KNOWN, Rule::NewConnections, |world| World {
        goes_on: true,
        last: 0,
        ..world
    });
}

#[test]
fn one_that_does_not_look_at_its_leases_is_found() {
    is_found(ALONE_WHERE_KNOWN, Rule::LooksAtLeases, |world| World {
        goes_on: true,
        last: 0,
        ..world
    });
}

#[test]
fn one_that_gives_nothing_back_again_is_found() {
    is_found(NOT_LEFT, Rule::GivesBackAgain, |world| World {
        loses: true,
        last: 0,
        ..world
    });
}

#[test]
fn one_that_forgets_a_release_without_an_answer_is_found() {
    is_found(NOT_LEFT, Rule::RemembersUnanswered, |world| World {
        loses: true,
        cuts: 1,
        last: 0,
        ..world
    });
}

#[test]
fn one_that_forgets_what_it_has_given_up_is_found() {
    is_found(NOT_LEFT, Rule::RemembersGivenUp, |world| World {
        loses: true,
        replicas: 1,
        last: 0,
        ..world
    });
}

#[test]
#[ignore = "seconds: `cargo test --lib -- --ignored model failovers --skip larger_world`"]
fn one_that_takes_a_grant_of_the_master_before_is_found() {
    is_found(OF_THE_MASTER, Rule::AsksAgain, |world| World {
        goes_on: true,
        last: 0,
        ..world
    });
}

#[test]
#[ignore = "seconds: `cargo test --lib -- --ignored model failovers --skip larger_world`"]
fn one_that_takes_a_grant_for_a_confirmed_one_is_found() {
    is_found(ALONE, Rule::ConfirmedGrants, |world| World {
        loses: true,
        replicas: 1,
        last: 0,
        ..world
    });
}

#[test]
#[ignore = "seconds: `cargo test --lib -- --ignored model failovers --skip larger_world`"]
fn one_that_takes_a_renewal_for_a_confirmed_one_is_found() {
    is_found(CONFIRMED, Rule::ConfirmedRenewals, |world| World {
        promotions: 0,
        replicas: 1,
        last: 2,
        ..world
    });
}

#[test]
#[ignore = "seconds: `cargo test --lib -- --ignored model failovers --skip larger_world`"]
fn one_that_trusts_all_clocks_is_found() {
    is_found(ALONE, Rule::Skew, |world| World {
        ahead: [0, 1, 0],
        skew: 1,
        renews: false,
        ..world
    });
}

#[test]
fn one_that_counts_from_the_answer_is_found() {
    is_found(ALONE, Rule::CountsFromBefore, |world| World {
        promotions: 0,
        last: 2,
        ..world
    });
}

#[test]
#[ignore = "seconds: `cargo test --lib -- --ignored model failovers --skip larger_world`"]
fn one_that_releases_what_others_have_is_found() {
    is_found(ALONE_WHERE_KNOWN, Rule::ReleasesOnlyOurs, |world| World {
        loses: true,
        wants: [2, 1],
        last: 0,
        ..world
    });
}
