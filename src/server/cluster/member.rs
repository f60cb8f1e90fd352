//! One shard, as the locks on it know it.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use redis::{RedisError, RedisResult, Value};

use super::{Servers, renewals::Following};
use crate::{
    cancel::Cancel,
    connection::{HOPS, Limits, PooledConnection, Redirect, ShardId},
    error::{Result, no_answer},
    script::Call,
    server::{Observer, Patience, RedisServer, Renewals, Reply, Server},
    time::{self, Backoff, Clock, Deadline},
};

/// A shard's own server, and the way to the others.
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

    /// The server that has this key, as far as is known.
    fn server_of(&self, key: &str, longest: Duration) -> Result<Arc<RedisServer>> {
        let longest = Deadline::after(longest.min(self.limits().connect));
        let id = self.servers.nodes().shard_for(key, longest)?;
        if id == self.id {
            return Ok(Arc::clone(&self.own));
        }
        self.servers.server(id)
    }

    fn asked(&self, call: &Call, patience: Patience<'_>) -> Result<Reply> {
        let server = self.server_of(call.key(), patience.whole)?;
        server.ask(call, patience)
    }

    /// Until when a call is sent again while its keys are on their way to another node.
    fn until(&self, patience: Patience<'_>) -> Deadline {
        let longest = Deadline::after(self.limits().answer);
        longest.or_sooner(patience.answer.and_then(Deadline::moment))
    }

    /// Sends the call to where its answers lead, until a server executes or refuses it, [`HOPS`] times in a row at most.
    fn followed(&self, call: &Call, patience: Patience<'_>, mut reply: Reply) -> Result<Reply> {
        let until = self.until(patience);
        let (mut pauses, mut between_hops) = (Backoff::new(), Backoff::between_hops());
        let mut hops = 0;
        while let Some(redirect) = self.servers.redirect(&reply.answer) {
            let before = reply.again;
            let next = match redirect {
                Redirect::Moved { .. } if patience.tells_of_moves => {
                    reply.has_moved = true;
                    return Ok(reply);
                }
                Redirect::Moved { .. } | Redirect::Ask { .. } if hops == HOPS => return Ok(reply),
                Redirect::Moved { .. } => {
                    if hops > 0 && !between_hops.pause(until) {
                        return Ok(reply);
                    }
                    hops += 1;
                    self.asked(call, patience.left())
                }
                Redirect::Ask { to, .. } => {
                    hops += 1;
                    let sent = time::now();
                    let asked = self.servers.ask_at(&to, call, until);
                    asked.map(|(answer, again)| Reply::untracked(answer, sent, again))
                }
                Redirect::TryAgain if !patience.tells_of_moves && pauses.pause(until) => {
                    hops = 0;
                    self.asked(call, patience.left())
                }
                Redirect::TryAgain | Redirect::Down => return Ok(reply),
            };
            reply = match next {
                Ok(next) => next,
                // What was sent before may have been executed, and its answer did not come.
                Err(_) if before => {
                    reply.answer = Err(no_answer());
                    return Ok(reply);
                }
                Err(error) => return Err(error),
            };
            reply.again |= before;
        }
        Ok(reply)
    }
}

impl Server for Member {
    fn clock(&self) -> Clock {
        Clock::REAL
    }

    fn limits(&self) -> Limits {
        self.own.limits()
    }

    fn lend(&self, key: &str) -> Result<PooledConnection> {
        self.server_of(key, Duration::MAX)?.lend(key)
    }

    fn is_elsewhere(&self, error: &RedisError) -> bool {
        !matches!(
            self.servers.nodes().redirect(error),
            None | Some(Redirect::Down)
        )
    }

    fn stores_data(&self) -> Result<()> {
        self.own.stores_data()
    }

    fn epoch(&self) -> u64 {
        self.own.epoch()
    }

    fn clock_skew(&self) -> Duration {
        self.own.clock_skew()
    }

    fn ask(&self, call: &Call, patience: Patience<'_>) -> Result<Reply> {
        let reply = if patience.tells_of_moves {
            self.own.ask(call, patience)?
        } else {
            self.asked(call, patience)?
        };
        self.followed(call, patience, reply)
    }

    fn ask_once(&self, call: &Call) -> Result<RedisResult<Value>> {
        let until = self.until(Patience::USUAL);
        let (mut pauses, mut between_hops) = (Backoff::new(), Backoff::between_hops());
        let mut hops = 0;
        loop {
            let server = self.server_of(call.key(), Duration::MAX)?;
            let mut answer = server.ask_once(call)?;
            if let Some(Redirect::Ask { to, .. }) = self.servers.redirect(&answer) {
                answer = self.servers.ask_once_at(&to, call, until)?;
            }
            match self.servers.redirect(&answer) {
                Some(Redirect::Moved { .. }) if hops < HOPS => {
                    if hops > 0 && !between_hops.pause(until) {
                        return Ok(answer);
                    }
                    hops += 1;
                }
                Some(Redirect::TryAgain) if pauses.pause(until) => {}
                _ => return Ok(answer),
            }
        }
    }

    fn ask_for_head(
        &self,
        call: &Call,
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<Option<Reply>> {
        let Some(reply) = self.own.ask_for_head(call, deadline, cancel)? else {
            return Ok(None);
        };
        let patience = Patience {
            answer: Some(deadline),
            tells_of_moves: true,
            ..Patience::USUAL
        };
        self.followed(call, patience, reply).map(Some)
    }

    fn send_unawaited(&self, call: &Call, patience: Duration) {
        if let Ok(server) = self.server_of(call.key(), patience) {
            server.send_unawaited(call, patience);
        }
    }

    fn renewals(&self) -> Box<dyn Renewals> {
        let own = self.own.renewals_connection();
        Box::new(Following::new(&self.servers, self.id, own))
    }

    fn report_to(&self, observer: Weak<dyn Observer>) -> Result<()> {
        self.own.report_to(observer)
    }

    fn want(&self) {
        self.own.want();
    }

    fn close(&self) {
        self.own.close();
    }
}
