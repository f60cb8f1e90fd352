//! The stand-in's implementation of [`Server`].

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use redis::{RedisResult, Value};

use super::state::{LONGEST, StandIn, disconnected};
use crate::{
    cancel::Cancel,
    error::Result,
    pool::{Limits, PooledConnection},
    server::{
        Observer, Patience, RenewalAnswer, RenewalError, Renewals, Replies, Reply, Server,
        renewal_reply,
    },
    time::{Clock, Deadline},
    wire::Call,
};

impl Server for StandIn {
    fn clock(&self) -> Clock {
        self.state.clock
    }

    fn limits(&self) -> Limits {
        Limits {
            connect: LONGEST,
            answer: LONGEST,
        }
    }

    fn lend(&self, _key: &str) -> Result<PooledConnection> {
        if !self.is_there() {
            return Err(disconnected());
        }
        let pool = self.pool()?;
        pool.get_for(false, Duration::MAX, Duration::MAX, None)
    }

    fn clock_skew(&self) -> Duration {
        Duration::ZERO
    }

    fn ask(&self, call: &Call, _: Patience<'_>) -> Result<Reply> {
        let (reply, changed) = self.ask_for(call, false)?;
        self.notify_changed(changed);
        Ok(reply)
    }

    fn ask_once(&self, call: &Call) -> Result<RedisResult<Value>> {
        self.ask(call, Patience::USUAL).map(|asked| asked.answer)
    }

    fn ask_for_head(&self, call: &Call, _: Deadline, _: Option<&Cancel>) -> Result<Option<Reply>> {
        Ok(Some(self.ask_for(call, true)?.0))
    }

    fn renewals(&self) -> Box<dyn Renewals> {
        Box::new(self.clone())
    }

    fn report_to(&self, observer: Weak<dyn Observer>) -> Result<()> {
        self.observe(observer);
        Ok(())
    }

    fn start_notifications(&self) {}

    fn close(&self) {}
}

impl Renewals for StandIn {
    fn is_open(&self) -> bool {
        self.is_there()
    }

    fn open(&mut self) -> Result<(), Arc<RenewalError>> {
        if self.is_open() {
            return Ok(());
        }
        Err(Arc::new(RenewalError::Unsent(disconnected())))
    }

    fn send(&mut self, calls: &[Call], _: Duration) -> Replies {
        let sent = self.state.clock.now();
        let mut changed = Vec::new();
        let replies = calls.iter().map(|call| match self.run(call) {
            Some((answer, keys)) => {
                // A server does not notify a connection of its own renewals. Releases wake the
                // waiters.
                if call.parts().0.starts_with("RELEASE") {
                    changed.extend(keys);
                }
                renewal_reply(answer, sent)
            }
            None => (
                RenewalAnswer::Unanswered,
                Some(Arc::new(RenewalError::Unsent(disconnected()))),
            ),
        });
        let replies = replies.collect();
        self.notify_changed(changed);
        Replies {
            replies,
            broken: !self.is_open(),
        }
    }
}
