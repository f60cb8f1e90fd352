//! The third of the book's three problems: several believe at once that they hold the lock, and each of them writes.
//!
//! `cargo run --example problem_3_two_holders [redis://…]`
#![allow(clippy::print_stdout, reason = "a program that talks")]

#[allow(dead_code, reason = "each example uses a part of it")]
mod shared;

use std::time::Duration;

use leasehold::{
    Error, FencingToken, Token, commit_while_held,
    recipes::mutex::{self, End, Grant},
};
use redis::Connection;
use shared::{Redis, Story};

const NAME: &str = "problem-3";
const LEASE: Duration = Duration::from_millis(300);
/// How long A is paused: longer than its lease.
const PAUSE: Duration = Duration::from_millis(500);
const REPORT: &str = "problem-3:report";

fn main() -> anyhow::Result<()> {
    let redis = Redis::open()?;
    let mut conn = redis.pool.get()?;
    without_asking(&mut conn)?;
    with_commit_while_held(&mut conn)?;
    with_a_fencing_token(&mut conn)?;
    redis::cmd("DEL").arg(REPORT).exec(&mut conn)?;
    Ok(())
}

/// The failure: A looks at the lock, is paused, and writes.
fn without_asking(conn: &mut Connection) -> anyhow::Result<()> {
    let story = Story::begin("A writes because it held the lock when it looked");
    let [_first, second] = both_take_the_lock(conn, &story)?;
    redis::cmd("SET").arg(REPORT).arg("by B").exec(conn)?;
    story.tell("B", "writes its report");
    redis::cmd("SET").arg(REPORT).arg("by A").exec(conn)?;
    story.tell("A", "wakes up and writes its own, which is old");
    let report: String = redis::cmd("GET").arg(REPORT).query(conn)?;
    story.tell("", &format!("the report is {report}: WRONG"));
    mutex::release(conn, NAME, &second.token)?;
    Ok(())
}

/// The first cure, for data on the same server: the lock is looked at in the transaction that writes.
fn with_commit_while_held(conn: &mut Connection) -> anyhow::Result<()> {
    let story = Story::begin("A writes with commit_while_held");
    let [first, second] = both_take_the_lock(conn, &story)?;
    for (who, holder) in [("B", &second), ("A", &first)] {
        let written = commit_while_held::<()>(conn, NAME, &holder.token, |pipe| {
            pipe.set(REPORT, format!("by {who}"));
        });
        story.tell(
            who,
            match written {
                Ok(()) => "writes its report",
                Err(Error::Lost { .. }) => {
                    "wakes up and is told that the lock is lost: nothing is written"
                }
                Err(other) => return Err(other.into()),
            },
        );
    }
    let report: String = redis::cmd("GET").arg(REPORT).query(conn)?;
    story.tell("", &format!("the report is {report}"));
    mutex::release(conn, NAME, &second.token)?;
    Ok(())
}

/// The second cure, for any resource: it remembers the greatest fencing token and refuses smaller ones.
fn with_a_fencing_token(conn: &mut Connection) -> anyhow::Result<()> {
    let story = Story::begin("A writes to a disk that checks fencing tokens");
    let [first, second] = both_take_the_lock(conn, &story)?;
    let mut disk = Disk::default();
    for (who, holder) in [("B", &second), ("A", &first)] {
        let number = holder.grant.fencing_token();
        let accepted = disk.write(number, &format!("by {who}"));
        story.tell(
            who,
            &format!(
                "writes with fencing token {number}: {}",
                if accepted { "accepted" } else { "refused" }
            ),
        );
    }
    story.tell("", &format!("the report is {}", disk.report));
    mutex::release(conn, NAME, &second.token)?;
    Ok(())
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

/// A takes the lock and is paused for longer than its lease; B takes it as well.
fn both_take_the_lock(conn: &mut Connection, story: &Story) -> anyhow::Result<[Holder; 2]> {
    let first = take_the_lock(conn, LEASE)?;
    story.tell("A", "takes the lock for 300 ms, and is paused for 500 ms");
    let second = take_the_lock(conn, Duration::from_secs(10))?;
    story.tell(
        "B",
        "takes the lock when A's lease has ended: both believe that they hold it",
    );
    story.wait_until(PAUSE);
    Ok([first, second])
}

fn take_the_lock(conn: &mut Connection, lease: Duration) -> anyhow::Result<Holder> {
    let token = Token::random();
    match mutex::acquire(
        conn,
        NAME,
        &token,
        Duration::from_secs(5),
        End::After(lease),
    )? {
        Some(grant) => Ok(Holder { token, grant }),
        None => anyhow::bail!("somebody else uses the lock `{NAME}`"),
    }
}
