//! "Not yours" is read as "still yours".
//!
//! The notes' release answers nil if the caller does not hold the lock, and 0 if it still does.
//! Many clients turn nil into 0.

use leasehold::{
    Owner,
    recipes::reentrant::{self, Release},
};

use crate::{
    prelude::*,
    scripts::{ENTER, LEAVE},
};

pub(crate) const TRAP: Trap = Trap {
    name: "nil-is-zero",
    title: "a client misreads a release that answers nil, 0 or 1",
    source: "the notes, releasing the reentrant lock",
    classic,
    ours,
    ..Trap::OF_A_AND_B
};

fn classic(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let (mut a, mut b) = (redis.client()?, redis.client()?);
    scene.eval("A", &mut a, ENTER, &["lock:trap"], &["A", "300"])?;
    scene.eval("A", &mut a, ENTER, &["lock:trap"], &["A", "300"])?;
    let still = scene.eval("A", &mut a, LEAVE, &["lock:trap"], &["A"])?;
    let not = scene.eval("B", &mut b, LEAVE, &["lock:trap"], &["B"])?;
    let as_number = not.int().unwrap_or_default();
    scene.tell("B", &format!("reads it as a number: {as_number}"))?;
    let wrong = not.is_nil() && still.is_int(as_number);
    scene.goes_wrong(
        wrong,
        "B never held the lock, but reads the same as A: one level less, still held.",
    )
}

fn ours(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let mut conn = redis.client()?;
    let owner = Owner::new("A")?;
    let (first, second) = (Token::random(), Token::random());
    for token in [&first, &second] {
        let grant = reentrant::try_acquire(&mut conn, NAME, &owner, token, secs(300))?;
        scene.decided("A", "reentrant::try_acquire", grant.is_some())?;
    }
    let still = reentrant::release(&mut conn, NAME, &owner, &second)?;
    scene.tell("A", &format!("reentrant::release\n{still:?}"))?;
    let not = reentrant::release(&mut conn, NAME, &Owner::new("B")?, &Token::random())?;
    scene.tell("B", &format!("reentrant::release\n{not:?}"))?;
    let right = not == Release::NotHeld && still == Release::StillHeld { count: 1 };
    scene.goes_right(right, "Three answers, three names.")
}
