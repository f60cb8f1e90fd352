//! The common imports and constants of the lessons.

pub(crate) use std::{thread::sleep, time::Duration};

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

impl Scene {
    /// Prints whether an actor's call was granted.
    pub(crate) fn decided(&mut self, actor: &str, call: &str, is_granted: bool) -> Result<()> {
        let answer = if is_granted { "granted" } else { "refused" };
        self.tell(actor, &format!("{call}\n{answer}"))
    }

    /// Prints that an actor's call was granted, and calls the token after the actor from now on.
    pub(crate) fn gets(&mut self, actor: &str, call: &str, token: Option<Token>) -> Result<Token> {
        let token = token.with_context(|| format!("{actor} is refused"))?;
        self.knows(&token, actor);
        self.decided(actor, call, true)?;
        Ok(token)
    }
}

/// Returns a token that is printed as this owner's.
pub(crate) fn token_of(scene: &mut Scene, owner: &str) -> Token {
    let token = Token::random();
    scene.knows(&token, owner);
    token
}

/// Sends commands on a connection that breaks before the reply, and waits until the server has
/// executed them.
pub(crate) fn send_and_break(
    redis: &Redis,
    packed: &[u8],
    mut is_executed: impl FnMut(&mut Connection) -> Result<bool>,
) -> Result<()> {
    let (mut broken, mut looks) = (redis.client()?, redis.client()?);
    broken.send_packed_command(packed)?;
    drop(broken);
    while !is_executed(&mut looks)? {
        sleep(millis(1));
    }
    Ok(())
}
