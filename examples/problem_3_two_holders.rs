//! The third of the book's three problems: several processes believe at the same time that they
//! hold the lock, and each of them writes.
//!
//! `cargo run --example problem_3_two_holders [redis://…]`
#![allow(clippy::print_stdout, reason = "a command-line program")]

#[allow(dead_code, reason = "each example uses only part of it")]
mod shared;

use std::time::Duration;

use anyhow::Context;
use leasehold::{
    Error, FencingToken, Token, commit_while_held,
    recipes::mutex::{self, End, Grant},
    redis::{self, Connection},
};
use shared::{Redis, scene::Scene};

const NAME: &str = "problem-3";
const KEYS: [&str; 2] = ["lock:problem-3", REPORT];
const LEASE: Duration = Duration::from_millis(300);
/// The length of the pause of A, in milliseconds: longer than its lease.
const PAUSE: u64 = 500;
const REPORT: &str = "problem-3:report";

fn main() -> anyhow::Result<()> {
    let redis = Redis::open()?;
    let mut conn = redis.pool.get()?;
    without_asking(&redis)?;
    redis::cmd("DEL").arg(REPORT).exec(&mut conn)?;
    with_commit_while_held(&redis)?;
    redis::cmd("DEL").arg(REPORT).exec(&mut conn)?;
    with_a_fencing_token(&redis)
}

/// The failure: A takes the lock, is paused, and writes without checking it.
fn without_asking(redis: &Redis) -> anyhow::Result<()> {
    let mut conn = redis.pool.get()?;
    let title = "A writes without checking that it still holds the lock";
    let mut scene = Scene::begin(redis, title, &["A", "B"], &KEYS)?;
    let [_first, second] = both_take_the_lock(&mut conn, &mut scene)?;
    scene.send("B", &mut conn, "SET problem-3:report by-B")?;
    scene.send("A", &mut conn, "SET problem-3:report by-A")?;
    mutex::release(&mut conn, NAME, &second.token)?;
    let wrong = report(&mut conn)? == "by-A";
    scene.goes_wrong(wrong, "An old report has overwritten a new one.")
}

/// The first cure, for data on the same server: the transaction that writes also checks the lock.
fn with_commit_while_held(redis: &Redis) -> anyhow::Result<()> {
    let mut conn = redis.pool.get()?;
    let title = "A writes with commit_while_held";
    let mut scene = Scene::begin(redis, title, &["A", "B"], &KEYS)?;
    let [first, second] = both_take_the_lock(&mut conn, &mut scene)?;
    for (who, holder) in [("B", &second), ("A", &first)] {
        let written = commit_while_held::<()>(&mut conn, NAME, &holder.token, |pipe| {
            pipe.set(REPORT, format!("by-{who}"));
        });
        let answer = match written {
            Ok(()) => "written",
            Err(Error::Lost { .. }) => "Err(Lost): nothing written",
            Err(other) => return Err(other.into()),
        };
        scene.tell(who, &format!("commit_while_held\n{answer}"))?;
    }
    mutex::release(&mut conn, NAME, &second.token)?;
    let right = report(&mut conn)? == "by-B";
    scene.goes_right(right, "The new report stays, and A gets an error.")
}

/// The second cure, for any resource: it remembers the greatest fencing token and refuses smaller
/// ones.
fn with_a_fencing_token(redis: &Redis) -> anyhow::Result<()> {
    let mut conn = redis.pool.get()?;
    let title = "A writes to a disk that checks fencing tokens";
    let mut scene = Scene::begin(redis, title, &["A", "B", "the disk"], &KEYS[..1])?;
    let [first, second] = both_take_the_lock(&mut conn, &mut scene)?;
    let mut disk = Disk::default();
    for (who, holder) in [("B", &second), ("A", &first)] {
        let number = holder.grant.fencing_token();
        scene.tell(who, &format!("writes with {number}"))?;
        let accepted = disk.write(number, &format!("by-{who}"));
        let answer = if accepted { "accepted" } else { "refused" };
        scene.tell(
            "the disk",
            &format!("{answer}: the report is {}", disk.report),
        )?;
    }
    mutex::release(&mut conn, NAME, &second.token)?;
    let right = disk.report == "by-B";
    scene.goes_right(
        right,
        "A's token is smaller than one that the disk has seen.",
    )
}

fn report(conn: &mut Connection) -> anyhow::Result<String> {
    Ok(redis::cmd("GET").arg(REPORT).query(conn)?)
}

/// A resource outside Redis, such as a file server.
#[derive(Default)]
struct Disk {
    greatest: Option<FencingToken>,
    report: String,
}

impl Disk {
    fn write(&mut self, number: FencingToken, report: &str) -> bool {
        if Some(number) < self.greatest {
            return false;
        }
        self.greatest = Some(number);
        report.clone_into(&mut self.report);
        true
    }
}

struct Holder {
    token: Token,
    grant: Grant,
}

/// A takes the lock and is paused for longer than its lease; B takes the lock meanwhile.
fn both_take_the_lock(conn: &mut Connection, scene: &mut Scene) -> anyhow::Result<[Holder; 2]> {
    let first = take_the_lock(conn, scene, "A", LEASE)?;
    scene.tell("A", "is paused for 500 ms")?;
    let second = take_the_lock(conn, scene, "B", Duration::from_secs(10))?;
    scene.wait_until(PAUSE);
    Ok([first, second])
}

fn take_the_lock(
    conn: &mut Connection,
    scene: &mut Scene,
    who: &str,
    lease: Duration,
) -> anyhow::Result<Holder> {
    let token = Token::random();
    let wait = Duration::from_secs(5);
    let grant = mutex::acquire(conn, NAME, &token, wait, End::After(lease))?;
    let grant = grant.context("another process holds the lock `problem-3`")?;
    scene.knows(&token, who);
    scene.tell(who, &format!("takes the lock for {lease:?}"))?;
    Ok(Holder { token, grant })
}
