//! The book's semaphore by hand: the commands of each function in its section 6.3.
//!
//! The semaphore is named `api` and has one permit. The times are those of a caller's clock, in the
//! unit that it counts in.

use crate::prelude::*;

/// The holders by time, the holders by number, and the last number.
pub(crate) const KEYS: &[&str] = &["api", "api:owner", "api:counter"];

/// A program with the book's functions, and its connection.
pub(crate) struct Caller {
    actor: &'static str,
    /// Its member of the sets.
    name: &'static str,
    conn: Connection,
}

impl Caller {
    /// The member is the actor's name up to a comma; the rest describes the actor.
    pub(crate) fn new(redis: &Redis, actor: &'static str) -> Result<Self> {
        let name = actor.split(',').next().unwrap_or(actor);
        let conn = redis.client()?;
        Ok(Self { actor, name, conn })
    }

    /// The basic semaphore: the caller adds itself, and has a permit if it is first by time.
    pub(crate) fn acquire(&mut self, scene: &mut Scene, now: u64, timeout: u64) -> Result<bool> {
        let name = self.name;
        let commands = [
            sweep(now, timeout),
            format!("ZADD api {now} {name}"),
            format!("ZRANK api {name}"),
        ];
        let replies = scene.transaction(self.actor, &mut self.conn, &commands)?;
        Ok(replies.last().is_some_and(|rank| rank.is_int(0)))
    }

    /// The fair semaphore, if no other caller comes in between.
    pub(crate) fn acquire_fair(
        &mut self,
        scene: &mut Scene,
        now: u64,
        timeout: u64,
    ) -> Result<bool> {
        let number = self.take_number(scene, now, timeout)?;
        self.enter(scene, now, number)
    }

    /// The first transaction of the fair semaphore.
    pub(crate) fn take_number(&mut self, scene: &mut Scene, now: u64, timeout: u64) -> Result<i64> {
        let commands = [
            sweep(now, timeout),
            "ZINTERSTORE api:owner 2 api:owner api WEIGHTS 1 0".to_owned(),
            "INCR api:counter".to_owned(),
        ];
        let replies = scene.transaction(self.actor, &mut self.conn, &commands)?;
        let number = replies.last().and_then(Reply::int);
        number.context("INCR answers a number")
    }

    /// The second one: the caller adds itself, and has a permit if it is first by number.
    pub(crate) fn enter(&mut self, scene: &mut Scene, now: u64, number: i64) -> Result<bool> {
        let name = self.name;
        let commands = [
            format!("ZADD api {now} {name}"),
            format!("ZADD api:owner {number} {name}"),
            format!("ZRANK api:owner {name}"),
        ];
        let replies = scene.transaction(self.actor, &mut self.conn, &commands)?;
        Ok(replies.last().is_some_and(|rank| rank.is_int(0)))
    }

    /// The third one, after a refusal. It is also the release: true if the caller still had the
    /// permit.
    pub(crate) fn leave(&mut self, scene: &mut Scene) -> Result<bool> {
        let name = self.name;
        let commands = [format!("ZREM api {name}"), format!("ZREM api:owner {name}")];
        let replies = scene.transaction(self.actor, &mut self.conn, &commands)?;
        Ok(replies.first().is_some_and(|removed| removed.is_int(1)))
    }

    /// The refresh: 0 means that the permit is still there, 1 that it was lost and the caller must
    /// leave.
    pub(crate) fn refresh(&mut self, scene: &mut Scene, now: u64) -> Result<Reply> {
        let name = self.name;
        scene.send(
            self.actor,
            &mut self.conn,
            &format!("ZADD api {now} {name}"),
        )
    }
}

/// Removes all permits that are as old as the caller's timeout.
fn sweep(now: u64, timeout: u64) -> String {
    format!("ZREMRANGEBYSCORE api -inf {}", now.saturating_sub(timeout))
}
