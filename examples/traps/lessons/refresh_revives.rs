//! The refresh of a lost permit reports that the permit is still there.
//!
//! `ZADD` answers 1 if it has added the member, and the book reads that as a loss. But by then the
//! member is there. If the answer is lost and the program asks again, the answer is 0: the permit
//! is still there. So is the answer to every later refresh.

use leasehold::{acquire_fair_semaphore, refresh_fair_semaphore};

use super::book_semaphore::{Caller, KEYS};
use crate::prelude::*;

pub(crate) const TRAP: Trap = Trap {
    name: "refresh-revives",
    title: "a refresh that is sent twice revives a lost permit",
    source: "the book, 6.3.3: ZADD first, and its answer tells of the loss",
    actors: &["A", "B"],
    keys: KEYS,
    classic,
    ours,
};

fn classic(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let (mut a, mut b) = (Caller::new(redis, "A")?, Caller::new(redis, "B")?);
    a.acquire_fair(scene, 1_000, 10)?;
    let second = b.acquire_fair(scene, 1_010, 10)?;
    let mut refresh = redis::cmd("ZADD");
    refresh.arg("api").arg(1_011).arg("A");
    send_and_break(redis, &refresh.get_packed_command(), |conn| {
        let score: Option<f64> = redis::cmd("ZSCORE").arg("api").arg("A").query(conn)?;
        Ok(score.is_some())
    })?;
    scene.tell("A", "ZADD api 1011 A\n(the connection breaks)")?;
    let again = a.refresh(scene, 1_012)?;
    scene.goes_wrong(
        second && again.is_int(0),
        "0 means that the permit is still there: A and B both work.",
    )
}

fn ours(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let mut conn = redis.client()?;
    let first = acquire_fair_semaphore(&mut conn, "api", 1, millis(100))?;
    let first = scene.gets("A", "acquire_fair_semaphore\n(timeout 100 ms)", first)?;
    scene.wait_until(250);
    let second = acquire_fair_semaphore(&mut conn, "api", 1, millis(100))?;
    scene.gets("B", "acquire_fair_semaphore\n(timeout 100 ms)", second)?;
    let mut answers = Vec::new();
    for attempt in ["the answer is lost", "sent again"] {
        let refreshed = refresh_fair_semaphore(&mut conn, "api", &first)?;
        scene.tell(
            "A",
            &format!("refresh_fair_semaphore\n({attempt})\n{refreshed}"),
        )?;
        answers.push(refreshed);
    }
    scene.goes_right(
        answers == [false, false],
        "A refresh only changes an existing entry: a lost permit stays lost.",
    )
}
