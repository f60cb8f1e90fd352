//! Writers that wait for readers, and readers that arrive meanwhile.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::common::{Server, hold::comes_true, wait::unless_halted};

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
