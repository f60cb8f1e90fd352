//! Tasks that are due later, and a lock for each while it is moved into the queue: section 6.4.2 of
//! the book.
//!
//! `cargo run --example delayed_tasks [redis://127.0.0.1/]`
//!
//! A sorted set holds the tasks by the time at which they are due. Several workers look at it;
//! whoever finds a task that is due locks it, moves it into the queue, and releases it.
//!
//! **The book's bug.** Its `poll_queue` takes the lock by `acquire_lock`, which has no end. A
//! worker that dies between the lock and the move keeps the task for ever; and since each worker
//! looks at the first task only, none of the later ones is moved either. Here the lock ends by
//! itself, and a worker passes over a task that another one has locked.
//!
//! **Another one.** It removes the task from the set and then adds it to the queue: a worker that
//! dies in between loses it. Here both are one transaction, which is executed only while the lock
//! is still held.
#![allow(clippy::print_stdout, reason = "a program that talks")]

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use leasehold::{
    Error, Pool, Token, acquire_lock_with_timeout, commit_while_held,
    redis::{self, Commands, Connection},
    release_lock,
};

const WORKERS: usize = 4;
const TASKS: u64 = 12;
/// So many are due at the same moment.
const AT_ONCE: u64 = 3;
/// From one such moment to the next.
const STEP: Duration = Duration::from_millis(50);
/// How long a task takes.
const WORK: Duration = Duration::from_millis(10);
/// For how long a worker may hold a task that it moves.
const LEASE: Duration = Duration::from_millis(300);
const NO_WAIT: Duration = Duration::ZERO;
const PATIENCE: Duration = Duration::from_secs(10);

/// The keys of this run, and when it began.
struct Run {
    delayed: String,
    queue: String,
    started: Instant,
    /// By the server's clock, in milliseconds.
    began: u64,
}

/// A task that a worker has run.
struct Ran {
    task: String,
    due: u64,
    at: u64,
}

fn main() -> anyhow::Result<()> {
    let url = std::env::args()
        .nth(1)
        .unwrap_or("redis://127.0.0.1/".into());

    let pool = Pool::connect(&url)?;
    let mut conn = pool.get()?;
    let name = Token::random();
    let run = Run {
        delayed: format!("delayed:{name}"),
        queue: format!("queue:{name}"),
        started: Instant::now(),
        began: server_clock(&mut conn)?,
    };
    println!("{TASKS} tasks, {WORKERS} workers; a task's lock ends after {LEASE:?}");
    for n in 0..TASKS {
        let due = run.began + due_after(n);
        let () = conn.zadd(&run.delayed, format!("{name}:{n:02}"), due)?;
    }
    die_with_a_task(&run, &mut conn)?;
    let worked = work_together(&run, &pool);
    let () = conn.del(&[&run.delayed, &run.queue])?;
    each_ran_once(&worked?)
}

/// What a worker does that dies between the lock of a task and the move: its lock is released by
/// nobody.
fn die_with_a_task(run: &Run, conn: &mut Connection) -> anyhow::Result<()> {
    let task = due_tasks(run, conn)?.into_iter().next();
    let task = task.context("the first task is due at once")?;
    let token = acquire_lock_with_timeout(conn, &task, NO_WAIT, LEASE)?;
    ensure!(token.is_some(), "nobody works yet");
    run.tell(&format!("worker 0 locks task {} and dies", number(&task)));
    Ok(())
}

fn work_together(run: &Run, pool: &Pool) -> anyhow::Result<Vec<Ran>> {
    thread::scope(|threads| {
        let worker = |n| threads.spawn(move || work(run, &mut *pool.get()?, n));
        let workers: Vec<_> = (1..=WORKERS).map(worker).collect();
        let mut all = Vec::new();
        for worker in workers {
            all.extend(worker.join().ok().context("a worker panicked")??);
        }
        Ok(all)
    })
}

/// Moves what is due and runs what is in the queue, until there is neither.
fn work(run: &Run, conn: &mut Connection, worker: usize) -> anyhow::Result<Vec<Ran>> {
    let mut all = Vec::new();
    loop {
        move_due_task(run, conn)?;
        // Asked first: what is moved in between is in the queue.
        let still_delayed: u64 = conn.zcard(&run.delayed)?;
        let next: Option<String> = conn.lpop(&run.queue, None)?;
        if let Some(task) = next {
            all.push(run_task(run, conn, worker, task)?);
        } else if still_delayed == 0 {
            return Ok(all);
        } else {
            let waited = run.started.elapsed();
            ensure!(waited < PATIENCE, "not moved: {still_delayed}");
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Moves one task that is due into the queue, unless others are moving all of them.
fn move_due_task(run: &Run, conn: &mut Connection) -> anyhow::Result<()> {
    for task in due_tasks(run, conn)? {
        let Some(token) = acquire_lock_with_timeout(conn, &task, NO_WAIT, LEASE)? else {
            continue; // another worker moves it, or has died: then its lock ends
        };
        let due: Option<f64> = conn.zscore(&run.delayed, &task)?;
        // It may have been moved between the look and the lock.
        if due.is_some() {
            let moved = commit_while_held(conn, &task, &token, |pipe| {
                pipe.zrem(&run.delayed, &task).ignore();
                pipe.rpush(&run.queue, &task).ignore();
            });
            match moved {
                // The lock has ended before the move: nothing was written, and whoever has it now
                // moves the task.
                Err(Error::Lost { .. }) => return Ok(()),
                moved => moved?,
            }
        }
        release_lock(conn, &task, &token)?;
        return Ok(());
    }
    Ok(())
}

fn due_tasks(run: &Run, conn: &mut Connection) -> anyhow::Result<Vec<String>> {
    let now = server_clock(conn)?;
    Ok(conn.zrangebyscore_limit(&run.delayed, "-inf", now, 0, 10)?)
}

fn run_task(run: &Run, conn: &mut Connection, worker: usize, task: String) -> anyhow::Result<Ran> {
    let n = number(&task);
    let due = due_after(n.parse()?);
    let at = server_clock(conn)? - run.began;
    run.tell(&format!(
        "worker {worker} runs task {n}, due at {due:>3} ms"
    ));
    thread::sleep(WORK);
    Ok(Ran { task, due, at })
}

/// Proves that nothing was lost, done twice, or done early.
fn each_ran_once(all: &[Ran]) -> anyhow::Result<()> {
    let mut tasks: Vec<_> = all.iter().map(|ran| &ran.task).collect();
    tasks.sort();
    tasks.dedup();
    ensure!(tasks.len() == all.len(), "a task ran twice");
    ensure!(all.len() as u64 == TASKS, "only {} tasks ran", all.len());
    ensure!(all.iter().all(|ran| ran.at >= ran.due), "a task ran early");
    println!("{TASKS} tasks ran, each once and none before its time");
    Ok(())
}

impl Run {
    fn tell(&self, what: &str) {
        println!("{:>4} ms  {what}", self.started.elapsed().as_millis());
    }
}

/// How long after the beginning a task is due, in milliseconds.
fn due_after(n: u64) -> u64 {
    n / AT_ONCE * millis(STEP)
}

/// The number of a task, which is the end of its name.
fn number(task: &str) -> &str {
    task.rsplit(':').next().unwrap_or(task)
}

fn server_clock(conn: &mut Connection) -> anyhow::Result<u64> {
    let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(conn)?;
    Ok(seconds * 1_000 + micros / 1_000)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
