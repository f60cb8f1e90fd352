//! No renewal after a stop has returned: raced many times, and checked in what the server says it executed.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use crate::common::Server;
use leasehold::{Keep, Pool, RenewalState, Token, Watchdog, recipes::mutex::Hold};

const THREADS: usize = 16;
/// A third of it, the period of the renewals, is a millisecond.
const LEASE: Duration = Duration::from_millis(3);

#[test]
fn no_renewal_comes_after_a_stop_in_ten_thousand() {
    race(10_000);
}

/// `cargo test --release --test watchdog stop:: -- --ignored`
#[test]
#[ignore = "takes minutes"]
fn no_renewal_comes_after_a_stop_in_a_million() {
    for _ in 0..50 {
        race(20_000);
    }
}

/// Each lock is stopped at about the moment at which its first renewal is due.
fn race(locks: u32) {
    let server = Server::start().unwrap();
    let watchdog = Watchdog::start(&Pool::connect(&server.url()).unwrap()).unwrap();
    let holds = held(&server, locks);
    let monitor = monitor(&server);

    thread::scope(|scope| {
        for (thread, holds) in (0..).zip(holds.chunks(holds.len().div_ceil(THREADS))) {
            let (server, watchdog) = (&server, &watchdog);
            scope.spawn(move || {
                let mut conn = server.connection().unwrap();
                for (turn, (number, hold)) in holds.iter().enumerate() {
                    let state = stop_when_due(watchdog, hold, turn as u64 * 7 + thread);
                    redis::cmd("ECHO")
                        .arg(format!("{state:?}:{number}:"))
                        .exec(&mut conn)
                        .unwrap();
                }
            });
        }
    });
    drop(watchdog);
    redis::cmd("ECHO")
        .arg("over")
        .exec(&mut server.connection().unwrap())
        .unwrap();
    check(monitor, locks);
}

/// `Unknown`: the machine has overslept the answer to a renewal, which the server may execute whenever it gets to it.
fn stop_when_due(watchdog: &Watchdog, hold: &Hold, seed: u64) -> RenewalState {
    // The locks are held for a minute, so that no pause of the machine ends one.
    let keep = Keep::lease(LEASE).held_until(Instant::now() + Duration::from_secs(30));
    let renewal = watchdog.keep_with(hold, keep).unwrap();
    let about_due = Duration::from_micros(750 + seed % 400);
    thread::sleep(about_due);
    renewal.stop()
}

fn held(server: &Server, locks: u32) -> Vec<(u32, Hold)> {
    let mut take = redis::pipe();
    let mut holds = Vec::new();
    for number in 0..locks {
        let (name, token) = (format!("raced:{number}:"), Token::random());
        take.cmd("SET")
            .arg(format!("lock:{name}"))
            .arg(token.to_string())
            .arg("PX")
            .arg(60_000);
        holds.push((number, Hold::new(&name, &token).unwrap()));
    }
    take.exec(&mut server.connection().unwrap()).unwrap();
    holds
}

/// Every command from now on, as the server says it.
fn monitor(server: &Server) -> BufReader<TcpStream> {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    stream.write_all(b"MONITOR\r\n").unwrap();
    let mut lines = BufReader::new(stream);
    assert_eq!(next(&mut lines), "+OK\r\n");
    lines
}

fn next(lines: &mut impl BufRead) -> String {
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    line
}

fn check(mut lines: impl BufRead, locks: u32) {
    let locks = locks as usize;
    let (mut stopped, mut renewed) = (vec![false; locks], vec![false; locks]);
    loop {
        let line = next(&mut lines);
        if line.contains("\"over\"") {
            break;
        }
        if let Some(lock) = number_in(&line, "\"Held:") {
            stopped[lock] = true;
        } else if let Some(lock) =
            number_in(&line, "lock:raced:").filter(|_| line.contains("\"EVAL"))
        {
            assert!(!stopped[lock], "renewed after its stop: {line}");
            renewed[lock] = true;
        }
    }
    let count = |which: &[bool]| which.iter().filter(|is| **is).count();
    let (stopped, renewed) = (count(&stopped), count(&renewed));
    assert!(
        stopped > locks * 9 / 10,
        "only {stopped} of {locks} had their answers"
    );
    // Otherwise it was no race.
    assert!(
        renewed > locks / 20 && renewed < locks - locks / 20,
        "{renewed} of {locks}"
    );
}

fn number_in(line: &str, before: &str) -> Option<usize> {
    let (_, after) = line.split_once(before)?;
    let digits = after.find(|letter: char| !letter.is_ascii_digit())?;
    after[..digits].parse().ok()
}
