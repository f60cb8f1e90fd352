//! Limits requests to a partner's API to three at once, across twenty threads in two processes; one
//! process is killed.
//!
//! `cargo run --example partner_api [redis://…]`
//!
//! Draws which thread held which of the three permits, and checks that no more than three were ever
//! held, and that each permit of the killed process became free when its lease ended.
#![allow(clippy::print_stdout, reason = "a command-line program")]

mod at_hand;

use std::{
    env,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::{Mutex, PoisonError},
    thread::{self, ScopedJoinHandle},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, ensure};
use leasehold::{Cancel, Error, Lock, Locks, Options, Owner, Token};

const PERMITS: u32 = 3;
/// The threads of each of the two processes, `A` and `B`.
const THREADS: usize = 10;
/// Renewed while its holder lives: a dead holder's permit is free after this time at the latest.
const LEASE: Duration = Duration::from_secs(1);
/// The time after which `B` is killed, as soon as it holds a permit.
const KILL_AFTER: Duration = Duration::from_millis(700);
/// The time for which `A` continues after the killed process's leases have ended.
const AFTERWARDS: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(10);
/// The time between two lines of the picture.
const STEP: Duration = Duration::from_millis(60);
/// Names the environment variable with the semaphore that the two processes share.
const SHARED: &str = "LEASEHOLD_PARTNER_API";

/// The time since 1970, a clock that both processes share.
type Moment = Duration;

/// One thread's hold of a permit, until it was given back or its lease ended.
#[derive(Clone, Debug)]
struct Hold {
    thread: String,
    from: Moment,
    /// `None`: its process was killed first.
    until: Option<Moment>,
    is_given_back: bool,
    has_died: bool,
}

/// The holds of one permit, in order.
type Row = Vec<Hold>;

fn main() -> anyhow::Result<()> {
    let (url, _server) = at_hand::server()?;
    let locks = Locks::connect(&url)?;
    if let Ok(name) = env::var(SHARED) {
        return be_the_second_process(&locks.semaphore(&name, PERMITS));
    }
    let name = format!("partner-api:{}", Token::random());
    let lock = locks.semaphore(&name, PERMITS);
    let mut child = Command::new(env::current_exe()?)
        .env(SHARED, &name)
        .arg(&url)
        .stdout(Stdio::piped())
        .spawn()?;
    let played = play(&lock, &mut child);
    // Already dead unless something failed.
    let _ = child.kill();
    let _ = child.wait();
    let (holds, killed) = played?;
    let rows = in_rows(holds)?;
    draw(&rows, killed);
    each_came_back(&rows)
}

/// Runs the second process until it is killed. It prints when a thread begins and ends a request.
fn be_the_second_process(lock: &Lock) -> anyhow::Result<()> {
    println!("ready");
    work_together("B", lock, &Cancel::new(), |thread, what, at| {
        println!("{thread} {what} {}", at.as_micros());
    })
}

/// Works in `A` until the permits of the killed process are free again. Returns all holds, and the
/// time at which `B` was killed.
fn play(lock: &Lock, child: &mut Child) -> anyhow::Result<(Vec<Hold>, Moment)> {
    let mut theirs = BufReader::new(child.stdout.take().context("no output")?).lines();
    theirs.next().context("the second process has ended")??;
    let (enough, ours) = (Cancel::new(), Mutex::new(Vec::new()));
    let (worked, killed) = thread::scope(|threads| {
        let work = || {
            work_together("A", lock, &enough, |thread, what, at| {
                let line = format!("{thread} {what} {}", at.as_micros());
                let mut ours = ours.lock().unwrap_or_else(PoisonError::into_inner);
                ours.push(line);
            })
        };
        let worked = threads.spawn(work);
        let killed = kill_a_holder(lock, child);
        thread::sleep(LEASE + AFTERWARDS);
        enough.cancel();
        (worked.join(), killed)
    });
    worked.ok().context("a thread panicked")??;
    let (killed, dead) = killed?;
    let mut lines = ours.into_inner().unwrap_or_else(PoisonError::into_inner);
    // The last line may be cut off: then `holds_of` ignores it.
    lines.extend(theirs.map_while(Result::ok));
    let mut holds = holds_of(&lines);
    for (thread, end) in dead {
        died(&mut holds, &thread, killed, end);
    }
    // These threads had given their permits back, and were killed before they could report it.
    for hold in &mut holds {
        hold.until.get_or_insert(killed);
    }
    Ok((holds, killed))
}

/// Has each of ten threads acquire a permit, make its request, and give the permit back,
/// repeatedly.
fn work_together(
    process: &str,
    lock: &Lock,
    enough: &Cancel,
    tell: impl Fn(&str, &str, Moment) + Sync,
) -> anyhow::Result<()> {
    let work = |n: usize| -> anyhow::Result<()> {
        let thread = format!("{process}{n}");
        let me = Options::new().owner(Owner::new(&thread)?);
        let lock = lock.clone().with(me.lease(LEASE).cancel(enough));
        while !enough.is_cancelled() {
            let lease = match lock.acquire(PATIENCE) {
                Err(Error::Cancelled { .. }) => break,
                granted => granted?,
            };
            tell(&thread, "begins", now());
            thread::sleep(Duration::from_millis(fastrand::u64(90..200))); // the request
            lease.check()?;
            tell(&thread, "ends", now());
            lease.release()?;
            tell(&thread, "gave-it-back", now());
        }
        Ok(())
    };
    thread::scope(|threads| {
        let all: Vec<_> = (0..THREADS)
            .map(|n| threads.spawn(move || work(n)))
            .collect();
        let mut ended = all.into_iter().map(ScopedJoinHandle::join);
        ended.try_for_each(|ended| ended.ok().context("a thread panicked")?)
    })
}

/// Kills the second process while it holds permits. Returns the time of the kill, and the holders
/// with the ends of their leases.
fn kill_a_holder(
    lock: &Lock,
    child: &mut Child,
) -> anyhow::Result<(Moment, Vec<(String, Moment)>)> {
    thread::sleep(KILL_AFTER);
    let given_up = now() + PATIENCE;
    let mut before = their_permits(lock)?;
    loop {
        thread::sleep(Duration::from_millis(5));
        let seen = their_permits(lock)?;
        // A permit that was just granted will still be held when the process is killed.
        let is_new = |(thread, _): &(String, _)| before.iter().all(|(other, _)| other != thread);
        if seen.iter().any(is_new) {
            break;
        }
        ensure!(now() < given_up, "the second process gets no permit");
        before = seen;
    }
    child.kill()?;
    child.wait()?;
    let killed = now();
    Ok((killed, their_permits(lock)?))
}

/// The permits of the second process, and the earliest end of each.
fn their_permits(lock: &Lock) -> anyhow::Result<Vec<(String, Moment)>> {
    let asked = now();
    let seen = lock.inspect()?;
    let permits = seen.holders().iter().filter_map(|holder| {
        let thread = holder.owner()?.as_str().to_owned();
        Some((thread, asked + holder.remaining()?))
    });
    Ok(permits
        .filter(|(thread, _)| thread.starts_with('B'))
        .collect())
}

/// Reads lines such as `B3 begins 1764240000123456`. Those of one process are in order.
fn holds_of(lines: &[String]) -> Vec<Hold> {
    let mut holds: Vec<Hold> = Vec::new();
    for line in lines {
        let words: Vec<_> = line.split(' ').collect();
        let [thread, what, at] = words[..] else {
            continue;
        };
        let Ok(at) = at.parse().map(Duration::from_micros) else {
            continue;
        };
        let mut of_thread = holds.iter_mut().rev().filter(|hold| hold.thread == thread);
        match (what, of_thread.next()) {
            ("ends", Some(hold)) => hold.until = Some(at),
            ("gave-it-back", Some(hold)) => hold.is_given_back = true,
            _ => holds.push(Hold {
                thread: thread.to_owned(),
                from: at,
                until: None,
                is_given_back: false,
                has_died: false,
            }),
        }
    }
    holds
}

/// Marks a thread's last hold as kept by the server until its lease ends. The thread may have been
/// killed before it reported the hold, or between its last line and the release.
fn died(holds: &mut Vec<Hold>, thread: &str, killed: Moment, end: Moment) {
    let mut of_thread = holds.iter_mut().rev().filter(|hold| hold.thread == thread);
    match of_thread.next() {
        Some(hold) if !hold.is_given_back => {
            hold.until = Some(end);
            hold.has_died = true;
        }
        // The thread was killed before it could report the hold.
        _ => holds.push(Hold {
            thread: thread.to_owned(),
            from: killed,
            until: Some(end),
            is_given_back: false,
            has_died: true,
        }),
    }
}

/// Assigns each hold a permit that is free when it begins. Fails if all three are held.
fn in_rows(mut holds: Vec<Hold>) -> anyhow::Result<Vec<Row>> {
    holds.sort_by_key(|hold| hold.from);
    let mut rows: Vec<Row> = (0..PERMITS).map(|_| Row::new()).collect();
    for hold in holds {
        let is_free = |row: &&mut Row| row.last().is_none_or(|last| last.until <= Some(hold.from));
        let free = rows.iter_mut().find(is_free);
        let free = free.with_context(|| format!("{} holds a fourth permit", hold.thread))?;
        free.push(hold);
    }
    Ok(rows)
}

/// Prints a line for each step of time.
fn draw(rows: &[Row], killed: Moment) {
    let all = || rows.iter().flatten();
    let began = all().map(|hold| hold.from).min().unwrap_or_default();
    let over = all()
        .filter_map(|hold| hold.until)
        .max()
        .unwrap_or_default();
    println!("{PERMITS} permits, {THREADS} threads in each of A and B; the lease is {LEASE:?}");
    println!("x: kept by the server for a dead thread until its lease ends");
    println!("\n   time   permit 1  permit 2  permit 3");
    let mut at = began;
    while at < over {
        let cells: Vec<_> = rows.iter().map(|row| cell(row, at, killed)).collect();
        let passed = at.saturating_sub(began).as_millis();
        let permits = format!("{:<10}{:<10}{:<10}", cells[0], cells[1], cells[2]);
        let line = format!("{passed:>4} ms   {permits}{}", news(rows, at, killed));
        println!("{}", line.trim_end());
        at += STEP;
    }
}

/// Describes what happened between this line and the next.
fn news(rows: &[Row], at: Moment, killed: Moment) -> String {
    let is_now = |moment: Moment| (at..at + STEP).contains(&moment);
    if is_now(killed) {
        return "B is killed".to_owned();
    }
    let reused: Vec<_> = rows
        .iter()
        .flat_map(came_back)
        .filter_map(|(dead, from)| Some((dead, from.filter(|from| is_now(*from))?)))
        .map(|(dead, from)| format!("{} ms ({dead})", from.saturating_sub(killed).as_millis()))
        .collect();
    if reused.is_empty() {
        return String::new();
    }
    format!("reused after {}", reused.join(", "))
}

/// Shows the holder of this permit: its name where the hold begins, then `|`, or `x` while the
/// server keeps the permit for a dead thread.
fn cell(row: &[Hold], at: Moment, killed: Moment) -> &str {
    let has_it = |hold: &&Hold| hold.from <= at && Some(at) < hold.until;
    match row.iter().find(has_it) {
        None => "",
        Some(hold) if hold.from + STEP > at => &hold.thread,
        Some(hold) if hold.has_died && at > killed => "x",
        Some(_) => "|",
    }
}

/// The dead holders of this permit, and when the next thread acquired it. `None`: never.
fn came_back(row: &Row) -> Vec<(&str, Option<Moment>)> {
    let next = |n: usize| row.get(n + 1).map(|next| next.from);
    let dead = row.iter().enumerate().filter(|(_, hold)| hold.has_died);
    dead.map(|(n, hold)| (&*hold.thread, next(n))).collect()
}

fn each_came_back(rows: &[Row]) -> anyhow::Result<()> {
    let mut count = 0;
    for (dead, from) in rows.iter().flat_map(came_back) {
        ensure!(from.is_some(), "{dead}'s permit was not reused");
        count += 1;
    }
    ensure!(count > 0, "no thread of the killed process held a permit");
    println!(
        "\nnever more than {PERMITS} held; {count} of the killed process became free after a lease"
    );
    Ok(())
}

fn now() -> Moment {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}
