//! The waiters' connection: the heads of all queues share it, and their calls share writes.

use std::{sync::Arc, time::Duration};

use redis::{Cmd, RedisError};

use super::{
    Reply,
    listener::Listener,
    outbox::Outbox,
    tracked::{ReliedOnBy, Tracked},
};
use crate::{
    cancel::Cancel,
    error::{Error, Result, in_words, no_answer},
    pool::Connector,
    time::Deadline,
    wire::{Call, Replicas, is_unknown_script},
};

/// The waiters' connection, and the calls that wait for it.
pub(super) struct WaitersConnection {
    tracked: Tracked,
    outbox: Outbox,
}

impl WaitersConnection {
    pub(super) fn new(connector: Connector, listener: Arc<Listener>) -> Self {
        Self {
            tracked: Tracked::new(ReliedOnBy::Waiters, connector, Some(listener)),
            outbox: Outbox::new(1, true),
        }
    }

    /// Sends the call once. `None`: it was not sent before the deadline or the cancel, although the
    /// server answers.
    pub(super) fn ask(
        &self,
        call: &Call,
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<Option<Reply>> {
        self.tracked.connector.process().refuse_forked_child()?;
        let reply = self.ask_with_others(call.command(), call.replicas(), deadline, cancel)?;
        let is_unknown = |reply: &Reply| reply.answer.as_ref().is_err_and(is_unknown_script);
        if reply.as_ref().is_some_and(is_unknown) {
            return self.ask_with_others(&call.whole(), call.replicas(), deadline, cancel);
        }
        Ok(reply)
    }

    fn ask_with_others(
        &self,
        command: &Cmd,
        replicas: Option<Replicas>,
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<Option<Reply>> {
        let never = Deadline::after(Duration::MAX);
        let connector = &self.tracked.connector;
        let letter = (command.get_packed_command(), replicas);
        self.outbox.ask(letter, deadline, None, cancel, |write| {
            let led = self.tracked.using(never, |used| {
                used.open()?;
                let epoch = used.epoch();
                let asked = used.ask(None, |connection, tracked| {
                    if write.gather(|| epoch == Some(connector.epoch())) {
                        write.exchange(connection, connector.limits().answer, tracked)
                    } else {
                        Err(no_answer())
                    }
                });
                asked.map_err(was_not_sent)
            })?;
            led.unwrap_or(Ok(()))
        })
    }
}

/// The error for a call that was not sent.
pub(super) fn was_not_sent(source: RedisError) -> Error {
    let reason = "the server did not answer earlier calls";
    Error::pool(reason, Some(in_words(source)))
}
