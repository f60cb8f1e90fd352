//! `XX` takes a lock that is held, and never a free one.
//!
//! It reads like "only if the lock is there", as for renewing a lock. But it does not check who
//! holds it.

use leasehold::recipes::mutex::{self, End};

use crate::prelude::*;

pub(crate) const TRAP: Trap = Trap {
    name: "xx",
    title: "XX renews any holder's lock, and takes it over",
    source: "the notes, the options of SET: XX",
    classic,
    ours,
    ..Trap::OF_A_AND_B
};

fn classic(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let (mut a, mut b) = (redis.client()?, redis.client()?);
    scene.send("A", &mut a, "SET lock:trap A NX PX 10000")?;
    let stolen = scene.send("B", &mut b, "SET lock:trap B XX PX 60000")?;
    let value = scene.send("A", &mut a, "GET lock:trap")?;
    scene.goes_wrong(
        stolen.is_ok() && value.is_text("B"),
        "B meant to renew its own lock, but took A's.",
    )
}

fn ours(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let mut conn = redis.client()?;
    let (first, second) = (Token::random(), Token::random());
    scene.knows(&first, "A");
    let grant = mutex::try_acquire(&mut conn, NAME, &first, End::After(secs(10)))?;
    scene.decided("A", "mutex::try_acquire\n(lease 10 s)", grant.is_some())?;
    let renewed = mutex::renew(&mut conn, NAME, &second, secs(60))?;
    scene.tell(
        "B",
        &format!("mutex::renew\n(lease 60 s)\n{renewed}: B does not hold it"),
    )?;
    let own = mutex::renew(&mut conn, NAME, &first, secs(60))?;
    scene.tell("A", &format!("mutex::renew\n(lease 60 s)\n{own}"))?;
    scene.goes_right(
        !renewed && own,
        "One script checks the token and renews the lock.",
    )
}
