//! Writers that wait for readers, and readers that arrive meanwhile.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use leasehold::{Events, event::Retrying};
use redis::Commands;

use crate::{
    common::{
        Server,
        hold::comes_true,
        wait::{TOO_SLOW, unless_halted},
    },
    waiting::waiting,
};

const MS: Duration = Duration::from_millis(1);
const LONG: Duration = Duration::from_secs(20);

/// The intent of a waiting writer expires after a second unless renewed.
#[test]
fn readers_are_refused_while_a_writer_waits_behind_a_long_reader() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        // Another process than the writer's, so the local queue does not hold the readers back.
        let (locks, others) = (crate::connect(&server.url()), crate::connect(&server.url()));
        let reader = others.read("a").acquire(LONG).unwrap();
        thread::scope(|scope| {
            let writer = scope.spawn(|| locks.write("a").acquire(LONG).unwrap());
            let is_announced = || others.read("a").inspect().unwrap().waiting_writers() == 1;
            assert!(comes_true(is_announced));
            let announced = Instant::now();
            let mut came_in = false;
            while !came_in && announced.elapsed() < 2_500 * MS {
                came_in = others.read("a").try_acquire().unwrap().is_some();
                thread::sleep(20 * MS);
            }
            let waited = announced.elapsed();
            // Before any panic, because the scope waits for the writer.
            reader.release().unwrap();
            writer.join().unwrap().release().unwrap();
            assert!(!came_in, "a reader was granted after {waited:?}");
        });
        assert!(others.read("a").try_acquire().unwrap().is_some());
    });
}

/// Keeps a wait between its first attempt and the queue.
#[derive(Default)]
struct Gate {
    is_open: AtomicBool,
}

impl Events for Gate {
    fn retrying(&self, _: &Retrying<'_>) {
        assert!(comes_true(|| self.is_open.load(SeqCst)));
    }
}

/// Its intent would keep out the readers that it waits for, until the intent ends.
#[test]
fn a_writer_that_comes_into_the_queue_behind_readers_withdraws_its_intent() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let mut conn = server.connection().unwrap();
        let (locks, others) = (crate::connect(&server.url()), crate::connect(&server.url()));
        let held = others.read("a").acquire(LONG).unwrap();
        let gate = Arc::new(Gate::default());
        let (read, write) = (locks.read("a"), locks.write("a"));
        let write = write.with(crate::options().events(gate.clone()));
        thread::scope(|scope| {
            let writer = scope.spawn(|| write.acquire(LONG).unwrap());
            let is_announced = || read.inspect().unwrap().waiting_writers() == 1;
            assert!(comes_true(is_announced));
            let reader = scope.spawn(|| read.acquire(LONG).unwrap());
            assert!(comes_true(|| waiting(&read) == 1));
            let fields: Vec<(String, String)> = conn.hgetall("lock:a").unwrap();
            let intent = fields.iter().find(|(field, _)| field.starts_with("i:"));
            gate.is_open.store(true, SeqCst);
            let reader = reader.join().unwrap();
            let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(&mut conn).unwrap();
            let granted = seconds * 1_000 + micros / 1_000;
            reader.release().unwrap();
            held.release().unwrap();
            writer.join().unwrap().release().unwrap();
            let Some((_, ends)) = intent else {
                panic!("{TOO_SLOW}");
            };
            let ends: u64 = ends.parse().unwrap();
            assert!(granted < ends, "{granted} {ends}");
        });
    });
}
