//! `TracingEvents` as a subscriber sees it on the calling thread; the example covers the watchdog's
//! threads.

use std::{
    io,
    sync::{Arc, Mutex},
};

use leasehold::{Cancel, Locks, Options, TracingEvents};
use tracing::Level;
use tracing_subscriber::fmt::format::FmtSpan;

use crate::common::{LONG, MS, SLACK, Server};

#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The lines logged at this level and above, with the ends of spans.
fn logged(level: Level, run: impl FnOnce()) -> Vec<String> {
    let written = Written::default();
    let writer = written.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_ansi(false)
        .with_span_events(FmtSpan::CLOSE)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::with_default(subscriber, run);
    let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
    text.lines().map(ToOwned::to_owned).collect()
}

/// Without hand-over, which semaphores do not support.
fn options() -> Options {
    Options::new()
        .renewal(false)
        .events(Arc::new(TracingEvents::new()))
}

/// Number of lines that contain all of these texts.
fn count<const N: usize>(lines: &[String], texts: [&str; N]) -> usize {
    let has_all = |line: &&String| texts.iter().all(|text| line.contains(text));
    lines.iter().filter(has_all).count()
}

#[test]
fn each_wait_and_each_hold_is_a_span_that_closes() {
    let server = Server::start().unwrap();
    let locks = Locks::connect(&server.url()).unwrap().with(options());
    let mut tokens = Vec::new();
    let lines = logged(Level::TRACE, || {
        let span = tracing::info_span!("ours").entered();
        // Holds of one lock that end in another order than they began.
        let [first, second, third] = [(); 3].map(|()| {
            let lease = locks.semaphore("permits", 3).acquire(LONG).unwrap();
            tokens.push(lease.token().to_string());
            lease
        });
        assert!(
            locks
                .semaphore("permits", 3)
                .try_acquire()
                .unwrap()
                .is_none()
        );
        drop(first);
        let (token, _) = second.detach();
        tokens.push(token.to_string());
        assert!(locks.lock("").acquire(LONG).is_err());
        let cancel = Cancel::new();
        cancel.cancel();
        let lock = locks.lock("a").with(Options::new().cancel(&cancel));
        assert!(lock.acquire(MS).is_err());
        tracing::info!("between"); // outside any lock's span
        span.exit();
        std::thread::scope(|scope| scope.spawn(|| drop(third)).join().unwrap());
    });
    let text = lines.join("\n");
    for (texts, times) in [
        (["wait{", "DEBUG", "acquired lock="], 3),
        (["wait{", "INFO", "busy, given up"], 1),
        (["wait{", "WARN", "not acquired"], 1),
        (["wait{", "DEBUG", "cancelled"], 1),
        (["hold{", "DEBUG", "released"], 1), // the last one ends without a subscriber
        (["hold{", "DEBUG", "detached"], 1),
        (["wait{", "ours", "close"], 6),
        (["hold{", "ours", "close"], 3),
        (["INFO", "ours: ", ": between"], 1),
    ] {
        assert_eq!(count(&lines, texts), times, "{texts:?} {text}");
    }
    let between = lines.iter().find(|line| line.ends_with(": between"));
    assert!(!between.unwrap().contains('{'), "{between:?}");
    assert!(tokens.iter().all(|token| !text.contains(token)), "{text}");
}

#[test]
fn a_wait_through_an_outage_is_logged_before_it_ends() {
    let lines = logged(Level::INFO, || {
        let away = Locks::connect("redis://127.0.0.1:1/")
            .unwrap()
            .with(options());
        assert!(away.lock("a").acquire(2 * SLACK).is_err());
    });
    let retries: Vec<_> = lines
        .iter()
        .filter(|line| line.contains("failed, waiting") && line.contains("refused"))
        .filter_map(|line| Some(line.split_once(" failures=")?.1))
        .collect();
    assert_eq!(retries[..3], ["1", "2", "4"], "{lines:?}");
    assert_eq!(
        count(&lines, ["WARN", "not acquired", "in_a_row=1"]),
        1,
        "{lines:?}"
    );
}
