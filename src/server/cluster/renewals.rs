//! The renewals of a shard's keeper, including those of leases whose slots have moved.
//!
//! The keeper of a shard keeps a lease for as long as it is held. If another shard has its slot by
//! now, its renewal goes there as any call does, by a connection of that shard's pool. So does one
//! that its own shard refuses by a `MOVED`. All other refusals are left to the schedule, which
//! tries again soon, by what the map has learnt.
//!
//! Those of other shards go first, and a silent shard must not hold up the others: each but the
//! keeper's own has little time to answer, and after a failure it is not asked again in this batch.

use std::{collections::HashMap, sync::Arc, time::Duration};

use super::Servers;
use crate::{
    cluster::ShardId,
    pool::Pool,
    server::{
        Answer, Failure, Patience, RenewalReply, Renewals, RenewalsConnection, Replies, Server,
        renewal_reply, renewals::SHORTEST_PATIENCE,
    },
    time::Deadline,
    wire::Call,
};

/// Another shard has a twelfth of the shortest lease to answer: no less than this, and no more than
/// [`SHORTEST_PATIENCE`].
const SHORTEST: Duration = Duration::from_millis(100);

/// The watchdog's connection to a shard, and the way to those that have got some of its slots.
pub(super) struct Following {
    servers: Arc<Servers>,
    id: ShardId,
    own: RenewalsConnection,
    /// Some calls of the last batch went to other shards.
    has_away: bool,
}

/// Why a shard has failed in this batch, if it has.
type FailedShards = HashMap<ShardId, Arc<Failure>>;

impl Following {
    pub(super) fn new(servers: &Arc<Servers>, id: ShardId, own: RenewalsConnection) -> Self {
        Self {
            servers: Arc::clone(servers),
            id,
            own,
            has_away: false,
        }
    }

    /// The other shard that has the key of this call, as far as is known.
    fn away(&self, call: &Call) -> Option<ShardId> {
        let shard = self.servers.nodes().known_shard_of(call.key());
        shard.filter(|shard| *shard != self.id)
    }

    fn has_moved(&self, reply: &RenewalReply) -> bool {
        let Some(Failure::Sent(error)) = reply.1.as_deref() else {
            return false;
        };
        self.servers.nodes().redirect(error).is_some() && error.code() == Some("MOVED")
    }

    fn send_away(
        &self,
        shard: ShardId,
        call: &Call,
        limit: Duration,
        failed: &mut FailedShards,
    ) -> RenewalReply {
        if let Some(failure) = failed.get(&shard) {
            return (Answer::Refused, Some(Arc::clone(failure)));
        }
        let patience = Patience::until(Deadline::after(limit));
        let server = self.servers.server(shard);
        let reply = match server.and_then(|server| server.ask(call, patience)) {
            Ok(reply) => reply,
            Err(error) => {
                let failure = Arc::new(Failure::Unsent(error));
                failed.insert(shard, Arc::clone(&failure));
                return (Answer::Refused, Some(failure));
            }
        };
        match reply.answer {
            Err(error) if error.is_io_error() => {
                let failure = Failure::sent(error);
                failed.insert(shard, Arc::clone(&failure));
                (Answer::Unanswered, Some(failure))
            }
            answer => renewal_reply(answer, reply.sent),
        }
    }

    /// Sends all of these to the keeper's own shard.
    fn send_home(&mut self, calls: &[Call], limit: Duration, shortest_lease: Duration) -> Replies {
        match self.open_home(limit) {
            Ok(()) => self.own.send(calls, shortest_lease),
            Err(failure) => Replies {
                answers: vec![(Answer::Refused, Some(failure)); calls.len()],
                broken: true,
            },
        }
    }

    /// Opens the connection to the keeper's own shard, unless it is open. Where calls go elsewhere,
    /// the shard first has to answer as soon as another one, so that it does not hold them up.
    fn open_home(&mut self, limit: Duration) -> Result<(), Arc<Failure>> {
        if self.own.is_open() {
            return Ok(());
        }
        if self.has_away {
            let answers = (self.servers.nodes()).ping(self.id, Deadline::after(limit));
            answers.map_err(|error| Arc::new(Failure::Unsent(error)))?;
        }
        self.own.open()
    }
}

impl Servers {
    /// A connection for the renewals of a shard, nobody being told of changes of its keys.
    pub(crate) fn untracked_renewals(
        self: &Arc<Self>,
        id: ShardId,
        pool: &Pool,
    ) -> Box<dyn Renewals> {
        let own = RenewalsConnection::untracked(pool.connector());
        Box::new(Following::new(self, id, own))
    }
}

impl Renewals for Following {
    /// True as well while calls go elsewhere, or the shard has no slots and may be gone: then
    /// [`send_home`](Self::send_home) opens the connection to it if a call goes there.
    fn is_open(&self) -> bool {
        self.has_away || self.own.is_open() || !self.servers.nodes().serves_slots(self.id)
    }

    fn open(&mut self) -> Result<(), Arc<Failure>> {
        self.own.open()
    }

    fn send(&mut self, calls: &[Call], shortest_lease: Duration) -> Replies {
        let limit = (shortest_lease / 12).clamp(SHORTEST, SHORTEST_PATIENCE);
        let mut failed = FailedShards::new();
        let mut away: Vec<Option<RenewalReply>> = Vec::new();
        for call in calls {
            let shard = self.away(call);
            away.push(shard.map(|shard| self.send_away(shard, call, limit, &mut failed)));
        }
        let at_home = calls.iter().zip(&away).filter(|(_, reply)| reply.is_none());
        let at_home: Vec<Call> = at_home.map(|(call, _)| call.clone()).collect();
        self.has_away = at_home.len() < calls.len();
        let Replies { answers, broken } = if at_home.is_empty() {
            Replies {
                answers: Vec::new(),
                broken: false,
            }
        } else {
            self.send_home(&at_home, limit, shortest_lease)
        };
        let mut answers = answers.into_iter();
        let replies = calls.iter().zip(away).map(|(call, reply)| {
            let reply = reply.or_else(|| answers.next());
            let reply = reply.unwrap_or((Answer::Unanswered, None));
            let moved_to = self.has_moved(&reply).then(|| self.away(call)).flatten();
            match moved_to {
                Some(shard) => self.send_away(shard, call, limit, &mut failed),
                None => reply,
            }
        });
        Replies {
            answers: replies.collect(),
            broken,
        }
    }
}
