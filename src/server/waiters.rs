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
    time::{self, Deadline},
    wire::{Call, is_unknown_script},
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
        if call.replicas().is_some() {
            return self.ask_alone(call, deadline, cancel);
        }
        let reply = self.ask_with_others(call.command(), deadline, cancel)?;
        let is_unknown = |reply: &Reply| reply.answer.as_ref().is_err_and(is_unknown_script);
        if reply.as_ref().is_some_and(is_unknown) {
            return self.ask_with_others(&call.whole(), deadline, cancel);
        }
        Ok(reply)
    }

    /// Sends a call that waits for replicas in a write of its own, since its wait would delay other
    /// calls. Like any other call it first waits for a lane, until the deadline, a cancel, or the
    /// failure of another call.
    fn ask_alone(
        &self,
        call: &Call,
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<Option<Reply>> {
        let never = Deadline::after(Duration::MAX);
        let mut reply = None;
        let led = self.outbox.ask(Vec::new(), deadline, None, cancel, |_| {
            let led = self.tracked.using(never, |used| {
                used.open()?;
                let (sent, mut is_tracked) = (time::now(), false);
                let answer = used.ask(None, |connection, tracked| {
                    is_tracked = tracked;
                    call.ask(connection)
                });
                let failure = answer.as_ref().err().filter(|error| error.is_io_error());
                let told = failure
                    .cloned()
                    .map_or(Ok(()), |error| Err(was_not_sent(error)));
                reply = Some(Reply::now(answer, sent, is_tracked));
                told
            })?;
            led.unwrap_or(Ok(()))
        });
        // The threads of the other calls get the failure from the outbox. The thread of this call
        // gets the reply instead, because its call was sent.
        reply.map_or(led, |reply| Ok(Some(reply)))
    }

    fn ask_with_others(
        &self,
        command: &Cmd,
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<Option<Reply>> {
        let never = Deadline::after(Duration::MAX);
        let (packed, connector) = (command.get_packed_command(), &self.tracked.connector);
        self.outbox.ask(packed, deadline, None, cancel, |write| {
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
