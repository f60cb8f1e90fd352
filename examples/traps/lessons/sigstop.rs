//! A process is paused for longer than its lease, and writes when it resumes.
//!
//! It held the lock, and then it was paused: by `SIGSTOP`, by swapping, by a virtual machine that
//! moved. No check before the write helps, since the pause can come between the two. The check must
//! be part of the write.

use std::{
    env,
    io::{BufRead, BufReader, Write, stdin},
    process::{Child, Command, Stdio},
};

use leasehold::{acquire_lock_with_timeout, commit_while_held};

use crate::prelude::*;

pub(crate) const TRAP: Trap = Trap {
    name: "sigstop",
    title: "a process that is paused past its lease writes when it resumes",
    source: "the book, 6.2.2: the first and the third problem together",
    actors: &["A, a process", "B"],
    keys: &["lock:trap", "report"],
    classic: |redis, scene| story(redis, scene, Role::Classic),
    ours: |redis, scene| story(redis, scene, Role::Ours),
};

/// Tell the process that will be paused its server and its role.
const URL: &str = "TRAPS_SIGSTOP_URL";
const ROLE: &str = "TRAPS_SIGSTOP_ROLE";

/// How A writes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Role {
    Classic,
    Ours,
}

fn story(redis: &Redis, scene: &mut Scene, role: Role) -> Result<()> {
    let (actor, mut b) = ("A, a process", redis.client()?);
    let mut child = Command::new(env::current_exe()?)
        .env(URL, &redis.url)
        .env(ROLE, format!("{role:?}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut says = BufReader::new(child.stdout.take().context("a pipe")?).lines();
    let token: Token = says.next().context("A says nothing")??.parse()?;
    scene.knows(&token, "A");
    scene.record("A", Happened::acquired(300))?;
    scene.tell(actor, "takes the lock for 300 ms, and is about to write")?;
    signal(&child, "STOP")?;
    scene.tell(actor, "kill -STOP")?;
    scene.wait_for_the_end("lock:trap", 0)?;
    scene.send("B", &mut b, "SET lock:trap B NX PX 10000")?;
    scene.record("B", Happened::acquired(10_000))?;
    scene.send("B", &mut b, "SET report by-B")?;
    child
        .stdin
        .take()
        .context("a pipe")?
        .write_all(b"write\n")?;
    scene.wait_until(550);
    signal(&child, "CONT")?;
    let answer = says.next().context("A says nothing")??;
    child.wait()?;
    scene.tell(actor, &format!("kill -CONT\n{answer}"))?;
    scene.record(
        "A",
        if role == Role::Ours {
            Happened::Lost
        } else {
            Happened::Released
        },
    )?;
    let report = scene.send("B", &mut b, "GET report")?;
    scene.wait_until(700);
    scene.record("B", Happened::Released)?;
    match role {
        Role::Classic => {
            scene.goes_wrong(report.is_text("by-A"), "An old report overwrote a new one.")
        }
        Role::Ours => scene.goes_right(
            report.is_text("by-B"),
            "commit_while_held checks the lock in the transaction that writes.",
        ),
    }
}

fn signal(process: &Child, name: &str) -> Result<()> {
    let mut kill = Command::new("kill");
    let status = kill
        .arg(format!("-{name}"))
        .arg(process.id().to_string())
        .status()?;
    anyhow::ensure!(status.success(), "kill -{name} fails");
    Ok(())
}

impl Role {
    /// The role of this process, if it is A.
    pub(crate) fn of_this_process() -> Option<Self> {
        let role = env::var(ROLE).ok()?;
        [Self::Classic, Self::Ours]
            .into_iter()
            .find(|known| format!("{known:?}") == role)
    }

    /// Takes the lock, waits for a line, writes.
    pub(crate) fn play(self) -> Result<()> {
        let mut conn = redis::Client::open(env::var(URL)?)?.get_connection()?;
        let token = acquire_lock_with_timeout(&mut conn, NAME, NO_WAIT, millis(300))?;
        let token = token.context("the lock is free")?;
        println!("{token}");
        stdin().read_line(&mut String::new())?;
        if self == Self::Classic {
            redis::cmd("SET")
                .arg("report")
                .arg("by-A")
                .exec(&mut conn)?;
            println!("SET report by-A");
            return Ok(());
        }
        let written = commit_while_held::<()>(&mut conn, NAME, &token, |pipe| {
            pipe.set("report", "by-A");
        });
        println!(
            "{}",
            written.map_or_else(|error| error.to_string(), |()| "written".to_owned())
        );
        Ok(())
    }
}
