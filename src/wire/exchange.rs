//! Sends one pipeline in one round trip, and waits at most one time-out if the server is silent.

use std::{collections::VecDeque, mem, sync::Arc, time::Duration};

use parking_lot::Mutex;

use redis::{
    Arg, Cmd, Connection, ConnectionLike, FromRedisValue, Pipeline, RedisError, RedisResult, Value,
};

use super::{
    closed::close,
    finished::Finished,
    within::{alone, bounds_of, note},
};
use crate::{
    error::{makes_no_sense, timed_out},
    time::{self, Deadline},
};

/// The read time-out for each further reply once the server is silent.
const OWED_REPLY_TIMEOUT: Duration = Duration::from_millis(1);

/// Sends packed commands and returns one reply per command, error replies included.
///
/// redis-rs waits a full read time-out for *each* missing reply of a pipeline, and panics in a
/// debug build when the server refuses a `MULTI`. Here the first missing reply ends the wait.
///
/// # Errors
/// Only if a reply is missing or unreadable; error replies are values.
pub(crate) fn exchange(
    conn: &mut Connection,
    packed: &[u8],
    commands: usize,
) -> RedisResult<Vec<Value>> {
    let (replies, missing) = exchange_partly(conn, packed, commands);
    missing.map_or(Ok(replies), Err)
}

/// Like [`exchange`], but also returns the replies that arrived before an error.
pub(crate) fn exchange_partly(
    conn: &mut Connection,
    packed: &[u8],
    commands: usize,
) -> (Vec<Value>, Option<RedisError>) {
    let exchanged = match bounds_of(conn) {
        None => Ok(exchanged(conn, packed, commands)),
        Some(bounds) => {
            let packed = packed.to_vec();
            alone(conn, &bounds, move |conn| {
                exchanged(conn, &packed, commands)
            })
        }
    };
    let (replies, errors) = exchanged.unwrap_or_else(|error| (Vec::new(), vec![error]));
    errors.iter().for_each(note);
    for reply in &replies {
        if let Value::ServerError(error) = reply {
            note(&error.clone().into());
        }
    }
    (replies, errors.into_iter().next())
}

/// The replies that arrived before an error, and all errors.
fn exchanged(
    conn: &mut Connection,
    packed: &[u8],
    commands: usize,
) -> (Vec<Value>, Vec<RedisError>) {
    if let Err(error) = conn.send_packed_command(packed) {
        // Part of the pipeline may have been sent: the server would read the next command as the
        // rest of it, and reply to its complete commands first.
        close(conn);
        return (Vec::new(), vec![error]);
    }
    let (mut replies, mut errors) = (Vec::with_capacity(commands), Vec::new());
    for owed in (0..commands).rev() {
        let asked = time::now();
        let error = match next_reply(conn) {
            // After an interrupted read, later replies are read and dropped.
            Ok(reply) => {
                if errors.is_empty() {
                    replies.push(reply);
                }
                continue;
            }
            Err(error) => error,
        };
        // The server is alive, and redis-rs skips the reply whose read was interrupted. The replies
        // after it still have to be read.
        let goes_on = is_interrupted(&error);
        if error.is_timeout() {
            count_owed_replies(conn, owed, asked.elapsed());
        }
        if Finished::by_error(&error) == Some(Finished::Unreadable) {
            close(conn);
        }
        errors.push(error);
        if !goes_on {
            break;
        }
    }
    (replies, errors)
}

/// Sends packed commands of several callers and passes on each reply, error replies included, or
/// the error in its place. Each is passed on as it comes, within [`bounding`](super::bounding) at
/// the end. After one time-out in all it waits for no further reply.
///
/// # Errors
/// The reason why the connection is [finished](Finished).
pub(crate) fn exchange_each(
    conn: &mut Connection,
    packed: &[u8],
    commands: usize,
    time_out: Duration,
    mut pass_on: impl FnMut(RedisResult<Value>),
) -> RedisResult<()> {
    let Some(bounds) = bounds_of(conn) else {
        return exchanged_each(conn, packed, commands, time_out, pass_on);
    };
    let (packed, come) = (packed.to_vec(), Arc::new(Mutex::new(VecDeque::new())));
    let coming = Arc::clone(&come);
    let exchanged = alone(conn, &bounds, move |conn| {
        let pass_on = |answer| coming.lock().push_back(answer);
        exchanged_each(conn, &packed, commands, time_out, pass_on)
    });
    let finished = exchanged.unwrap_or_else(Err);
    let mut come = mem::take(&mut *come.lock());
    for _ in 0..commands {
        let missing = || Err(finished.clone().err().unwrap_or_else(makes_no_sense));
        pass_on(come.pop_front().unwrap_or_else(missing));
    }
    finished
}

fn exchanged_each(
    conn: &mut Connection,
    packed: &[u8],
    commands: usize,
    time_out: Duration,
    mut pass_on: impl FnMut(RedisResult<Value>),
) -> RedisResult<()> {
    let deadline = Deadline::after(time_out);
    let mut limit = time_out;
    let mut broken = conn.send_packed_command(packed).err();
    let mut finished = broken.clone();
    for _ in 0..commands {
        let answer = match &broken {
            Some(error) => Err(error.clone()),
            None => shorten(&mut limit, deadline, conn).and_then(|()| next_reply(conn)),
        };
        let error = match &answer {
            Ok(Value::ServerError(error)) => Some(error.clone().into()),
            Ok(_) => None,
            Err(error) => Some(error.clone()),
        };
        if let Some(error) = &error
            && let Some(why) = Finished::by_error(error)
        {
            finished.get_or_insert_with(|| error.clone());
            // After a signal the other replies are still to come, and on a replica as well.
            if why != Finished::Replica && !is_interrupted(error) {
                broken.get_or_insert_with(|| error.clone());
            }
        }
        pass_on(answer);
    }
    if limit < time_out {
        conn.set_read_timeout(Some(time_out))?;
    }
    finished.map_or(Ok(()), Err)
}

/// Limits the wait for the next reply to the deadline. Each change of the time-out is a system
/// call, so it is set again only when an eighth of it has passed.
fn shorten(limit: &mut Duration, deadline: Deadline, conn: &Connection) -> RedisResult<()> {
    let left = deadline.remaining();
    if left.is_zero() {
        return Err(timed_out());
    }
    if left < *limit / 8 * 7 {
        *limit = left.max(Duration::from_millis(1));
        conn.set_read_timeout(Some(*limit))?;
    }
    Ok(())
}

/// True if a signal, or a suspended process or machine, interrupted the read: a read with a
/// time-out is not restarted. It means neither that the server is silent nor that the connection is
/// closed.
pub(crate) fn is_interrupted(error: &RedisError) -> bool {
    error.is_io_error() && !error.is_timeout() && !error.is_connection_dropped()
}

/// Reads the next reply, skipping pushes.
fn next_reply(conn: &mut Connection) -> RedisResult<Value> {
    loop {
        match conn.recv_response()? {
            Value::Push { .. } => {}
            reply => return Ok(reply),
        }
    }
}

/// Reads once for every reply that is still owed, so that redis-rs counts it and skips it when it
/// arrives late. Otherwise it would be taken for the reply to a later command.
///
/// redis-rs has no getter for the read time-out, so it is restored to the time that the failed read
/// took.
fn count_owed_replies(conn: &mut Connection, owed: usize, time_out: Duration) {
    if owed == 0 || conn.set_read_timeout(Some(OWED_REPLY_TIMEOUT)).is_err() {
        return;
    }
    for _ in 0..owed {
        let _ = next_reply(conn);
    }
    let _ = conn.set_read_timeout(Some(time_out));
}

/// The words of a command: its name, then its arguments.
pub(crate) fn words(command: &Cmd) -> impl Iterator<Item = &[u8]> {
    command.args_iter().map(|word| match word {
        Arg::Simple(word) => word,
        _ => &[],
    })
}

/// Converts replies that have arrived to the caller's type, as if the pipeline had just been sent:
/// this applies its `.ignore()`.
pub(crate) fn typed<T: FromRedisValue>(pipeline: &Pipeline, replies: Vec<Value>) -> RedisResult<T> {
    let replies = if pipeline.is_transaction() {
        vec![Value::Array(replies)]
    } else {
        replies
    };
    pipeline.query(&mut Arrived(replies))
}

/// A connection that answers with replies that have already arrived.
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
