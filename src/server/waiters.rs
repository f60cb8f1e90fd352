//! The waiters' connection: the heads of all queues share it, and their calls go in one write.

use std::{sync::Arc, time::Duration};

use redis::{Cmd, RedisError};

use super::{
    Reply,
    listener::{Checked, Listener},
    outbox::{Outbox, SendTerms, SharedWrite, silent},
    tracked::{For, InUse, Tracked},
};
use crate::{
    cancel::Cancel,
    connection::Connector,
    error::{Result, no_answer},
    script::{Call, is_unknown_script},
    time::{self, Deadline},
};

/// The waiters' connection, and the calls that wait for it.
pub(crate) struct WaitersConnection {
    tracked: Tracked,
    outbox: Outbox,
}

impl WaitersConnection {
    pub(crate) fn new(connector: Connector, listener: Arc<Listener>) -> Arc<Self> {
        Arc::new(Self {
            tracked: Tracked::new(For::Waiters, connector, Some(listener)),
            outbox: Outbox::new(1),
        })
    }

    /// Asks once. `None`: it was not sent by the deadline, or before the cancel, though the server
    /// answers.
    pub(crate) fn ask(
        &self,
        call: &Call,
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<Option<Reply>> {
        let terms = SendTerms {
            alone: call.replicas().is_some(),
            send_by: deadline,
            learns_why: true,
            until: None,
        };
        self.post(call, terms, cancel, true)
    }

    /// Sends what nobody waits for, but not in a child of a fork. False: the connection is not
    /// open, or was not free so soon.
    pub(crate) fn send(&self, call: &Call, patience: Duration) -> bool {
        let terms = SendTerms {
            alone: false,
            send_by: Deadline::after(patience),
            learns_why: false,
            until: None,
        };
        matches!(self.post(call, terms, None, false), Ok(Some(_)))
    }

    /// The server is a replica by now, as somebody has found out elsewhere.
    pub(crate) fn leave_the_replica(&self) {
        self.tracked.leave_the_replica();
    }

    fn post(
        &self,
        call: &Call,
        terms: SendTerms,
        cancel: Option<&Cancel>,
        opens: bool,
    ) -> Result<Option<Reply>> {
        self.tracked.refuse_forked_child()?;
        let ask = |command: &Cmd| {
            let packed = command.get_packed_command();
            self.outbox.ask(packed, terms, cancel, |write| {
                let lead = |used: &mut InUse<'_>| {
                    let is_cancelled = || cancel.is_some_and(Cancel::is_cancelled);
                    let is_ready = !is_cancelled() && (used.is_open() || opens);
                    if is_ready && !used.is_open() {
                        used.open()?;
                    }
                    if !is_ready || is_cancelled() {
                        return Ok(());
                    }
                    self.send_all(write, used, terms.alone.then_some(call))
                };
                let done = self.tracked.using(Deadline::after(Duration::MAX), lead)?;
                done.unwrap_or(Ok(()))
            })
        };
        let reply = ask(call.command())?;
        if let Some(Err(error)) = reply.as_ref().map(|reply| &reply.answer) {
            self.tracked.was_refused(error);
        }
        let is_unknown = |reply: &Reply| reply.answer.as_ref().is_err_and(is_unknown_script);
        if reply.as_ref().is_some_and(is_unknown) {
            return ask(&call.whole());
        }
        Ok(reply)
    }

    /// Sends what lies in the outbox, or the one call that goes alone.
    fn send_all(
        &self,
        write: &mut SharedWrite<'_>,
        used: &mut InUse<'_>,
        alone: Option<&Call>,
    ) -> Result<()> {
        let epoch = used.epoch();
        let mut is_gathered = false;
        let asked = used.ask(None, |connection, tracked| {
            is_gathered = write.gather(|| self.tracked.leads_to_the_master(epoch));
            match alone {
                _ if !is_gathered => Err(no_answer()),
                None => write.exchange(connection, self.tracked.io_timeout(), tracked),
                Some(call) => {
                    let sent = time::now();
                    let answer = call.ask(connection);
                    let asked = answer.as_ref().map(drop).map_err(RedisError::clone);
                    write.tell_next(answer, sent, tracked);
                    asked
                }
            }
        });
        match asked {
            // The server could not be asked to tell of changes, or another is the master by now.
            Err(error) if !is_gathered => return Err(silent(error)),
            Err(error) if error.is_io_error() => write.failed(error),
            _ => {}
        }
        Ok(())
    }
}

impl Checked for WaitersConnection {
    fn has_room(&self) -> bool {
        let lane = self.outbox.free_lane();
        lane.is_none_or(|_lane| self.tracked.has_room())
    }

    fn make_room(&self) {
        self.tracked.make_room();
    }

    /// A thread that uses the connection finds out by itself whether it is still there.
    fn check(&self) {
        if let Some(mut lane) = self.outbox.free_lane() {
            lane.failure = self.tracked.look().err().map(silent);
        }
    }
}
