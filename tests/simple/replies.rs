//! Replies of `commit_while_held`: results of any type, refusals, and commands that it rejects.

use std::{collections::HashMap, error::Error as _, io, sync::Arc, time::Duration};

use crate::common::{Server, start, tell, wait};
use leasehold::{Error, ErrorContext, Result, Token, acquire_lock_with_timeout, commit_while_held};
use redis::{Commands, Connection, FromRedisValue, Pipeline};

/// A server, a connection, and a lock `a` held with the token.
struct Held {
    server: Server,
    conn: Connection,
    token: Token,
}

impl Held {
    fn start() -> Self {
        let (server, mut conn) = start();
        let lease = Duration::from_secs(10);
        let token = acquire_lock_with_timeout(&mut conn, "a", Duration::ZERO, lease);
        Self {
            server,
            conn,
            token: token.unwrap().unwrap(),
        }
    }

    fn commit<T: FromRedisValue>(&mut self, build: impl FnMut(&mut Pipeline)) -> Result<T> {
        commit_while_held(&mut self.conn, "a", &self.token, build)
    }

    /// The next command gets its own answer, and no key is watched.
    fn assert_conn_is_clean(&mut self) {
        let mut other = self.server.connection().unwrap();
        let () = other.pexpire("lock:a", 10_000).unwrap();
        let (pong,): (String,) = redis::pipe()
            .atomic()
            .cmd("ECHO")
            .arg("mine")
            .query(&mut self.conn)
            .unwrap();
        assert_eq!(pong, "mine");
    }
}

#[test]
fn results_have_the_requested_type() {
    let mut held = Held::start();
    let build = |pipeline: &mut Pipeline| {
        pipeline.set("text", "x").ignore().get("text");
        pipeline.get("missing").incr("n", 1);
    };
    let () = held.commit(build).unwrap();
    let tuple: (String, Option<String>, i64) = held.commit(build).unwrap();
    assert_eq!(tuple, ("x".to_owned(), None, 2));
    let list: Vec<Option<String>> = held.commit(build).unwrap();
    assert_eq!(list, [Some("x".to_owned()), None, Some("3".to_owned())]);
    let option: Option<(String, Option<String>, i64)> = held.commit(build).unwrap();
    assert_eq!(option, Some(("x".to_owned(), None, 4)));

    let map: (HashMap<String, i64>,) = held
        .commit(|pipeline| {
            pipeline.hset_multiple("h", &[("f", 1), ("g", 2)]).ignore();
            pipeline.hgetall("h");
        })
        .unwrap();
    assert_eq!(map.0.len(), 2);
}

#[test]
fn atomic_and_ignoring_pipelines_are_the_same_transaction() {
    let mut held = Held::start();
    let pair: (i64, i64) = held
        .commit(|pipeline| {
            pipeline.atomic().incr("n", 1).set("x", 1).ignore();
            pipeline.incr("n", 1);
        })
        .unwrap();
    assert_eq!(pair, (1, 2));

    let none: Vec<i64> = held
        .commit(|pipeline| {
            pipeline.incr("n", 1).ignore().incr("n", 1).ignore();
        })
        .unwrap();
    assert!(none.is_empty());
    assert_eq!(held.conn.get("n"), Ok(4));
}

#[test]
fn a_resp3_connection_behaves_the_same() {
    let mut held = Held::start();
    let url = format!("{}?protocol=resp3", held.server.url());
    held.conn = redis::Client::open(url).unwrap().get_connection().unwrap();

    let (count, fields): (i64, HashMap<String, i64>) = held
        .commit(|pipeline| {
            pipeline
                .incr("n", 1)
                .hset("h", "f", 7)
                .ignore()
                .hgetall("h");
        })
        .unwrap();
    assert_eq!((count, fields["f"]), (1, 7));
    held.token = Token::random();
    let lost: Result<()> = held.commit(|_| {});
    assert!(matches!(lost, Err(Error::Lost { .. })), "{lost:?}");
    held.assert_conn_is_clean();
}

#[test]
fn a_push_message_is_not_taken_for_an_answer() {
    let mut held = Held::start();
    let url = format!("{}?protocol=resp3", held.server.url());
    held.conn = redis::Client::open(url).unwrap().get_connection().unwrap();
    tell(&mut held.conn, "CLIENT TRACKING ON BCAST");
    let mut other = held.server.connection().unwrap();
    for n in 1..=3 {
        // The server sends a notification of this write before any other answer.
        let () = other.set("elsewhere", n).unwrap();
        let (count,): (i64,) = held
            .commit(|pipeline| {
                pipeline.incr("n", 1);
            })
            .unwrap();
        assert_eq!(count, n);
    }
    held.assert_conn_is_clean();
}

#[test]
fn one_refusal_among_executed_commands_is_partial() {
    let mut held = Held::start();
    for ignore_errors in [false, true] {
        let partial: Result<redis::Value> = held.commit(|pipeline| {
            pipeline
                .set("text", "x")
                .ignore()
                .rpush("text", "y")
                .ignore();
            pipeline.incr("n", 1);
            if ignore_errors {
                pipeline.ignore_errors();
            }
        });
        assert!(
            matches!(&partial, Err(Error::Partial { context, .. }) if context.lock == "a"),
            "{partial:?}"
        );
        let refusal = partial.unwrap_err().source().unwrap().to_string();
        assert!(refusal.contains("WRONGTYPE"), "{refusal}");
    }
    assert_eq!(held.conn.get("n"), Ok(2));
    held.assert_conn_is_clean();
}

#[test]
fn a_transaction_of_refusals_only_did_nothing() {
    let mut held = Held::start();
    let () = held.conn.set("text", "x").unwrap();
    let refused: Result<()> = held.commit(|pipeline| {
        pipeline.incr("text", 1).incr("text", 2);
    });
    assert!(matches!(refused, Err(Error::Redis { .. })), "{refused:?}");
    let refused: Result<()> = held.commit(|pipeline| {
        pipeline.rpush("text", "y");
    });
    assert!(
        matches!(refused, Err(Error::WrongKind { .. })),
        "{refused:?}"
    );
    assert_eq!(held.conn.get("text"), Ok("x".to_owned()));
    held.assert_conn_is_clean();
}

#[test]
fn a_failed_script_may_have_written_before() {
    let mut held = Held::start();
    let script = "redis.call('SET', 'n', 1) return redis.call('NOSUCH')";
    for command in ["EVAL", "eval"] {
        let partial: Result<()> = held.commit(|pipeline| {
            pipeline.cmd(command).arg(script).arg(0);
        });
        assert!(matches!(partial, Err(Error::Partial { .. })), "{partial:?}");
    }
    assert_eq!(held.conn.get("n"), Ok(1));
    held.assert_conn_is_clean();
}

#[test]
fn a_command_that_the_server_rejects_stops_the_others() {
    let mut held = Held::start();
    for (command, words) in [("NOSUCH", "unknown command"), ("GET", "wrong number")] {
        let refused: Result<()> = held.commit(|pipeline| {
            pipeline.incr("n", 1).cmd(command);
            pipeline.incr("n", 1);
        });
        let Err(Error::Redis { source, .. }) = &refused else {
            panic!("{refused:?}");
        };
        let source = source.to_string();
        assert!(source.contains(words), "{source}: the cause, not EXECABORT");
        assert_eq!(held.conn.exists("n"), Ok(false));
        held.assert_conn_is_clean();
    }
}

#[test]
fn results_of_another_type_or_number_were_executed() {
    let mut held = Held::start();
    let build = |pipeline: &mut Pipeline| {
        pipeline.incr("n", 1).set("text", "x").ignore().get("text");
    };
    let not_a_number: Result<(i64, i64)> = held.commit(build);
    assert!(
        matches!(&not_a_number, Err(Error::Reply { context, .. }) if context.lock == "a"),
        "{not_a_number:?}"
    );
    let not_three: Result<(i64, String, String)> = held.commit(build);
    assert!(
        matches!(not_three, Err(Error::Reply { .. })),
        "{not_three:?}"
    );
    assert_eq!(held.conn.get("n"), Ok(2));
    held.assert_conn_is_clean();
}

#[test]
fn an_unreadable_answer_is_not_repeated_in_the_error() {
    let mut held = Held::start();
    let error = held
        .commit::<(i64,)>(|pipeline| {
            pipeline.get("lock:a");
        })
        .unwrap_err();
    let shown = format!("{error} {error:?} {}", error.source().unwrap());
    assert!(!shown.contains(&held.token.to_string()), "{shown}");
}

#[test]
fn commands_that_break_a_transaction_or_change_the_connection_are_refused() {
    let mut held = Held::start();
    let mut other = held.server.connection().unwrap();
    tell(&mut other, "CONFIG RESETSTAT");
    let not_taken = "MULTI EXEC DISCARD WATCH UNWATCH SUBSCRIBE PSUBSCRIBE SSUBSCRIBE UNSUBSCRIBE \
        PUNSUBSCRIBE SUNSUBSCRIBE MONITOR CLIENT QUIT RESET HELLO AUTH SELECT multi Exec";
    for command in not_taken.split(' ').chain([""]) {
        let refused: Result<()> = held.commit(|pipeline| {
            pipeline.incr("n", 1).cmd(command).arg("x").arg("y");
        });
        assert!(
            matches!(
                refused,
                Err(Error::Invalid {
                    argument: "pipeline",
                    ..
                })
            ),
            "{command}: {refused:?}"
        );
    }
    let refused: Result<()> = held.commit(|pipeline| {
        pipeline.add_command(redis::Cmd::new());
    });
    assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");

    assert_eq!(
        wait::calls(&mut other, "watch").unwrap(),
        0,
        "nothing was sent"
    );
    held.assert_conn_is_clean();
}

/// So an error can be stored and returned to several callers.
#[test]
fn a_cloned_error_has_the_same_text_and_source() {
    let Held {
        server, mut conn, ..
    } = Held::start();
    let refused = wrong_type_of(&mut conn);
    drop(server);
    let unknown = acquire_lock_with_timeout(&mut conn, "b", Duration::ZERO, Duration::from_secs(1));
    let no_thread = Error::Thread {
        context: ErrorContext::default(),
        source: Arc::new(io::Error::from(io::ErrorKind::WouldBlock)),
    };
    for error in [refused, unknown.unwrap_err(), no_thread] {
        let clone = error.clone();
        assert_eq!(clone.to_string(), error.to_string());
        assert_eq!(format!("{clone:?}"), format!("{error:?}"));
        assert_eq!(clone.token(), error.token());
        let source = |error: &Error| error.source().map(ToString::to_string);
        assert_eq!(source(&clone), source(&error));
        assert_eq!(
            source(&error).is_none(),
            matches!(error, Error::WrongKind { .. })
        );
    }
}

fn wrong_type_of(conn: &mut Connection) -> Error {
    let () = conn.lpush("lock:list", 1).unwrap();
    acquire_lock_with_timeout(conn, "list", Duration::ZERO, Duration::from_secs(1)).unwrap_err()
}
