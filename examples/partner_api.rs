//! At most three requests at once to a partner's API, from twenty threads in two processes; one
//! process is killed.
//!
//! `cargo run --example partner_api [redis://127.0.0.1/]`
//!
//! Draws who held which of the three permits, and checks it: never more than three are held, and
//! each permit of the process that was killed comes back when its lease has ended, though nobody
//! gave it back.
#![allow(clippy::print_stdout, reason = "a program that talks")]

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
/// In each of the two processes, `A` and `B`.
const THREADS: usize = 10;
/// Renewed while its holder lives: a permit of a dead one comes back after this time at the latest.
const LEASE: Duration = Duration::from_secs(1);
/// When `B` is killed, as soon as it holds a permit.
const KILL_AFTER: Duration = Duration::from_millis(700);
/// How long `A` goes on after the lease of the dead.
const AFTERWARDS: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(10);
/// From one line of the picture to the next.
const STEP: Duration = Duration::from_millis(60);
/// Tells the second process which semaphore the two share.
const SHARED: &str = "LEASEHOLD_PARTNER_API";

/// One clock for both processes: the time since 1970.
type Moment = Duration;

/// A permit, from when its holder had it to when it gave it back, or to the end of its lease.
#[derive(Clone, Debug)]
struct Hold {
    thread: String,
    from: Moment,
    /// `None`: its process was killed before.
    until: Option<Moment>,
    is_given_back: bool,
    has_died: bool,
}

/// The holds that had one of the permits, in their order.
type Row = Vec<Hold>;

fn main() -> anyhow::Result<()> {
    let url = env::args().nth(1).unwrap_or("redis://127.0.0.1/".into());
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

/// What the second process does until it is killed: it prints when a thread begins and ends its
/// request.
fn be_the_second_process(lock: &Lock) -> anyhow::Result<()> {
    println!("ready");
    work_together("B", lock, &Cancel::new(), |thread, what, at| {
        println!("{thread} {what} {}", at.as_micros());
    })
}

/// Works in `A` until the permits of the dead have come back. Returns all holds, and when `B` was
/// killed.
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
    // The last line may have no end, and is none then.
    lines.extend(theirs.map_while(Result::ok));
    let mut holds = holds_of(&lines);
    for (thread, end) in dead {
        died(&mut holds, &thread, killed, end);
    }
    // Whoever had given its permit back, and was killed before it could tell.
    for hold in &mut holds {
        hold.until.get_or_insert(killed);
    }
    Ok((holds, killed))
}

/// Ten threads ask for a permit, make their request, and give it back, again and again.
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

/// Kills the second process while it has permits. Returns when, and their holders with the ends of
/// their leases.
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
        // One that has just been granted: it is still held when the process is killed.
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

/// The permits of the second process, and when each ends at the earliest.
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

/// From lines such as `B3 begins 1764240000123456`, each process's own in their order.
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

/// The server keeps the permit of a dead thread to its end, also if it was killed between its last
/// word and the release.
fn died(holds: &mut Vec<Hold>, thread: &str, killed: Moment, end: Moment) {
    let mut of_thread = holds.iter_mut().rev().filter(|hold| hold.thread == thread);
    match of_thread.next() {
        Some(hold) if !hold.is_given_back => {
            hold.until = Some(end);
            hold.has_died = true;
        }
        // Granted, and killed before it could tell.
        _ => holds.push(Hold {
            thread: thread.to_owned(),
            from: killed,
            until: Some(end),
            is_given_back: false,
            has_died: true,
        }),
    }
}

/// Gives each hold a permit that nobody has at its beginning: an error if all three are held.
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

/// A line for each step of time, from the top to the bottom.
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

/// What happened between this line and the next.
fn news(rows: &[Row], at: Moment, killed: Moment) -> String {
    let is_now = |moment: Moment| (at..at + STEP).contains(&moment);
    let mut all = Vec::new();
    if is_now(killed) {
        all.push("B is killed, and gives nothing back".to_owned());
    }
    for (dead, from) in rows.iter().flat_map(came_back) {
        let from = from.unwrap_or_default();
        if is_now(from) {
            let after = from.saturating_sub(killed).as_millis();
            all.push(format!("{dead}'s is back after {after} ms"));
        }
    }
    all.join(", ")
}

/// Who has this permit: its name, a line while it goes on, and crosses while the server keeps it
/// for a dead one.
fn cell(row: &[Hold], at: Moment, killed: Moment) -> &str {
    let has_it = |hold: &&Hold| hold.from <= at && Some(at) < hold.until;
    match row.iter().find(has_it) {
        None => "",
        Some(hold) if hold.from + STEP > at => &hold.thread,
        Some(hold) if hold.has_died && at > killed => "x",
        Some(_) => "|",
    }
}

/// When a permit of the dead was had by somebody else: `None`, not at all.
fn came_back(row: &Row) -> Vec<(&str, Option<Moment>)> {
    let next = |n: usize| row.get(n + 1).map(|next| next.from);
    let dead = row.iter().enumerate().filter(|(_, hold)| hold.has_died);
    dead.map(|(n, hold)| (&*hold.thread, next(n))).collect()
}

fn each_came_back(rows: &[Row]) -> anyhow::Result<()> {
    let mut count = 0;
    for (dead, from) in rows.iter().flat_map(came_back) {
        ensure!(from.is_some(), "{dead}'s permit did not come back");
        count += 1;
    }
    ensure!(count > 0, "none of the dead had a permit");
    println!(
        "\nnever more than {PERMITS} held; {count} of the killed process came back with its lease"
    );
    Ok(())
}

fn now() -> Moment {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}
