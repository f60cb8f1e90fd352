//! No renewal after a stop has returned: many races, checked against the commands that the server
//! executed.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use crate::common::{Server, hold::take_many};
use leasehold::{Keep, Pool, RenewalState, Watchdog, recipes::Hold};

const THREADS: usize = 16;
const BATCHES: usize = 10;
/// A third of it, the interval of renewals, is a millisecond.
const LEASE: Duration = Duration::from_millis(3);

#[test]
fn no_renewal_comes_after_a_stop_in_ten_thousand() {
    race(10_000);
}

#[test]
#[ignore = "minutes: cargo test --release --test watchdog stop:: -- --ignored"]
fn no_renewal_comes_after_a_stop_in_a_million() {
    for _ in 0..50 {
        race(20_000);
    }
}

/// Stops each lock at about the time of its first renewal. That time, as a thread on this machine
/// sees it, is learned from batch to batch.
fn race(locks: usize) {
    let server = Server::start().unwrap();
    let watchdog = Watchdog::new(&Pool::connect(&server.url()).unwrap()).unwrap();
    let holds = take_many(&server, "raced:", u32::try_from(locks).unwrap()).unwrap();
    let holds: Vec<_> = holds.into_iter().enumerate().collect();
    let mut history = History::from_now_on(&server, locks);
    let mut about_due = LEASE / 3;
    for batch in holds.chunks(locks.div_ceil(BATCHES)) {
        stop_all(&server, &watchdog, batch, about_due);
        let renewed = history.read(&server);
        if renewed > batch.len() * 3 / 4 {
            about_due /= 2;
        } else if renewed < batch.len() / 4 {
            about_due = about_due * 2 + Duration::from_micros(50);
        }
    }
    drop(watchdog);
    history.read(&server);
    history.assert_a_race();
}

fn stop_all(server: &Server, watchdog: &Watchdog, holds: &[(usize, Hold)], about_due: Duration) {
    thread::scope(|scope| {
        for (thread, holds) in (0..).zip(holds.chunks(holds.len().div_ceil(THREADS))) {
            scope.spawn(move || {
                let mut conn = server.connection().unwrap();
                for (turn, (number, hold)) in (0..).zip(holds) {
                    let percent = 75 + (turn * 7 + thread) % 50;
                    let state = stop_after(about_due * percent / 100, watchdog, hold);
                    redis::cmd("ECHO")
                        .arg(format!("{state:?}:{number}:"))
                        .exec(&mut conn)
                        .unwrap();
                }
            });
        }
    });
}

/// `Unknown`: the machine was too slow to read the answer to a renewal, which the server may
/// execute at any time.
fn stop_after(pause: Duration, watchdog: &Watchdog, hold: &Hold) -> RenewalState {
    // The locks are held for a minute, so no pause of the machine ends one.
    let keep = Keep::new(LEASE).held_until(Instant::now() + Duration::from_secs(30));
    let renewal = watchdog.keep_with(hold, keep).unwrap();
    thread::sleep(pause);
    renewal.stop()
}

/// The commands that the server executed, from `MONITOR`.
struct History {
    lines: BufReader<TcpStream>,
    stopped: Vec<bool>,
    renewed: Vec<bool>,
}

impl History {
    fn from_now_on(server: &Server, locks: usize) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        stream.write_all(b"MONITOR\r\n").unwrap();
        let mut history = Self {
            lines: BufReader::new(stream),
            stopped: vec![false; locks],
            renewed: vec![false; locks],
        };
        assert_eq!(history.next(), "+OK\r\n");
        history
    }

    fn next(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line
    }

    /// Reads up to now. Returns the number of locks renewed for the first time.
    fn read(&mut self, server: &Server) -> usize {
        let mut conn = server.connection().unwrap();
        redis::cmd("ECHO").arg("over").exec(&mut conn).unwrap();
        let mut newly_renewed = 0;
        loop {
            let line = self.next();
            if line.contains("\"over\"") {
                return newly_renewed;
            }
            if let Some(lock) = number_in(&line, "\"Held:") {
                self.stopped[lock] = true;
            } else if let Some(lock) =
                number_in(&line, "lock:raced:").filter(|_| line.contains("\"EVAL"))
            {
                assert!(!self.stopped[lock], "renewed after its stop: {line}");
                newly_renewed += usize::from(!self.renewed[lock]);
                self.renewed[lock] = true;
            }
        }
    }

    /// Many renewals had their answers; many stops came before the first renewal, and many after
    /// it.
    fn assert_a_race(&self) {
        let count = |which: &[bool]| which.iter().filter(|is| **is).count();
        let (locks, stopped) = (self.stopped.len(), count(&self.stopped));
        assert!(stopped > locks / 2, "{stopped} of {locks}");
        let (renewed, few) = (count(&self.renewed), locks / 50);
        assert!(
            (few..=locks - few).contains(&renewed),
            "{renewed} of {locks}"
        );
    }
}

fn number_in(line: &str, before: &str) -> Option<usize> {
    let (_, after) = line.split_once(before)?;
    let digits = after.find(|letter: char| !letter.is_ascii_digit())?;
    after[..digits].parse().ok()
}
