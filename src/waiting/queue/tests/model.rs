//! The queues of a process, the waiters' connection, the listener and the server as one state
//! machine: stateright explores every order of its events. The queues are the production code; the
//! connections and the server follow the rules of `server/` and of Redis' tracking.
//!
//! The promise: no thread sleeps while its lock, or a permit of it, is free. When nothing more
//! happens by itself (no command, reply, notification or near moment), a lock with a waiter is
//! held, or all of its permits. The threads that ask at a time share a write, whose commands are
//! executed, and whose replies are received, in any order. A release, a waiter that gives up, the
//! end of a lease and a new waiter do not happen by themselves: none of them has to.
//!
//! [`Rules`] has the current rules, and variants that were once in force or might have been. For
//! each variant a test shows that the exploration finds the sleeping waiter. Otherwise the
//! exploration would prove nothing.

use stateright::{Checker, Model};

use crate::waiting::queue::*;
use state::Lock;

mod state;
mod steps;

const NOBODY_SLEEPS: &str = "nobody sleeps beside a free lock";

/// A rule: a head that is granted the lock passes its wake-up on, or does not.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PassesOn {
    Yes,
    /// The wake-up vanishes with the head.
    No,
}

/// A rule: who informs the heads that the waiters' connection, with its notifications, is lost.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LossIsTold {
    /// The thread or the heartbeat that notices it.
    ByWhoeverFindsOut,
    /// The heartbeat, or else the thread that opens the next connection.
    ByWhoeverOpensTheNext,
}

/// A rule: the head is chosen and woken in one step, or in two.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wakes {
    InOneStep,
    /// The head may have left between the two steps.
    InTwoSteps,
}

/// A rule: what a grant says about the permits that are left, or does not.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GrantSays {
    HowManyAreFree,
    Nothing,
}

#[derive(Clone, Copy)]
struct Rules {
    passes_on: PassesOn,
    grant_says: GrantSays,
    loss_is_told: LossIsTold,
    wakes: Wakes,
}

const IN_FORCE: Rules = Rules {
    passes_on: PassesOn::Yes,
    grant_says: GrantSays::HowManyAreFree,
    loss_is_told: LossIsTold::ByWhoeverFindsOut,
    wakes: Wakes::InOneStep,
};

/// The scope of an exploration.
struct World {
    rules: Rules,
    /// The lock that each thread wants.
    wants: &'static [Lock],
    /// The number of permits of each lock.
    permits: u32,
    /// The first threads, this many, may give up.
    givers_up: usize,
    /// The number of times that each event may happen.
    deletions: u8,
    shared_losses: u8,
    listener_losses: u8,
    hand_overs: u8,
}

impl World {
    const fn of(wants: &'static [Lock], rules: Rules) -> Self {
        Self {
            rules,
            wants,
            permits: 1,
            givers_up: 1,
            deletions: 1,
            shared_losses: 0,
            listener_losses: 0,
            hand_overs: 0,
        }
    }
}

/// Explores every order of events.
fn holds(world: World) {
    world
        .checker()
        .threads(2)
        .spawn_dfs()
        .join()
        .assert_properties();
}

/// Checks that a sleeping waiter is found, and because of this rule alone.
fn is_found(rules: Rules, world: fn(Rules) -> World) {
    let checker = world(rules).checker().spawn_bfs().join();
    checker.assert_any_discovery(NOBODY_SLEEPS);
    holds(world(IN_FORCE));
}

#[test]
fn no_waiter_sleeps_beside_a_free_lock_after_deletions() {
    holds(World {
        givers_up: 2,
        deletions: 2,
        hand_overs: 2,
        ..World::of(&[0, 0, 0], IN_FORCE)
    });
}

#[test]
fn no_waiter_sleeps_beside_a_free_lock_after_lost_connections() {
    holds(World {
        shared_losses: 1,
        listener_losses: 1,
        ..World::of(&[0, 1], IN_FORCE)
    });
}

#[test]
fn no_waiter_sleeps_beside_a_free_permit() {
    holds(World {
        permits: 2,
        ..World::of(&[0, 0, 0], IN_FORCE)
    });
    holds(World {
        permits: 2,
        shared_losses: 1,
        ..World::of(&[0, 0], IN_FORCE)
    });
}

#[test]
#[ignore = "half a minute: `cargo test --release --manifest-path tests/models/Cargo.toml model -- --ignored`"]
fn no_waiter_sleeps_beside_a_free_lock_in_a_larger_model() {
    holds(World {
        givers_up: 2,
        deletions: 2,
        shared_losses: 2,
        listener_losses: 1,
        hand_overs: 1,
        ..World::of(&[0, 0, 1], IN_FORCE)
    });
}

#[test]
fn the_model_finds_a_wake_up_lost_with_the_head() {
    let rules = Rules {
        passes_on: PassesOn::No,
        ..IN_FORCE
    };
    is_found(rules, |rules| World::of(&[0, 0], rules));
}

#[test]
fn the_model_finds_a_permit_that_a_grant_does_not_speak_of() {
    let rules = Rules {
        grant_says: GrantSays::Nothing,
        ..IN_FORCE
    };
    is_found(rules, |rules| World {
        permits: 2,
        ..World::of(&[0, 0], rules)
    });
}

#[test]
fn the_model_finds_a_lost_connection_reported_too_late() {
    let rules = Rules {
        loss_is_told: LossIsTold::ByWhoeverOpensTheNext,
        ..IN_FORCE
    };
    is_found(rules, |rules| World {
        shared_losses: 1,
        deletions: 0,
        ..World::of(&[0, 1], rules)
    });
}

#[test]
fn the_model_finds_a_head_woken_after_the_choice() {
    let rules = Rules {
        wakes: Wakes::InTwoSteps,
        ..IN_FORCE
    };
    is_found(rules, |rules| World::of(&[0, 0], rules));
}
