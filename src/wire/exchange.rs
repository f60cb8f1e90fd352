//! One pipeline, one round trip, and no more than one time-out when the server is silent.

use std::{
    mem,
    net::{Ipv4Addr, TcpListener},
    time::Duration,
};

use redis::{
    Arg, Client, Cmd, Connection, ConnectionAddr, ConnectionLike, FromRedisValue,
    IntoConnectionInfo, Pipeline, RedisConnectionInfo, RedisError, RedisResult, Value,
};

use super::finished::{Finished, note};
use crate::time;

/// The wait for each further reply of a silent server.
const NEXT_TO_NOTHING: Duration = Duration::from_millis(1);
/// A connection within this machine takes less.
const TO_OURSELVES: Duration = Duration::from_secs(1);

/// Sends packed commands and returns one value for each, errors of the server among them.
///
/// redis-rs waits a full read time-out for *each* missing reply of a pipeline, and panics in a
/// debug build when the server refuses a `MULTI`. Here the first missing reply ends the wait.
///
/// # Errors
/// Only when the conversation broke off.
pub(crate) fn exchange(
    conn: &mut Connection,
    packed: &[u8],
    commands: usize,
) -> RedisResult<Vec<Value>> {
    let (replies, missing) = exchange_partly(conn, packed, commands);
    missing.map_or(Ok(replies), Err)
}

/// As [`exchange`], with the replies that came before the conversation broke off.
pub(crate) fn exchange_partly(
    conn: &mut Connection,
    packed: &[u8],
    commands: usize,
) -> (Vec<Value>, Option<RedisError>) {
    if let Err(error) = conn.send_packed_command(packed) {
        // Part of it may be in the socket: whatever is sent next would be read as the rest of it,
        // and the replies to what is whole as replies to that.
        close(conn);
        return (Vec::new(), Some(error));
    }
    let mut replies = Vec::with_capacity(commands);
    let mut missing = None;
    for owed in (0..commands).rev() {
        let asked = time::now();
        let error = match next_reply(conn) {
            // After one that was interrupted, a reply is only taken.
            Ok(reply) => {
                if missing.is_none() {
                    replies.push(reply);
                }
                continue;
            }
            Err(error) => error,
        };
        // The server is there, and redis-rs passes over the reply that was interrupted: those after
        // it have to be taken.
        let goes_on = is_interrupted(&error);
        if error.is_timeout() {
            book_owed_replies(conn, owed, asked.elapsed());
        }
        if Finished::by_error(&error) == Some(Finished::Unreadable) {
            close(conn);
        }
        note(&error);
        missing.get_or_insert(error);
        if !goes_on {
            break;
        }
    }
    for reply in &replies {
        if let Value::ServerError(error) = reply {
            note(&error.clone().into());
        }
    }
    (replies, missing)
}

/// By a signal, or by a halt of the process or its machine: a read with a time limit is not
/// resumed. Neither silence nor the end of the connection.
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

/// Asks for every reply that is still owed, so that redis-rs counts it and skips it when it comes
/// late: otherwise it would be taken for the answer to a later command.
///
/// The socket's read time-out cannot be asked for. It is put back as what the wait that it ended
/// took.
fn book_owed_replies(conn: &mut Connection, owed: usize, time_out: Duration) {
    if owed == 0 || conn.set_read_timeout(Some(NEXT_TO_NOTHING)).is_err() {
        return;
    }
    for _ in 0..owed {
        let _ = next_reply(conn);
    }
    let _ = conn.set_read_timeout(Some(time_out));
}

/// Closes a connection. redis-rs closes one only by dropping it, so another takes its place: a
/// connection to this process, which is closed as well. If that cannot be made, the connection is
/// left as it is.
fn close(conn: &mut Connection) {
    if conn.is_open()
        && let Ok(closed) = closed_connection()
    {
        *conn = closed;
    }
}

fn closed_connection() -> RedisResult<Connection> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    let nothing_to_say = RedisConnectionInfo::default().set_skip_set_lib_name();
    let address = ConnectionAddr::Tcp(Ipv4Addr::LOCALHOST.to_string(), port)
        .into_connection_info()?
        .set_redis_settings(nothing_to_say);
    let mut conn = Client::open(address)?.get_connection_with_timeout(TO_OURSELVES)?;
    conn.set_read_timeout(Some(TO_OURSELVES))?;
    drop(listener.accept()?);
    // redis-rs closes it when it reads the end.
    let _ = next_reply(&mut conn);
    Ok(conn)
}

/// The name of a command, and its arguments.
pub(crate) fn words(command: &Cmd) -> impl Iterator<Item = &[u8]> {
    command.args_iter().map(|word| match word {
        Arg::Simple(word) => word,
        _ => &[],
    })
}

/// Replies that have come already, given back to the pipeline that asked for them, for its types
/// and its `.ignore()`.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_takes_the_place_of_another_is_closed() {
        let conn = closed_connection().unwrap();
        assert!(!conn.is_open());
    }
}
