//! The server answers with an error, or with nonsense.

use leasehold::Error;

use crate::{
    common::world::{self, Kind},
    trial::{LONG, Outcome, Trial, at_every_command},
};

/// Errors with which servers refuse commands.
const REFUSALS: [&str; 19] = [
    "LOADING Redis is loading the dataset in memory",
    "READONLY You can't write against a read only replica.",
    "OOM command not allowed when used memory > 'maxmemory'.",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    "CLUSTERDOWN The cluster is down",
    "TRYAGAIN Multiple keys request during rehashing of slot",
    "CROSSSLOT Keys in request don't hash to the same slot",
    "MOVED 3999 127.0.0.1:1",
    "ASK 3999 127.0.0.1:1",
    "NOAUTH Authentication required.",
    "NOPERM this user has no permissions to run this command",
    "NOREPLICAS Not enough good replicas to write.",
    "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
    "NOSCRIPT No matching script. Please use EVAL.",
    "UNBLOCKED force unblock from blocking operation, instance state changed",
    "WRONGTYPE Operation against a key holding the wrong kind of value",
    "ERR max number of clients reached",
    "SOMETHING that no server says yet",
];

/// Replies of a type that the command never returns.
const NONSENSE: [&str; 9] = [
    ":1\r\n",
    ":7\r\n",
    "+QUEUED\r\n",
    "+1\r\n",
    "$1\r\n1\r\n",
    "$0\r\n\r\n",
    "*0\r\n",
    "*-1\r\n",
    "*7\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n",
];

#[test]
fn any_command_is_refused() {
    at_every_command(|mut trial| {
        for refusal in REFUSALS {
            trial.begin_anew();
            let is_exec = trial.command() == "EXEC";
            let aborted = if is_exec {
                "EXECABORT Transaction discarded because of: "
            } else {
                ""
            };
            trial.point().refuse(&format!("{aborted}{refusal}"));
            let outcome = trial.call(LONG);
            judge_refusal(&mut trial, refusal, &outcome);
            world::assert_nothing_is_watched(&mut trial.conn, &mut trial.direct, &trial.what);
            trial.next_on_the_same_connection();
        }
    });
}

/// The command did not happen, the error quotes the server, and no lock remains.
fn judge_refusal(trial: &mut Trial, refusal: &str, outcome: &Outcome) {
    let what = format!("{} {refusal}", trial.what);
    let Err(error) = &outcome.result else {
        unreachable!("{what}: {:?}", outcome.result);
    };
    match error {
        // Without its MULTI, the rest is executed nevertheless.
        Error::Partial { .. } => assert_eq!(trial.command(), "MULTI", "{what}"),
        Error::WrongKind { .. } => {
            assert!(refusal.starts_with("WRONGTYPE"), "{what}: {error:?}");
            assert!(!trial.is_done(), "{what}: happened, but returned an error");
        }
        Error::Redis { .. } => {
            assert!(!trial.is_done(), "{what}: happened, but returned an error");
            let (_code, words) = refusal.split_once(' ').unwrap();
            assert!(outcome.text.contains(words), "{what}: {}", outcome.text);
        }
        other => unreachable!("{what}: {other:?}"),
    }
    trial.judge_text(outcome);
    world::assert_conserved(&mut trial.direct, &what);
    let left = world::new_locks(&mut trial.direct);
    assert_eq!(left, [""; 0], "{what}");
}

#[test]
fn any_command_is_answered_with_nonsense() {
    at_every_command(|mut trial| {
        for nonsense in NONSENSE {
            trial.begin_anew();
            trial.point().pretend(nonsense);
            let outcome = trial.call(LONG);
            let what = format!("{} {nonsense:?}", trial.what);
            let done = trial.is_done();
            match &outcome.result {
                Ok(answer) => assert!(done || !answer, "{what}: taken for success"),
                Err(Error::Reply { .. }) => assert!(done, "{what}: claimed, but not done"),
                Err(Error::Unknown { .. }) => {}
                Err(_) => assert!(!done, "{what}: happened, but returned an error"),
            }
            if trial.is_acquiring() && !done {
                let token = outcome.result.as_ref().unwrap_err().token();
                assert!(token.is_some(), "{what}: {:?}", outcome.result);
            }
            trial.judge_text(&outcome);
            if trial.function.kind != Kind::Acquire {
                trial.next_on_the_same_connection();
            }
        }
    });
}
