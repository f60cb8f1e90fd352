//! The common imports and constants of the lessons.

pub(crate) use std::time::Duration;

pub(crate) use anyhow::{Context, Result};
pub(crate) use leasehold::{
    Error, Token,
    redis::{self, Connection},
};

pub(crate) use crate::{
    shared::{
        Redis,
        history::Happened,
        scene::{Reply, Scene},
    },
    trap::Trap,
};

/// The lock of most lessons: the key `lock:trap`.
pub(crate) const NAME: &str = "trap";
pub(crate) const NO_WAIT: Duration = Duration::ZERO;

pub(crate) const fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

pub(crate) const fn secs(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// The result of an attempt, as a word.
pub(crate) fn granted<T>(answer: Option<&T>) -> &'static str {
    if answer.is_some() {
        "granted"
    } else {
        "refused"
    }
}

/// Prints the result of an actor's attempt.
pub(crate) fn decided<T>(
    scene: &mut Scene,
    actor: &str,
    call: &str,
    answer: Option<&T>,
) -> Result<()> {
    scene.tell(actor, &format!("{call}\n{}", granted(answer)))
}

/// Returns a token that is printed as this owner's.
pub(crate) fn token_of(scene: &mut Scene, owner: &str) -> Token {
    let token = Token::random();
    scene.knows(&token, owner);
    token
}
