//! One pipeline, one round trip, and no more than one time-out when the server is silent.

use std::{mem, time::Duration};

use redis::{Connection, ConnectionLike, FromRedisValue, Pipeline, RedisError, RedisResult, Value};

use crate::time;

/// How long each further reply of a silent server is waited for.
const NEXT_TO_NOTHING: Duration = Duration::from_millis(1);

/// Sends packed commands and returns one value for each, errors of the server among them.
///
/// redis-rs waits a full read time-out for *each* missing reply of a pipeline, and panics in a debug build when the
/// server refuses a `MULTI`. Here the first missing reply ends the wait.
///
/// # Errors
/// Only when the conversation broke off.
pub(crate) fn exchange(
    conn: &mut Connection,
    packed: &[u8],
    commands: usize,
) -> RedisResult<Vec<Value>> {
    conn.send_packed_command(packed)?;
    let mut replies = Vec::with_capacity(commands);
    let mut missing = None;
    for owed in (0..commands).rev() {
        let asked = time::now();
        let error = match next_reply(conn) {
            Ok(reply) => {
                replies.push(reply);
                continue;
            }
            Err(error) => error,
        };
        // The server is there, and redis-rs passes over the reply that was interrupted: those after it have to be taken.
        let goes_on = is_interrupted(&error);
        if error.is_timeout() {
            book_owed_replies(conn, owed, asked.elapsed());
        }
        close_if_reset(conn, &error);
        missing.get_or_insert(error);
        if !goes_on {
            break;
        }
    }
    missing.map_or(Ok(replies), Err)
}

/// By a signal, or by a halt of the process or its machine: a read with a time limit is not resumed. Neither silence nor the
/// end of the connection.
pub(crate) fn is_interrupted(error: &RedisError) -> bool {
    error.is_io_error() && !error.is_timeout() && !error.is_connection_dropped()
}

/// The next reply; pushes that come in between are skipped.
pub(crate) fn next_reply(conn: &mut Connection) -> RedisResult<Value> {
    loop {
        match conn.recv_response()? {
            Value::Push { .. } => {}
            reply => return Ok(reply),
        }
    }
}

/// Asks for every reply that is still owed, so that redis-rs counts it and skips it when it comes late: otherwise it
/// would be taken for the answer to a later command.
///
/// The socket's read time-out cannot be asked for. It is put back as what the wait that it ended took.
fn book_owed_replies(conn: &mut Connection, owed: usize, time_out: Duration) {
    if owed == 0 || conn.set_read_timeout(Some(NEXT_TO_NOTHING)).is_err() {
        return;
    }
    for _ in 0..owed {
        let _ = next_reply(conn);
    }
    let _ = conn.set_read_timeout(Some(time_out));
}

/// redis-rs takes a connection for open that the server's end has reset while a reply was owed. The next write fails, and
/// tells it otherwise: better ours than that of the next borrower.
pub(crate) fn close_if_reset(conn: &mut dyn ConnectionLike, error: &RedisError) {
    if error.is_connection_dropped() && conn.is_open() {
        let _ = conn.req_command(&redis::cmd("PING"));
    }
}

/// Replies that have come already, given back to the pipeline that asked for them, for its types and its `.ignore()`.
pub(crate) fn typed<T: FromRedisValue>(pipeline: &Pipeline, replies: Vec<Value>) -> RedisResult<T> {
    let replies = if pipeline.is_transaction() {
        vec![Value::Array(replies)]
    } else {
        replies
    };
    pipeline.query(&mut Arrived(replies))
}

/// A connection whose answer is known.
struct Arrived(Vec<Value>);

impl ConnectionLike for Arrived {
    fn req_packed_command(&mut self, _cmd: &[u8]) -> RedisResult<Value> {
        Ok(Value::Nil)
    }

    fn req_packed_commands(
        &mut self,
        _cmd: &[u8],
        _offset: usize,
        _count: usize,
    ) -> RedisResult<Vec<Value>> {
        Ok(mem::take(&mut self.0))
    }

    fn get_db(&self) -> i64 {
        0
    }

    fn check_connection(&mut self) -> bool {
        true
    }

    fn is_open(&self) -> bool {
        true
    }
}
