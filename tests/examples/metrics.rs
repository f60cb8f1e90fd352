//! The example that counts lock events.

use crate::common::{Server, example};

#[test]
fn current_waits_and_holds_are_counted() {
    let server = Server::start().unwrap();
    let output = example("metrics").arg(server.url()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let (meanwhile, afterwards) = text.split_once("afterwards:").unwrap();
    let is_there = |text: &str, name, number| {
        let line = format!("{name}{{lock=\"account\"}} {number}");
        assert!(text.lines().any(|it| it == line), "{line}: {text}");
    };
    is_there(meanwhile, "lock_waiting", 2);
    is_there(meanwhile, "lock_held", 1);
    is_there(afterwards, "lock_waiting", 0);
    is_there(afterwards, "lock_held", 0);
    is_there(afterwards, "lock_wait_seconds_count", 4);
    is_there(afterwards, "lock_hold_seconds_count", 3);
    is_there(afterwards, "lock_contended_total", 1);
}
