//! The connections to the probed server, and the texts of its refusals.

use redis::{Cmd, Connection, FromRedisValue, RedisError, RedisResult};

use crate::{
    error::{Error, Result, may_pass, no_answer},
    pool::{Connector, Opened},
    time::Deadline,
};

/// A server, and the connection for most questions.
pub(super) struct Asking<'a> {
    pub(super) connector: &'a Connector,
    pub(super) deadline: Deadline,
    /// `None` after an error of the connection: a late reply could be mistaken for another one.
    connection: Option<Connection>,
    /// The connection has broken, and no other could be opened: nothing more is asked.
    pub(super) is_gone: bool,
}

impl<'a> Asking<'a> {
    pub(super) fn begin(connector: &'a Connector, deadline: Deadline) -> Result<Self> {
        Ok(Self {
            connector,
            deadline,
            connection: Some(connector.open()?.connection),
            is_gone: false,
        })
    }

    /// Asks on the main connection.
    pub(super) fn ask<T: FromRedisValue>(&mut self, command: &Cmd) -> RedisResult<T> {
        self.revive().map_err(|_| no_answer())?;
        let mut connection = self.connection.take().ok_or_else(no_answer)?;
        let answer = self.ask_on(&mut connection, command);
        let is_broken = |error: &RedisError| error.is_io_error() || error.is_unrecoverable_error();
        if !answer.as_ref().is_err_and(is_broken) {
            self.connection = Some(connection);
        }
        answer
    }

    pub(super) fn ask_on<T: FromRedisValue>(
        &self,
        connection: &mut Connection,
        command: &Cmd,
    ) -> RedisResult<T> {
        if self.deadline.has_passed() {
            return Err(no_answer());
        }
        let limit = Some(self.patience().remaining());
        connection.set_read_timeout(limit)?;
        connection.set_write_timeout(limit)?;
        command.query(connection)
    }

    /// Returns a deadline of one time-out, or the rest of the time.
    pub(super) fn patience(&self) -> Deadline {
        let limit = self.connector.limits().answer;
        Deadline::after(self.deadline.remaining_up_to(limit))
    }

    /// Opens a further connection.
    pub(super) fn open(
        &mut self,
        open: impl FnOnce(&Connector) -> Result<Opened>,
    ) -> Result<Connection> {
        self.revive()?;
        Ok(open(self.connector)?.connection)
    }

    /// Opens the main connection again after it has broken, unless the time is over.
    fn revive(&mut self) -> Result<()> {
        if self.is_gone || self.deadline.has_passed() {
            return Err(no_answer().into());
        }
        if self.connection.is_none() {
            let opened = self.connector.open().inspect_err(|_| self.is_gone = true);
            self.connection = Some(opened?.connection);
        }
        Ok(())
    }
}

/// Returns the text of the server's error, without the arguments, the user and the script that it
/// repeats.
pub(super) fn words(error: &RedisError) -> String {
    if error.is_timeout() {
        return "no answer in time".to_owned();
    } else if error.is_io_error() {
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
    let detail = match detail.find("has no permissions") {
        Some(at) => ["this user ", &detail[at..]].concat(),
        None => detail.to_owned(),
    };
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

/// Returns true if the server refuses only for now, such as while it is loading.
pub(super) fn is_of_now(error: &Error) -> bool {
    match error {
        Error::Redis { source, .. } | Error::Unknown { source, .. } => may_pass(source),
        _ => false,
    }
}
