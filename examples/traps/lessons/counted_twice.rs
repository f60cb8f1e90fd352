//! A lost answer is counted twice.
//!
//! A connection breaks after the server has granted the lock and before the answer arrives. The
//! program asks again, and the counter has one level that is never released.

use leasehold::{
    Owner,
    recipes::reentrant::{self, Release},
};

use crate::{
    prelude::*,
    scripts::{ENTER, LEAVE},
};

pub(crate) const TRAP: Trap = Trap {
    name: "counted-twice",
    title: "a lost answer leaves one level that is never released",
    source: "the notes, the reentrant lock: hincrby at each call",
    classic,
    ours,
    ..Trap::OF_A_AND_B
};

fn classic(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let (mut a, mut b) = (redis.client()?, redis.client()?);
    let mut enter = redis::cmd("EVAL");
    enter.arg(ENTER.1).arg(1).arg("lock:trap").arg("A").arg(300);
    send_and_break(redis, &enter.get_packed_command(), |conn| {
        Ok(redis::cmd("EXISTS").arg("lock:trap").query(conn)?)
    })?;
    scene.tell(
        "A",
        "--eval enter.lua lock:trap , A 300\n(the connection breaks)",
    )?;
    scene.eval("A", &mut a, ENTER, &["lock:trap"], &["A", "300"])?;
    scene.eval("A", &mut a, LEAVE, &["lock:trap"], &["A"])?;
    let got = scene.eval("B", &mut b, ENTER, &["lock:trap"], &["B", "300"])?;
    scene.goes_wrong(
        got.is_int(0),
        "A entered once and left once, but still holds the lock, for five minutes.",
    )
}

fn ours(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let mut conn = redis.client()?;
    let (owner, token) = (Owner::new("A")?, Token::random());
    reentrant::try_acquire(&mut conn, NAME, &owner, &token, secs(300))?;
    scene.tell("A", "reentrant::try_acquire\n(the answer is lost)")?;
    let grant = reentrant::try_acquire(&mut conn, NAME, &owner, &token, secs(300))?;
    let count = grant.context("it is A's")?.count();
    scene.tell(
        "A",
        &format!("reentrant::try_acquire\n(again, with the same token)\ngranted, count {count}"),
    )?;
    let release = reentrant::release(&mut conn, NAME, &owner, &token)?;
    scene.tell("A", &format!("reentrant::release\n{release:?}"))?;
    let another = Owner::new("B")?;
    let got = reentrant::try_acquire(&mut conn, NAME, &another, &Token::random(), secs(300))?;
    scene.decided("B", "reentrant::try_acquire", got.is_some())?;
    let right = release == Release::Freed && got.is_some();
    scene.goes_right(
        right,
        "Each acquisition has its own token, and counts once however often it is sent.",
    )
}
