//! Eight threads in two processes move money between accounts, in any direction, and one of the
//! processes is killed in the middle of a transfer.
//!
//! `cargo run --example transfer [redis://…]`
//!
//! A transfer holds the locks of both accounts. If each thread took them in its own order, two
//! transfers in opposite directions could deadlock, each waiting for the other until it times out.
//! A `LockSet` takes them in the order of their keys.
//!
//! `Leases::transaction` moves the money, and writes only while both locks are held. A holder that
//! was paused for longer than its leases, or killed before the transaction, writes nothing.
//!
//! Exits with 1 if the sum of all accounts has changed or a transfer waited too long for its locks.
#![allow(
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a command-line program"
)]

mod at_hand;

use std::{
    env,
    io::{BufRead, BufReader, Read, stdin},
    process::{self, Child, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use leasehold::{
    Error, Leases, Locks, Options, Token,
    redis::{Client, Commands, Connection},
};

const ACCOUNTS: usize = 4;
const FUNDS: i64 = 100;
/// The threads of each of the two processes.
const THREADS: usize = 4;
/// The transfers that the second process completes before it is killed in the next one.
const TRANSFERS_BEFORE: u32 = 25;
const LEASE: Duration = Duration::from_secs(1);
/// The time that a transfer waits for its locks. Those of the killed process end within a lease.
const PATIENCE: Duration = Duration::from_secs(10);
/// The time for which the first process continues without the second.
const ALONE: Duration = Duration::from_secs(2);
/// Names the environment variable that tells the second process its bank.
const BANK: &str = "LEASEHOLD_TRANSFER_BANK";

fn main() -> Result<()> {
    let (url, _server) = at_hand::server()?;

    if let Ok(name) = env::var(BANK) {
        return Bank::open(&url, name)?.work_until_killed();
    }
    let bank = Bank::open(&url, Token::random().to_string())?;
    let mut conn = Client::open(url.as_str())?.get_connection()?;
    for account in 0..ACCOUNTS {
        let () = conn.set(bank.balance(account), FUNDS)?;
    }
    let worked = bank.work_beside_another(&url);
    let checked = worked.and_then(|seen| bank.check(&mut conn, &seen));
    bank.close(&mut conn)?;
    checked
}

/// The accounts of one run. All keys share a hash tag, so that a cluster keeps them in one slot.
struct Bank {
    name: String,
    locks: Locks,
}

/// The results of one or more threads.
#[derive(Default)]
struct Seen {
    moved: u32,
    /// The transfers that wrote nothing because a lock had been lost.
    late: u32,
    longest_wait: Duration,
}

impl Bank {
    fn open(url: &str, name: String) -> Result<Self> {
        // Without fencing tokens, no keys remain on the server.
        let options = Options::new().lease(LEASE).fencing(false);
        let locks = Locks::connect(url)?.with(options);
        Ok(Self { name, locks })
    }

    fn balance(&self, account: usize) -> String {
        format!("{{bank:{}}}:balance:{account}", self.name)
    }

    fn lock_name(&self, account: usize) -> String {
        format!("{{bank:{}}}:account:{account}", self.name)
    }

    /// Moves money alongside a second process until that is killed, and for a while afterwards.
    fn work_beside_another(&self, url: &str) -> Result<Seen> {
        let other = Command::new(env::current_exe()?)
            .arg(url)
            .env(BANK, &self.name)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut other = other.context("cannot start the second process")?;
        let stop = AtomicBool::new(false);
        thread::scope(|threads| {
            let work = || self.work(&stop);
            let workers: Vec<_> = (0..THREADS).map(|_| threads.spawn(work)).collect();
            let killed = kill_in_the_middle(&mut other);
            if killed.is_ok() {
                thread::sleep(ALONE);
            }
            stop.store(true, Ordering::SeqCst);
            let mut all = Seen::default();
            for worker in workers {
                all.add(&worker.join().ok().context("a thread panicked")??);
            }
            killed.map(|()| all)
        })
    }

    fn work(&self, stop: &AtomicBool) -> Result<Seen> {
        let mut seen = Seen::default();
        while !stop.load(Ordering::SeqCst) {
            self.transfer(&mut seen, |_, _| {})?;
        }
        Ok(seen)
    }

    /// Runs the second process.
    fn work_until_killed(&self) -> Result<()> {
        thread::spawn(|| {
            // The pipe closes when the first process exits, for whatever reason.
            let _ = stdin().read(&mut [0]);
            process::exit(1);
        });
        // A thread that fails ends the process, so that the first process does not wait for it.
        let end = |error| {
            eprintln!("the second process: {error:#}");
            process::exit(1)
        };
        let stop = AtomicBool::new(false);
        thread::scope(|threads| {
            for _ in 1..THREADS {
                threads.spawn(|| self.work(&stop).map_err(end));
            }
            self.die_in_a_transfer().map_err(end)
        })
    }

    fn die_in_a_transfer(&self) -> Result<()> {
        let mut seen = Seen::default();
        while seen.moved < TRANSFERS_BEFORE {
            self.transfer(&mut seen, |_, _| {})?;
        }
        self.transfer(&mut seen, |from, to| {
            println!("from account {from} to account {to}");
            thread::sleep(Duration::MAX);
        })
    }

    /// Moves some money if the balance allows it. Calls `before_writing` when both locks are held
    /// and the balance has been read.
    fn transfer(&self, seen: &mut Seen, before_writing: impl Fn(usize, usize)) -> Result<()> {
        let from = fastrand::usize(..ACCOUNTS);
        let to = (from + fastrand::usize(1..ACCOUNTS)) % ACCOUNTS;
        let amount = fastrand::i64(1..FUNDS / 2);
        let names = [from, to].map(|account| self.lock_name(account));
        let asked = Instant::now();
        let leases = self.locks.all_of(&names).acquire(PATIENCE)?;
        seen.longest_wait = seen.longest_wait.max(asked.elapsed());
        let (source, target) = (self.balance(from), self.balance(to));
        let moved = leases.transaction(&[], |conn, pipe| {
            let funds: i64 = conn.get(&source)?;
            before_writing(from, to);
            if funds < amount {
                return Ok(false); // nothing is written
            }
            pipe.decr(&source, amount).incr(&target, amount);
            Ok(true) // now both writes happen, or neither
        });
        seen.count(moved)?;
        match leases.release() {
            Err(Error::Lost { .. }) => Ok(()), // paused after the transfer
            released => Ok(released?),
        }
    }

    /// Checks that no money was created or lost, and that all locks can be acquired.
    fn check(&self, conn: &mut Connection, seen: &Seen) -> Result<()> {
        let &Seen { moved, late, .. } = seen;
        println!("the first process moved money {moved} times, and lost a lock {late} times");
        println!("its longest wait was {} ms", seen.longest_wait.as_millis());
        let names: Vec<String> = (0..ACCOUNTS).map(|n| self.lock_name(n)).collect();
        let all: Leases = self.locks.all_of(&names).acquire(PATIENCE)?;
        let balances: Vec<i64> = conn.mget(self.balances())?;
        all.release()?;
        let sum: i64 = balances.iter().sum();
        println!("the balances are {balances:?}; their sum: {sum}");
        ensure!(
            sum == i64::try_from(ACCOUNTS)? * FUNDS,
            "the sum of all accounts has changed"
        );
        ensure!(
            balances.iter().all(|&balance| balance >= 0),
            "an account is overdrawn"
        );
        ensure!(moved > 0, "no money was moved");
        Ok(())
    }

    fn balances(&self) -> Vec<String> {
        (0..ACCOUNTS).map(|n| self.balance(n)).collect()
    }

    fn close(&self, conn: &mut Connection) -> Result<()> {
        Ok(conn.del(self.balances())?)
    }
}

impl Seen {
    fn count(&mut self, moved: leasehold::Result<bool>) -> Result<()> {
        match moved {
            Err(Error::Lost { .. }) => self.late += 1,
            moved => self.moved += u32::from(moved?),
        }
        Ok(())
    }

    fn add(&mut self, more: &Self) {
        self.moved += more.moved;
        self.late += more.late;
        self.longest_wait = self.longest_wait.max(more.longest_wait);
    }
}

/// Kills the process while it holds both locks of a transfer, before it has written anything.
fn kill_in_the_middle(other: &mut Child) -> Result<()> {
    let says = other.stdout.take().context("no pipe")?;
    let line = BufReader::new(says).lines().next();
    other.kill()?;
    other.wait()?;
    let transfer = line.context("the second process failed")??;
    println!("the second process was killed in a transfer {transfer}");
    Ok(())
}
