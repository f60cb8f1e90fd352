//! Two processes compete for one lock; their threads acquire it again as soon as they have released
//! it.

use std::{
    env,
    io::{BufRead, BufReader, Write},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use leasehold::Locks;

use crate::common::{
    LONG, MS, Server,
    wait::{PATIENCE, unless_halted},
};

const INSIDE: Duration = Duration::from_micros(100);
/// The other process's settings: server, number of threads, and working time in milliseconds.
const SERVER: &str = "LEASEHOLD_TEST_CROWD_SERVER";
const THREADS: &str = "LEASEHOLD_TEST_CROWD_THREADS";
const MILLIS: &str = "LEASEHOLD_TEST_CROWD_MILLIS";

/// The result of one process.
#[derive(Debug)]
struct Got {
    acquires: u32,
    worst: Duration,
}

/// The other process: reports that it is ready, works on command, and reports its result.
#[test]
#[ignore = "run by another test, in its own process"]
#[allow(clippy::print_stdout, reason = "read by the test that starts it")]
fn works_when_it_is_told_to() {
    let Ok(url) = env::var(SERVER) else {
        return;
    };
    let threads: usize = env::var(THREADS).unwrap().parse().unwrap();
    let millis: u64 = env::var(MILLIS).unwrap().parse().unwrap();
    let locks = crate::connect(&url);
    drop(locks.lock("warm").acquire(LONG).unwrap());
    println!("\nready");
    let mut told = String::new();
    std::io::stdin().read_line(&mut told).unwrap();
    let end = Instant::now() + Duration::from_millis(millis);
    let all: Vec<_> = thread::scope(|scope| {
        let work = || work_until(&locks, end);
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let acquires: u32 = all.iter().map(|got| got.acquires).sum();
    let worst = all.iter().map(|got| got.worst).max().unwrap();
    println!("\ngot {acquires} {}", worst.as_micros());
}

fn work_until(locks: &Locks, end: Instant) -> Got {
    let lock = locks.lock("a");
    let (mut acquires, mut worst) = (0, Duration::ZERO);
    while Instant::now() < end {
        let asked = Instant::now();
        let lease = lock.acquire(LONG).unwrap();
        worst = worst.max(asked.elapsed());
        let inside = Instant::now();
        while inside.elapsed() < INSIDE {
            std::hint::spin_loop();
        }
        lease.release().unwrap();
        acquires += 1;
    }
    Got { acquires, worst }
}

fn start(server: &Server, threads: usize, millis: Duration) -> Child {
    Command::new(env::current_exe().unwrap())
        .args(["--exact", "crowds::works_when_it_is_told_to"])
        .args(["--ignored", "--nocapture"])
        .env(SERVER, server.url())
        .env(THREADS, threads.to_string())
        .env(MILLIS, millis.as_millis().to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn two_crowds(threads: usize, time: Duration) -> [Got; 2] {
    let server = Server::start().unwrap();
    let mut crowds = [(); 2].map(|()| {
        let mut child = start(&server, threads, time);
        let says = BufReader::new(child.stdout.take().unwrap()).lines();
        (child, says.map(Result::unwrap))
    });
    for (_, says) in &mut crowds {
        assert!(says.any(|line| line == "ready"));
    }
    for (child, _) in &mut crowds {
        writeln!(child.stdin.take().unwrap(), "go").unwrap();
    }
    crowds.map(|(mut child, mut says)| {
        let got = says.find_map(|line| line.strip_prefix("got ").map(str::to_owned));
        let got = got.unwrap();
        let (acquires, micros) = got.split_once(' ').unwrap();
        assert!(child.wait().unwrap().success());
        Got {
            acquires: acquires.parse().unwrap(),
            worst: Duration::from_micros(micros.parse().unwrap()),
        }
    })
}

/// The smaller share of the two processes, if no wait was longer than `longest`.
#[allow(clippy::print_stderr, reason = "the figures are the result")]
fn least_share(threads: usize, time: Duration, longest: Duration) -> f64 {
    let crowds = two_crowds(threads, time);
    let all: u32 = crowds.iter().map(|crowd| crowd.acquires).sum();
    eprintln!("{all} acquires in {time:?}: {crowds:?}");
    for crowd in &crowds {
        assert!(crowd.worst < longest, "a wait of {:?}", crowd.worst);
    }
    let least = crowds.iter().map(|crowd| crowd.acquires).min().unwrap();
    f64::from(least) / f64::from(all)
}

#[test]
fn neither_of_two_processes_is_starved() {
    unless_halted(|| {
        // A busy machine may keep one of them from running.
        let mut shares = (0..5).map(|_| least_share(8, 600 * MS, PATIENCE));
        assert!(shares.any(|share| share >= 0.05));
    });
}

/// Each waits on its own connection, and pauses for half a millisecond after its turns; a socket's
/// time-out takes ten.
#[test]
fn two_threads_that_wait_alone_share_the_lock_fairly() {
    // A busy machine may keep one of them from running.
    let mut shares = (0..8).map(|_| least_share(1, 1_000 * MS, LONG));
    assert!(shares.any(|share| share >= 0.4));
}
