//! Clients that share locks with this crate but do not use it.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::Context;
use leasehold::redis::{Client, Connection, Script, cmd};
use uuid::Uuid;

use super::{
    IO_TIMEOUT,
    hand::{Hand, LEASE},
};
use crate::history::Mode;

/// The notes' reentrant scripts, in our own wording.
const ENTER: &str = "if redis.call('EXISTS', KEYS[1]) == 1 and redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
    redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
    redis.call('EXPIRE', KEYS[1], ARGV[2])
    return 1";
const LEAVE: &str = "if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return nil end
    if redis.call('HINCRBY', KEYS[1], ARGV[1], -1) > 0 then return 0 end
    redis.call('DEL', KEYS[1])
    return 1";
const DELETE_OURS: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
/// The notes' lease is in whole seconds.
const NOTES_LEASE: Duration = Duration::from_secs(1);

/// A program with the notes' scripts.
pub(crate) struct Notes(Connection);

fn connect(url: &str) -> anyhow::Result<Connection> {
    let conn = Client::open(url)?.get_connection_with_timeout(IO_TIMEOUT)?;
    conn.set_read_timeout(Some(IO_TIMEOUT))?;
    conn.set_write_timeout(Some(IO_TIMEOUT))?;
    Ok(conn)
}

/// `SET NX PX` and a compare-and-delete script, as in the lock libraries of most languages, on the
/// locks of the watchdog and plain jobs.
pub(super) fn set_nx(hand: &mut Hand) -> anyhow::Result<()> {
    let mut conn = connect(&hand.plan.server)?;
    for _ in 0..20 {
        let lock = if hand.chance(2) { "p0" } else { "d0" };
        let (key, token) = (format!("lock:{lock}"), Uuid::new_v4().to_string());
        let id = hand.ask(lock, Mode::Exclusive, None, LEASE, None);
        let before = Instant::now();
        let millis = u64::try_from(LEASE.as_millis())?;
        let set: Option<String> = cmd("SET")
            .arg(&[&key, &token, "NX", "PX"])
            .arg(millis)
            .query(&mut conn)?;
        if set.is_none() {
            hand.refused(id, None);
        } else {
            hand.granted(id, None, Some(token.clone()));
            hand.hold(id, lock, None, || before.elapsed() < LEASE);
            let deleted: i64 = Script::new(DELETE_OURS)
                .key(&key)
                .arg(&token)
                .invoke(&mut conn)?;
            hand.ended(id, deleted == 1);
        }
        hand.pause(20);
    }
    Ok(())
}

/// A program with the notes' scripts and an owner of its own.
pub(super) fn notes_scripts(hand: &mut Hand) -> anyhow::Result<()> {
    if hand.notes.is_none() {
        hand.notes = Some(Notes(connect(&hand.plan.server)?));
    }
    let Some(mut notes) = hand.notes.take() else {
        return Ok(());
    };
    let (key, owner) = ("lock:r0", format!("notes-{}", Uuid::new_v4()));
    let id = hand.ask(
        "r0",
        Mode::Exclusive,
        Some(owner.clone()),
        NOTES_LEASE,
        None,
    );
    let before = Instant::now();
    let entered: i64 = Script::new(ENTER)
        .key(key)
        .arg(&owner)
        .arg(NOTES_LEASE.as_secs())
        .invoke(&mut notes.0)?;
    if entered == 0 {
        hand.refused(id, None);
    } else {
        hand.granted(id, None, None);
        hand.hold(id, "r0", None, || before.elapsed() < NOTES_LEASE);
        let left: Option<i64> = Script::new(LEAVE)
            .key(key)
            .arg(&owner)
            .invoke(&mut notes.0)?;
        hand.ended(id, left == Some(1));
    }
    hand.notes = Some(notes);
    hand.pause(50);
    Ok(())
}

/// The book's lock functions in Python, in a program that reports when it had the lock.
pub(crate) struct Python {
    child: Child,
    asks: ChildStdin,
    says: BufReader<ChildStdout>,
}

const BOOK: &str = include_str!("book.py");

impl Python {
    fn start(program: &str, url: &str) -> anyhow::Result<Self> {
        let mut child = Command::new(program)
            .args(["-I", "-S", "-c", BOOK, url])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self {
            asks: child.stdin.take().context("no stdin")?,
            says: BufReader::new(child.stdout.take().context("no stdout")?),
            child,
        })
    }

    fn ask(&mut self, request: &str) -> anyhow::Result<String> {
        writeln!(self.asks, "{request}")?;
        let mut answer = String::new();
        self.says.read_line(&mut answer)?;
        anyhow::ensure!(!answer.is_empty(), "the Python program has ended");
        Ok(answer.trim().to_owned())
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(super) fn python(hand: &mut Hand) -> anyhow::Result<()> {
    let Some(program) = hand.plan.programs.get("python3").cloned() else {
        hand.pause(1_000);
        return Ok(());
    };
    let url = hand.plan.server.clone();
    let mut python = match hand.python.take() {
        Some(python) => python,
        None => Python::start(&program, &url)?,
    };
    let id = hand.ask("p0", Mode::Exclusive, None, NOTES_LEASE, None);
    let before = Instant::now();
    let token = python.ask("acquire p0")?;
    if token == "none" {
        hand.refused(id, None);
    } else {
        // It waits up to 200 ms before the lease begins.
        let lease = NOTES_LEASE.saturating_sub(Duration::from_millis(250));
        hand.granted(id, None, None);
        hand.hold(id, "p0", None, || before.elapsed() < lease);
        let released = python.ask(&format!("release p0 {token}"))?;
        hand.ended(id, released == "true");
    }
    hand.python = Some(python);
    hand.pause(100);
    Ok(())
}

/// `SET NX` from a shell, with redis-cli.
pub(super) fn shell(hand: &mut Hand) -> anyhow::Result<()> {
    let Some(cli) = hand.plan.programs.get("redis-cli").cloned() else {
        hand.pause(1_000);
        return Ok(());
    };
    let url = hand.plan.server.clone();
    let token = Uuid::new_v4().to_string();
    let ask = |script: &str| -> anyhow::Result<String> {
        let output = Command::new("timeout")
            .args(["2", "sh", "-c", script, "shell", &cli, &url, &token])
            .stderr(Stdio::null())
            .output()?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let id = hand.ask("p0", Mode::Exclusive, None, NOTES_LEASE, None);
    let before = Instant::now();
    let set = ask("\"$1\" -u \"$2\" SET lock:p0 \"$3\" NX PX 1000")?;
    if set == "OK" {
        hand.granted(id, None, Some(token.clone()));
        hand.hold(id, "p0", None, || before.elapsed() < NOTES_LEASE);
        let deleted = ask(&format!(
            "\"$1\" -u \"$2\" EVAL \"{DELETE_OURS}\" 1 lock:p0 \"$3\""
        ))?;
        hand.ended(id, deleted == "1");
    } else {
        hand.refused(id, None);
    }
    hand.pause(300);
    Ok(())
}
