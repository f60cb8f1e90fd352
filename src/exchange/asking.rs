//! What is sent to a node of a cluster that is being given a slot: each command goes behind an `ASKING`, or the node says `MOVED`.
//!
//! The plain functions have a bare `redis::Connection` in hand, which cannot be told where it leads. So their caller
//! marks the connection as one that asks, for as long as one of them runs on this thread.

use std::{cell::Cell, ptr};

use redis::{
    Cmd, Connection, ConnectionLike, ErrorKind, RedisError, RedisResult, ServerErrorKind, Value,
};

thread_local! {
    /// The address of the connection that asks. 0 is that of none.
    static ASKS: Cell<usize> = const { Cell::new(0) };
}

/// Calls a function that sends what it sends on this connection behind an `ASKING`.
pub(crate) fn asking<T>(conn: &mut Connection, function: impl FnOnce(&mut Connection) -> T) -> T {
    let _until_it_returns = Before(ASKS.replace(ptr::from_ref(conn).addr()));
    function(conn)
}

/// The address of the connection that asked before, to be put back.
struct Before(usize);

impl Drop for Before {
    fn drop(&mut self) {
        ASKS.set(self.0);
    }
}

pub(crate) fn asks<C: ConnectionLike + ?Sized>(conn: &C) -> bool {
    ASKS.get() == ptr::from_ref(conn).addr()
}

/// What goes before each command.
pub(crate) fn asking_command() -> Cmd {
    redis::cmd("ASKING")
}

/// Goes before a command, if the connection asks.
pub(crate) fn ask_first<C: ConnectionLike + ?Sized>(conn: &mut C) -> RedisResult<()> {
    if asks(conn) {
        let answer = conn.req_packed_command(&asking_command().get_packed_command());
        answer.and_then(Value::extract_error)?;
    }
    Ok(())
}

/// Refuses what cannot be done by asking. The node says of a key that has not come yet that it does not exist, unless a command
/// names several keys.
pub(crate) fn refuse_to_ask<C: ConnectionLike + ?Sized>(conn: &C) -> RedisResult<()> {
    if asks(conn) {
        let kind = ErrorKind::Server(ServerErrorKind::TryAgain);
        let reason = "it has to wait until the slot has one place";
        return Err(RedisError::from((kind, reason)));
    }
    Ok(())
}
