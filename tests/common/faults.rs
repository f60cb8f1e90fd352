//! Every command of a function × every fault on its way.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::{fmt, time::Duration};

use leasehold::{Error, Result, Token};
use redis::{Commands, Connection, cmd};

use super::{Proxy, Server, wait::at_once};

/// The read time-out for a reply that is swallowed.
pub const SILENCE: Duration = Duration::from_millis(250);

#[derive(Clone, Copy, Debug)]
enum Fault {
    CutBefore,
    CutAfter,
    Swallow,
}

/// The position of the fault.
#[derive(Clone, Copy, Debug)]
struct Case {
    /// True if the server has the script cached; otherwise the client sends the hash and then the
    /// script.
    known: bool,
    nth: usize,
    is_last: bool,
}

/// Breaks each command of the call in turn, with and without a cached script, and checks after
/// each.
///
/// The call receives a lock name; its work on the lock `a` goes through the connection that breaks.
/// The check learns whether the server executed the last command.
pub fn for_each_fault<T: fmt::Debug>(
    is_script: bool,
    arrange: impl Fn(&mut Connection) + Sync,
    call: impl Fn(&mut Connection, &str) -> Result<T> + Sync,
    check: impl Fn(&mut Connection, Result<T>, bool) + Sync,
) {
    let case = |known, nth, is_last| Case {
        known,
        nth,
        is_last,
    };
    let mut cases = vec![case(true, 1, true)];
    if is_script {
        cases.extend([case(false, 1, false), case(false, 2, true)]);
    }
    at_once(cases, |case| break_there(case, &arrange, &call, &check));
}

fn break_there<T: fmt::Debug>(
    case: Case,
    arrange: impl Fn(&mut Connection),
    call: impl Fn(&mut Connection, &str) -> Result<T>,
    check: impl Fn(&mut Connection, Result<T>, bool),
) {
    let server = Server::start().unwrap();
    let mut direct = server.connection().unwrap();
    for fault in [Fault::CutBefore, Fault::CutAfter, Fault::Swallow] {
        // On a busy machine an intact reply may take this long too: retry with a longer time-out.
        let result = [SILENCE, 4 * SILENCE, 16 * SILENCE]
            .iter()
            .find_map(|silence| {
                cmd("FLUSHALL").exec(&mut direct).unwrap();
                arrange(&mut direct);
                if case.known {
                    let _ = call(&mut direct, "known");
                } else {
                    cmd("SCRIPT").arg("FLUSH").exec(&mut direct).unwrap();
                }
                let proxy = Proxy::in_front_of(&server).unwrap();
                let mut conn = proxy.connection().unwrap();
                let point = proxy.at_command(case.nth);
                match fault {
                    Fault::CutBefore => point.cut_before(),
                    Fault::CutAfter => point.cut_after(),
                    Fault::Swallow => {
                        conn.set_read_timeout(Some(*silence)).unwrap();
                        point.swallow();
                    }
                }
                let result = call(&mut conn, "a");
                proxy.happened().then_some(result)
            });
        let result = result.unwrap_or_else(|| panic!("no {fault:?}, {case:?}"));
        check(
            &mut direct,
            result,
            case.is_last && !matches!(fault, Fault::CutBefore),
        );
    }
}

/// Asserts that every key ends, the lock's own within `at_most`.
#[track_caller]
pub fn assert_all_ends(conn: &mut Connection, at_most: Duration) {
    // A key expires a millisecond after its last hold.
    let longest = i64::try_from(at_most.as_millis()).unwrap() + 1;
    for key in conn.keys::<_, Vec<String>>("*").unwrap() {
        let left: i64 = conn.pttl(&key).unwrap();
        // It may have expired since.
        let is_in_time = left <= longest || key.ends_with(":lease");
        assert!(left != -1 && is_in_time, "{key} lasts {left} ms");
    }
}

/// Asserts an unknown outcome; for an acquire, the error carries the token.
#[track_caller]
pub fn assert_unknown<T: fmt::Debug>(what: &str, result: &Result<T>, token: Option<&Token>) {
    let is_unknown = matches!(result, Err(Error::Unknown { .. }));
    assert!(is_unknown, "{what}: {result:?}");
    assert_eq!(result.as_ref().unwrap_err().token(), token, "{what}");
}
