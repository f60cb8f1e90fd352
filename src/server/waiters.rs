//! The waiters' connection: the heads of all queues share it, and their calls share writes.

use std::{sync::Arc, time::Duration};

use redis::Cmd;

use super::{
    Reply,
    listener::Listener,
    outbox::{Outbox, was_not_sent},
    tracked::{ReliedOnBy, Tracked},
};
use crate::{
    cancel::Cancel,
    error::{Result, no_answer},
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
        self.tracked.refuse_forked_child()?;
        if call.replicas().is_some() {
            return self.ask_alone(call, deadline);
        }
        let reply = self.ask_with_others(call.command(), deadline, cancel)?;
        let is_unknown = |reply: &Reply| reply.answer.as_ref().is_err_and(is_unknown_script);
        if reply.as_ref().is_some_and(is_unknown) {
            return self.ask_with_others(&call.whole(), deadline, cancel);
        }
        Ok(reply)
    }

    /// A call that waits for replicas shares no write: its wait would hold up the others.
    fn ask_alone(&self, call: &Call, deadline: Deadline) -> Result<Option<Reply>> {
        let asked = self.tracked.using(deadline, |used| {
            used.open()?;
            let (sent, mut is_tracked) = (time::now(), false);
            let answer = used.ask(None, |connection, tracked| {
                is_tracked = tracked;
                call.ask(connection)
            });
            Ok(Reply {
                answered: time::now(),
                tracked: is_tracked && answer.is_ok(),
                ..Reply::untracked(answer, sent, false)
            })
        })?;
        asked.transpose()
    }

    fn ask_with_others(
        &self,
        command: &Cmd,
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<Option<Reply>> {
        let never = Deadline::after(Duration::MAX);
        let packed = command.get_packed_command();
        self.outbox.ask(packed, deadline, None, cancel, |write| {
            let led = self.tracked.using(never, |used| {
                used.open()?;
                let epoch = used.epoch();
                let asked = used.ask(None, |connection, tracked| {
                    if write.gather(|| self.tracked.leads_to_the_master(epoch)) {
                        write.exchange(connection, self.tracked.io_timeout(), tracked)
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
