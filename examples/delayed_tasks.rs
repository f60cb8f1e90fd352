//! Delayed tasks, each locked while it is moved into the queue: section 6.4.2 of the book.
//!
//! `cargo run --example delayed_tasks [redis://…]`
//!
//! A sorted set holds the tasks by due time. Several workers poll it; a worker that finds a due
//! task locks it, moves it into the queue, and releases the lock.
//!
//! **The book's first bug.** Its `poll_queue` takes the lock with `acquire_lock`, which sets no
//! lease. A worker that dies between the lock and the move blocks the task forever; and since each
//! worker looks only at the first task, the later ones are blocked too. Here the lock has a lease,
//! and a worker skips a task that another one has locked.
//!
//! **The second bug.** It removes the task from the set and then adds it to the queue: a worker
//! that dies in between loses the task. Here both are one transaction, which is executed only while
//! the lock is still held.
#![allow(clippy::print_stdout, reason = "a command-line program")]

mod at_hand;

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
/// The number of tasks that are due at the same moment.
const AT_ONCE: u64 = 3;
/// The time between two such moments.
const STEP: Duration = Duration::from_millis(50);
/// The time that a task takes.
const WORK: Duration = Duration::from_millis(10);
/// The lease of a worker on the task that it moves.
const LEASE: Duration = Duration::from_millis(300);
const NO_WAIT: Duration = Duration::ZERO;
const PATIENCE: Duration = Duration::from_secs(10);

/// The keys of this run, and its start.
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
    let (url, _server) = at_hand::server()?;

    let pool = Pool::connect(&url)?;
    let mut conn = pool.get()?;
    let name = Token::random();
    let run = Run {
        delayed: format!("delayed:{name}"),
        queue: format!("queue:{name}"),
        started: Instant::now(),
        began: server_clock(&mut conn)?,
    };
    println!("{TASKS} tasks, {WORKERS} workers; a task's lock has a lease of {LEASE:?}");
    for n in 0..TASKS {
        let due = run.began + due_after(n);
        let () = conn.zadd(&run.delayed, format!("{name}:{n:02}"), due)?;
    }
    die_with_a_task(&run, &mut conn)?;
    let worked = work_together(&run, &pool);
    let () = conn.del(&[&run.delayed, &run.queue])?;
    each_ran_once(&worked?)
}

/// Acts as a worker that dies between locking a task and moving it: the lock is never released.
fn die_with_a_task(run: &Run, conn: &mut Connection) -> anyhow::Result<()> {
    let task = due_tasks(run, conn)?.into_iter().next();
    let task = task.context("the first task is not due yet")?;
    let token = acquire_lock_with_timeout(conn, &task, NO_WAIT, LEASE)?;
    ensure!(token.is_some(), "another worker has started already");
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

/// Moves due tasks and runs queued ones, until none is left.
fn work(run: &Run, conn: &mut Connection, worker: usize) -> anyhow::Result<Vec<Ran>> {
    let mut all = Vec::new();
    loop {
        move_due_task(run, conn)?;
        // Read first, so that a task moved meanwhile is in the queue.
        let still_delayed: u64 = conn.zcard(&run.delayed)?;
        let next: Option<String> = conn.lpop(&run.queue, None)?;
        if let Some(task) = next {
            all.push(run_task(run, conn, worker, task)?);
        } else if still_delayed == 0 {
            return Ok(all);
        } else {
            let waited = run.started.elapsed();
            ensure!(waited < PATIENCE, "{still_delayed} tasks were not moved");
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Moves one due task into the queue, unless other workers have locked all of them.
fn move_due_task(run: &Run, conn: &mut Connection) -> anyhow::Result<()> {
    for task in due_tasks(run, conn)? {
        let Some(token) = acquire_lock_with_timeout(conn, &task, NO_WAIT, LEASE)? else {
            continue; // another worker moves it, or has died: then its lease ends
        };
        let due: Option<f64> = conn.zscore(&run.delayed, &task)?;
        // Another worker may have moved it before we locked it.
        if due.is_some() {
            let moved = commit_while_held(conn, &task, &token, |pipe| {
                pipe.zrem(&run.delayed, &task).ignore();
                pipe.rpush(&run.queue, &task).ignore();
            });
            match moved {
                // The lease ended before the move: nothing was written, and the next holder of the
                // lock moves the task.
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

/// Checks that no task was lost, run twice, or run early.
fn each_ran_once(all: &[Ran]) -> anyhow::Result<()> {
    let mut tasks: Vec<_> = all.iter().map(|ran| &ran.task).collect();
    tasks.sort();
    tasks.dedup();
    ensure!(tasks.len() == all.len(), "a task ran twice");
    ensure!(all.len() as u64 == TASKS, "only {} tasks ran", all.len());
    ensure!(all.iter().all(|ran| ran.at >= ran.due), "a task ran early");
    println!("{TASKS} tasks ran, each once and none early");
    Ok(())
}

impl Run {
    fn tell(&self, what: &str) {
        println!("{:>4} ms  {what}", self.started.elapsed().as_millis());
    }
}

/// The delay from the start until a task is due, in milliseconds.
fn due_after(n: u64) -> u64 {
    n / AT_ONCE * millis(STEP)
}

/// The number at the end of a task's name.
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
