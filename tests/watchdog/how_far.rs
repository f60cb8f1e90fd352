//! The server's cost of processes, leases and waiting threads, compared with the formulas of
//! docs/servers.md, whose figures are from Redis 7.0:
//! `cargo test --release --test watchdog how_far -- --ignored --nocapture`
#![allow(clippy::print_stderr, reason = "the figures are the result")]

use std::{
    env,
    io::{BufRead, BufReader, Read, Write},
    process::{Child, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use leasehold::{Locks, Options};
use redis::Connection;

use crate::common::Server;

const PROCESSES: u32 = 200;
/// Per process; every second one has no fencing token.
const LEASES: u32 = 500;
const LEASE: Duration = Duration::from_secs(45);
const THIRD: Duration = Duration::from_secs(15);
/// Two fifths of the tracked keys.
const TABLE: u32 = 60_000;
const PATIENCE: Duration = Duration::from_mins(1);

const SERVER: &str = "LEASEHOLD_TEST_SERVER";
const NUMBER: &str = "LEASEHOLD_TEST_NUMBER";

/// Another process, killed when dropped.
struct Process {
    child: Child,
    says: BufReader<ChildStdout>,
}

impl Process {
    fn start(server: &Server, number: u32) -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "how_far::holds_until_it_is_killed"])
            .args(["--ignored", "--nocapture"])
            .env(SERVER, server.url())
            .env(NUMBER, number.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let says = BufReader::new(child.stdout.take().unwrap());
        Self { child, says }
    }

    fn hear(&mut self, what: &str) {
        let mut line = String::new();
        while !line.contains(what) {
            line.clear();
            let read = self.says.read_line(&mut line).unwrap();
            assert!(read > 0, "it never printed {what}");
        }
    }

    fn go_on(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"!").unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Holds its leases; on command it also waits for the first lock of the next process.
#[test]
#[ignore = "run by another test, in its own process"]
fn holds_until_it_is_killed() {
    let (Ok(url), Ok(number)) = (env::var(SERVER), env::var(NUMBER)) else {
        return;
    };
    let number: u32 = number.parse().unwrap();
    let settings = Options::new()
        .lease(LEASE)
        .fencing(number.is_multiple_of(2));
    let locks = Locks::connect(&url).unwrap().with(settings);
    let lock = |process, lease| locks.lock(&format!("report:{process:05}:{lease:05}"));
    let _leases: Vec<_> = (0..LEASES)
        .map(|lease| lock(number, lease).acquire(PATIENCE).unwrap())
        .collect();
    writeln!(std::io::stdout(), "\nholding").unwrap();
    std::io::stdin().read_exact(&mut [0]).unwrap();
    let never = lock((number + 1) % PROCESSES, 0).acquire(PATIENCE * 60);
    panic!("killed before: {never:?}");
}

/// The server's own figures.
#[derive(Clone, Copy)]
struct Load {
    at: Instant,
    connections: f64,
    tracked: f64,
    scripts: f64,
    pings: f64,
    /// Attempts of waiting threads: each reads the lock and its expiry once; a renewal reads the
    /// lock twice.
    attempts: f64,
    cpu: f64,
    of_clients: f64,
    of_the_rest: f64,
}

impl Load {
    fn now(conn: &mut Connection) -> Self {
        let said: String = redis::cmd("INFO").arg("everything").query(conn).unwrap();
        let at = Instant::now();
        let info = |name: &str| {
            let mut lines = said.lines().filter_map(|line| line.split_once(':'));
            let figure = lines.find_map(|(key, figure)| (key == name).then_some(figure))?;
            let figure = figure.strip_prefix("calls=").unwrap_or(figure);
            figure.split(',').next()?.parse().ok()
        };
        let figure = |name: &str| info(name).unwrap_or(0.0);
        let of_clients = figure("mem_clients_normal");
        Self {
            at,
            connections: figure("connected_clients") - 1.0,
            tracked: figure("tracking_total_keys"),
            scripts: figure("cmdstat_evalsha"),
            pings: figure("cmdstat_ping"),
            attempts: 2.0 * figure("cmdstat_pttl") - figure("cmdstat_get"),
            cpu: figure("used_cpu_user") + figure("used_cpu_sys"),
            of_clients,
            of_the_rest: figure("used_memory") - of_clients,
        }
    }

    /// The growth per second of a figure, between this load and a later one.
    fn growth(&self, now: &Self, figure: fn(&Self) -> f64) -> f64 {
        (figure(now) - figure(self)) / now.at.duration_since(self.at).as_secs_f64()
    }
}

/// The processes, and the comparison with the formulas.
struct Run {
    conn: Connection,
    processes: Vec<Process>,
    off: Vec<String>,
}

impl Run {
    /// Prints both, and records a figure that differs by more than a tenth.
    fn row(&mut self, what: &str, measured: f64, formula: f64) {
        eprintln!("{what:<44} {measured:>9.0} {formula:>9.0}");
        if (measured - formula).abs() > formula / 10.0 {
            let off = format!("{what}: {measured:.0}, not {formula:.0}");
            self.off.push(off);
        }
    }

    /// Makes every second process acquire its leases.
    fn take(&mut self, server: &Server, first: u32, (keys, bytes): (f64, f64)) {
        let before = Load::now(&mut self.conn);
        let numbers = (first..PROCESSES).step_by(2);
        let mut started: Vec<_> = numbers
            .map(|number| Process::start(server, number))
            .collect();
        for process in &mut started {
            process.hear("holding");
        }
        // The watchdog reads each lease after 20 ms.
        thread::sleep(Duration::from_secs(1));
        let now = Load::now(&mut self.conn);
        let processes = f64::from(PROCESSES / 2);
        let leases = processes * f64::from(LEASES);
        let bytes_each = (now.of_the_rest - before.of_the_rest) / leases;
        self.row(
            "connections",
            now.connections - before.connections,
            3.0 * processes,
        );
        self.row(
            "keys in the tracking table",
            now.tracked - before.tracked,
            keys * leases,
        );
        self.row("bytes a lease", bytes_each, bytes);
        self.processes.append(&mut started);
    }

    /// The load now and a third of a lease later.
    fn for_a_third(&mut self) -> (Load, Load) {
        let before = Load::now(&mut self.conn);
        thread::sleep(THIRD);
        (before, Load::now(&mut self.conn))
    }

    fn renew(&mut self) {
        // From now on each lease is renewed together with the others of its process.
        thread::sleep(THIRD);
        let (before, now) = self.for_a_third();
        let renewals = f64::from(PROCESSES * LEASES) / THIRD.as_secs_f64();
        self.row(
            "renewals a second",
            before.growth(&now, |load| load.scripts),
            renewals,
        );
        // A little less than two: each heartbeat starts a second after the previous one has ended.
        self.row(
            "PINGs a second",
            before.growth(&now, |load| load.pings),
            1.85 * f64::from(PROCESSES),
        );
        let micros =
            1e6 * before.growth(&now, |load| load.cpu) / before.growth(&now, |load| load.scripts);
        eprintln!("microseconds of the server a renewal: {micros:.1}");
        eprintln!(
            "bytes a connection: {:.0}",
            now.of_clients / now.connections
        );
    }

    fn wait(&mut self) {
        for process in &mut self.processes {
            process.go_on();
        }
        thread::sleep(THIRD / 4);
        let (before, now) = self.for_a_third();
        let processes = f64::from(PROCESSES);
        let attempts = processes * (1.0 + 1.0 / THIRD.as_secs_f64());
        self.row(
            "connections, with a waiter each",
            now.connections,
            4.0 * processes,
        );
        self.row(
            "attempts a second",
            before.growth(&now, |load| load.attempts),
            attempts,
        );
    }

    /// The server drops tracked keys, and reports each as changed.
    fn track_fewer(&mut self) {
        let mut limit = redis::cmd("CONFIG");
        limit.arg("SET").arg("tracking-table-max-keys").arg(TABLE);
        limit.exec(&mut self.conn).unwrap();
        let (before, now) = self.for_a_third();
        let scripts = before.growth(&now, |load| load.scripts);
        eprintln!("scripts a second, the table too small: {scripts:.0}");
    }
}

#[test]
#[ignore = "90 s of both cores: cargo test --release --test watchdog how_far -- --ignored --nocapture"]
fn how_far_it_goes() {
    let server = Server::start().unwrap();
    let mut run = Run {
        conn: server.connection().unwrap(),
        processes: Vec::new(),
        off: Vec::new(),
    };
    eprintln!("{:<44} {:>9} {:>9}", "", "measured", "formula");
    run.take(&server, 0, (2.0, 730.0));
    run.take(&server, 1, (1.0, 300.0));
    run.renew();
    run.wait();
    run.track_fewer();
    let keys: u32 = redis::cmd("DBSIZE").query(&mut run.conn).unwrap();
    assert_eq!(
        keys,
        PROCESSES * LEASES / 2 * 3,
        "all locks, and a companion for every second"
    );
    assert!(run.off.is_empty(), "{:#?}", run.off);
}
