//! A connection for the questions of one topic, and the texts of a server's refusals.

use redis::{Cmd, Connection, FromRedisValue, RedisError, RedisResult};

use crate::{
    error::{Error, Result, no_answer},
    pool::{Connector, Opened},
    time::Deadline,
};

/// A connection for one topic. After an error of the connection nothing more is asked on it: a late
/// reply could be mistaken for another one.
pub(super) struct Line<'a> {
    connector: &'a Connector,
    connection: Option<Connection>,
    deadline: Deadline,
}

impl<'a> Line<'a> {
    pub(super) fn open(
        connector: &'a Connector,
        deadline: Deadline,
        open: impl FnOnce(&Connector) -> Result<Opened>,
    ) -> Result<Self> {
        if deadline.has_passed() {
            return Err(no_answer().into());
        }
        Ok(Self {
            connector,
            connection: Some(open(connector)?.connection),
            deadline,
        })
    }

    pub(super) fn ask<T: FromRedisValue>(&mut self, command: &Cmd) -> RedisResult<T> {
        self.use_for(|connection| command.query(connection))
    }

    /// Waits for at most one time-out, or the rest of the time.
    pub(super) fn use_for<T>(
        &mut self,
        work: impl FnOnce(&mut Connection) -> RedisResult<T>,
    ) -> RedisResult<T> {
        let limit = self.connector.limits().answer;
        let limit = self.deadline.remaining_up_to(limit);
        let connection = self.connection.take().filter(|_| !limit.is_zero());
        let mut connection = connection.ok_or_else(no_answer)?;
        connection.set_read_timeout(Some(limit))?;
        connection.set_write_timeout(Some(limit))?;
        let done = work(&mut connection);
        if !done.as_ref().is_err_and(is_broken) {
            self.connection = Some(connection);
        }
        done
    }
}

/// Returns true if the connection cannot be used after this error.
pub(super) fn is_broken(error: &RedisError) -> bool {
    error.is_io_error() || error.is_unrecoverable_error()
}

/// Returns the text of the server's error, without the arguments, the user and the script that it
/// repeats.
pub(super) fn words(error: &RedisError) -> String {
    if error.is_io_error() {
        return "no answer".to_owned();
    }
    let Some(detail) = error.detail() else {
        return error.to_string();
    };
    let detail = detail.split(", with args").next().unwrap_or_default();
    let detail = detail.split(" script: ").next().unwrap_or_default();
    // Before Redis 7, a script's error has the server's text at the end.
    if let Some((_, end)) = detail.rsplit_once("@user_script: ") {
        let words = end.split_once(": ").map_or(end, |(_, words)| words);
        return format!("refused: {}", words.trim_start_matches('-'));
    }
    let user = detail.find("has no permissions");
    let detail = user.map_or(detail.to_owned(), |at| {
        format!("this user {}", &detail[at..])
    });
    let code = error.code().map(|code| format!("{code} "));
    format!("refused: {}{detail}", code.unwrap_or_default())
}

/// Returns the text of the server's error, or the reason why there is no connection.
pub(super) fn reason(error: &Error) -> String {
    match error {
        Error::Redis { source, .. } | Error::Unknown { source, .. } => words(source),
        Error::Pool { reason, .. } => reason.clone(),
        error => error.to_string(),
    }
}
