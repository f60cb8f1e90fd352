//! The example that sends events to `tracing`.

use crate::common::{Server, example, wait::unless_halted};

#[test]
fn lock_events_appear_in_tracing() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let output = example("tracing_events").arg(server.url()).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{output:?}");
        let log = String::from_utf8(output.stdout).unwrap();
        // In this order. Events on the watchdog's threads are also in the span of the acquire.
        let (wait, hold) = ("wait{lock=\"traced\"}: ", "hold{lock=\"traced\"}: ");
        let mut lines = log.lines();
        for expected in [
            ["DEBUG", "report{page=1}:", wait, "acquired", "fence="],
            ["INFO", "", wait, "busy, given up", "attempts="],
            ["TRACE", "report{page=1}:", hold, "renewed", "remaining="],
            ["DEBUG", "report{page=1}:", hold, "released", "held="],
            ["DEBUG", "report{page=1}:", wait, "acquired", "fence="],
            ["ERROR", "report{page=1}:", hold, "lost", "reason="],
            [
                "WARN",
                "report{page=1}:",
                hold,
                "ended",
                "end=Lost(TakenAway)",
            ],
        ] {
            let is_next = |line: &str| expected.iter().all(|text| line.contains(*text));
            assert!(lines.any(is_next), "{expected:?}: {log}");
        }
        // Of nine failures in a row the first, second, fourth and eighth, each with its causes.
        let failed = lines.filter(|line| line.contains("not acquired"));
        let failed: Vec<_> = failed.collect();
        let is_told = |(line, number): (&&str, &u32)| {
            line.contains("refused") && line.ends_with(&format!("in_a_row={number}"))
        };
        assert!(failed.iter().zip(&[1, 2, 4, 8]).all(is_told), "{log}");
        assert_eq!(failed.len(), 4, "{log}");
    });
}
