//! One shard, as the locks on it see it.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use redis::{RedisError, RedisResult, Value};

use super::{Servers, renewals::Following};
use crate::{
    cancel::Cancel,
    cluster::{Redirect, ShardId},
    error::{Result, no_answer},
    pool::{HOPS, Limits, PooledConnection},
    server::{Observer, Patience, RedisServer, Renewals, Reply, Server},
    time::{Backoff, Deadline},
    wire::Call,
};

/// The pauses between hops: two nodes that name each other agree after a moment.
const FIRST_HOP: Duration = Duration::from_millis(20);
const LAST_HOP: Duration = Duration::from_millis(160);

/// A shard's own server, and access to the other shards.
pub(crate) struct Member {
    servers: Arc<Servers>,
    id: ShardId,
    own: Arc<RedisServer>,
}

impl Member {
    pub(super) fn new(servers: &Arc<Servers>, id: ShardId, own: Arc<RedisServer>) -> Self {
        let servers = Arc::clone(servers);
        Self { servers, id, own }
    }

    /// The server that has this key, according to the map.
    fn server_of(&self, key: &str, by: Option<Deadline>) -> Result<Arc<RedisServer>> {
        let longest = Deadline::after(self.limits().connect);
        let longest = longest.or_sooner(by.and_then(Deadline::moment));
        let id = self.servers.nodes().shard_for(key, longest)?;
        if id == self.id {
            return Ok(Arc::clone(&self.own));
        }
        self.servers.server(id)
    }

    fn asked(&self, call: &Call, patience: Patience<'_>) -> Result<Reply> {
        let server = self.server_of(call.key(), patience.by)?;
        server.ask(call, patience)
    }

    /// True if a call that got this reply is to be resent. Pauses first if necessary.
    fn goes_on(&self, answer: &RedisResult<Value>, resending: &mut Resending) -> bool {
        match self.servers.redirect(answer) {
            Some(Redirect::Moved) if resending.hops < HOPS => {
                resending.hops += 1;
                let is_first = resending.hops == 1;
                is_first || resending.between_hops.pause(resending.until)
            }
            Some(Redirect::Moving) => resending.pauses.pause(resending.until),
            Some(Redirect::Moved | Redirect::Down) | None => false,
        }
    }

    fn resending(&self, by: Option<Deadline>) -> Resending {
        let longest = Deadline::after(self.limits().answer);
        Resending {
            until: longest.or_sooner(by.and_then(Deadline::moment)),
            pauses: Backoff::new(),
            between_hops: Backoff::between(FIRST_HOP, LAST_HOP),
            hops: 0,
        }
    }
}

/// The limits on resending a call.
struct Resending {
    until: Deadline,
    pauses: Backoff,
    between_hops: Backoff,
    hops: u32,
}

impl Server for Member {
    fn limits(&self) -> Limits {
        self.own.limits()
    }

    fn lend(&self, key: &str) -> Result<PooledConnection> {
        self.server_of(key, None)?.lend(key)
    }

    fn is_elsewhere(&self, error: &RedisError) -> bool {
        !matches!(
            self.servers.nodes().redirect(error),
            None | Some(Redirect::Down)
        )
    }

    fn clock_skew(&self) -> Duration {
        self.own.clock_skew()
    }

    fn ask(&self, call: &Call, patience: Patience<'_>) -> Result<Reply> {
        if patience.tells_of_moves {
            let reply = self.own.ask(call, patience)?;
            let _ = self.servers.redirect(&reply.answer);
            return Ok(reply);
        }
        let mut reply = self.asked(call, patience)?;
        let mut resending = self.resending(patience.by);
        while self.goes_on(&reply.answer, &mut resending) {
            let was_sent_twice = reply.again;
            match self.asked(call, patience) {
                Ok(next) => reply = next,
                // The first call may have been executed without a reply.
                Err(_) if was_sent_twice => {
                    reply.answer = Err(no_answer());
                    return Ok(reply);
                }
                Err(error) => return Err(error),
            }
            reply.again |= was_sent_twice;
        }
        Ok(reply)
    }

    fn ask_once(&self, call: &Call) -> Result<RedisResult<Value>> {
        let mut resending = self.resending(None);
        loop {
            let answer = self.server_of(call.key(), None)?.ask_once(call)?;
            if !self.goes_on(&answer, &mut resending) {
                return Ok(answer);
            }
        }
    }

    fn ask_for_head(
        &self,
        call: &Call,
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<Option<Reply>> {
        let reply = self.own.ask_for_head(call, deadline, cancel)?;
        let _ = (reply.as_ref()).map(|reply| self.servers.redirect(&reply.answer));
        Ok(reply)
    }

    fn renewals(&self) -> Box<dyn Renewals> {
        let own = self.own.renewals_connection();
        Box::new(Following::new(&self.servers, self.id, own))
    }

    fn report_to(&self, observer: Weak<dyn Observer>) -> Result<()> {
        self.own.report_to(observer)
    }

    fn start_telling(&self) {
        self.own.start_telling();
    }

    fn close(&self) {
        self.own.close();
    }
}
