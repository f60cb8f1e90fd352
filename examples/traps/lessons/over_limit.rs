//! Two callers hold the one permit of a fair semaphore, and neither learns of it.
//!
//! The book takes a number in one transaction and enters in the next. A caller with a smaller
//! number that enters later ranks before one that has already entered. The book says that the other
//! one learns of it when it refreshes or releases; it does not.

use std::thread::scope;

use leasehold::{acquire_fair_semaphore, refresh_fair_semaphore};

use super::book_semaphore::{Caller, KEYS};
use crate::prelude::*;

pub(crate) const TRAP: Trap = Trap {
    name: "over-limit",
    title: "two callers hold one permit, and neither learns of it",
    source: "the book, 6.3.2: a number in one transaction, the rank in the next",
    actors: &["A", "B"],
    keys: KEYS,
    classic,
    ours,
};

fn classic(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let (mut a, mut b) = (Caller::new(redis, "A")?, Caller::new(redis, "B")?);
    let number_of_a = a.take_number(scene, 1_000, 10)?;
    let number_of_b = b.take_number(scene, 1_000, 10)?;
    let second = b.enter(scene, 1_000, number_of_b)?;
    let first = a.enter(scene, 1_000, number_of_a)?;
    let refreshed = b.refresh(scene, 1_001)?.is_int(0);
    let released = b.leave(scene)?;
    scene.goes_wrong(
        first && second && refreshed && released,
        "Both got rank 0 for one permit; B's refresh and release report no problem.",
    )
}

fn ours(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let (mut a, mut b) = (redis.client()?, redis.client()?);
    let ask = |conn: &mut Connection| acquire_fair_semaphore(conn, "api", 1, secs(10));
    let answers = scope(|threads| {
        let other = threads.spawn(|| ask(&mut b));
        let one = ask(&mut a);
        [Some(one), other.join().ok()]
    });
    let mut tokens = Vec::new();
    for answer in answers {
        tokens.extend(answer.context("B fails")??);
    }
    for token in &tokens {
        scene.knows(token, "A or B");
    }
    scene.tell(
        "A",
        "acquire_fair_semaphore, 1 permit, at the same time as B",
    )?;
    let count = tokens.len();
    scene.tell(
        "B",
        &format!("acquire_fair_semaphore\n{count} of the two is granted"),
    )?;
    let holder = tokens.first().context("the permit is free")?;
    let stands = refresh_fair_semaphore(&mut a, "api", holder)?;
    scene.tell(
        "A",
        &format!("refresh_fair_semaphore, by the holder\n{stands}"),
    )?;
    scene.goes_right(
        count == 1 && stands,
        "One script takes the number, counts and enters: no other caller comes in between.",
    )
}
