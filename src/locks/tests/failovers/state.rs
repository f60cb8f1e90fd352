//! What there is at a moment: servers, what sentinels know, processes, and what is on its way between them.

use std::{collections::VecDeque, time::Instant};

use super::*;
use crate::{
    connection::Known,
    renewing::{
        entry::{Ask, Terms},
        schedule::{Id, Orphan, Question},
    },
};

/// Whole units of time. Whatever happens between two of them happens in any order.
pub(super) type Tick = u8;
pub(super) type Server = usize;
pub(super) type Client = usize;
/// The number of an acquisition.
pub(super) type Token = usize;

/// A lease on a server. It is renewed after a third, which is at the next tick.
pub(super) const LEASE: Tick = 2;
pub(super) const CLIENTS: usize = 2;

/// What is due by then, and not now, was only put off for the shortest time.
const NEARLY_NOW: Duration = Duration::from_millis(100);

static START: LazyLock<Instant> = LazyLock::new(crate::time::now);

pub(super) fn length(ticks: Tick) -> Duration {
    Duration::from_secs(ticks.into())
}

pub(super) fn moment(tick: Tick) -> Instant {
    *START + length(tick)
}

/// The lock on a server: whose it is, and when it ends by that server's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Held {
    pub(super) token: Token,
    pub(super) end: Tick,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Node {
    pub(super) is_up: bool,
    /// Whose writes it takes; a master nobody's.
    pub(super) follows: Option<Server>,
    pub(super) lock: Option<Held>,
    /// What its master has written since.
    pub(super) pending: VecDeque<Option<Held>>,
    /// How much it has written as a master.
    pub(super) written: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Command {
    Acquire(Token),
    Renew(Token, Tick),
    /// The same, and no replicas are waited for.
    Repeat(Token, Tick),
    Look(Token),
    Free(Token),
}

/// By which connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum By {
    /// For acquires and releases.
    Calls,
    /// The watchdog's.
    Leases,
}

/// Commands that were sent in one write.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Exchange {
    pub(super) server: Server,
    pub(super) sent: Tick,
    /// That of the process, a moment before.
    pub(super) epoch: u64,
    pub(super) commands: Vec<Command>,
    pub(super) stage: Stage,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    Sent,
    /// With a yes or no for each command. The server waits until replicas have all that it had written by then.
    Executed {
        yes: Vec<bool>,
        written: usize,
    },
    Answered(Answered),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Answered {
    pub(super) yes: Vec<bool>,
    /// So many replicas have it,
    pub(super) had: u32,
    /// until then at least, by the one clock of this model. Nobody decides by this.
    pub(super) until: Tick,
}

/// What a process does with the lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    Idle,
    /// Between two attempts, or waiting for the answer to one.
    Waiting {
        token: Token,
        may_be_ours: bool,
        is_out: bool,
    },
    Holding {
        token: Token,
        id: Id,
        terms: Terms,
        /// Replicas have it until then at least.
        confirmed: Tick,
    },
    Releasing(GaveBack),
}

/// A hold that was given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct GaveBack {
    pub(super) token: Token,
    /// When it was, which of the masters was asked.
    pub(super) epoch: u64,
    pub(super) end: Instant,
}

/// What the watchdog has taken from its schedule.
pub(super) type Batch = (Vec<Question<Token>>, Vec<Orphan<Token>>);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Process {
    pub(super) known: Known,
    /// Grows when another server has become the master, as far as it knows.
    pub(super) epoch: u64,
    /// The newest configuration that it was told of. Nobody decides by this.
    pub(super) heard: usize,
    /// Where its connections lead, and since which epoch.
    pub(super) connection: Option<(Server, u64)>,
    pub(super) phase: Phase,
    pub(super) schedule: Schedule<Token, Token>,
    pub(super) batch: Batch,
    pub(super) call: Option<Exchange>,
    pub(super) renewal: Option<Exchange>,
    /// What may have to be given back again.
    pub(super) given_back: Vec<GaveBack>,
    /// All that was ever given back, and when it ends. Nobody decides by this.
    pub(super) let_go: Vec<(Token, Instant)>,
    pub(super) acquired: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) now: Tick,
    pub(super) nodes: Vec<Node>,
    /// The master of each configuration so far: the last one is in force.
    pub(super) masters: Vec<Server>,
    pub(super) processes: Vec<Process>,
    pub(super) lags: u8,
    pub(super) cuts: u8,
    /// Somebody was granted a lock by a server that he knew to be replaced.
    pub(super) is_of_before: bool,
}

impl Process {
    pub(super) fn exchange(&self, by: By) -> Option<&Exchange> {
        match by {
            By::Calls => self.call.as_ref(),
            By::Leases => self.renewal.as_ref(),
        }
    }

    pub(super) fn exchange_mut(&mut self, by: By) -> &mut Option<Exchange> {
        match by {
            By::Calls => &mut self.call,
            By::Leases => &mut self.renewal,
        }
    }

    /// Whether it believes that it has the lock.
    pub(super) fn believes(&self, now: Tick) -> bool {
        matches!(&self.phase, Phase::Holding { terms, .. } if terms.lost_at(moment(now)).is_none())
    }

    /// Replicas have it for as long as it believes that it has it.
    pub(super) fn is_confirmed(&self, now: Tick) -> bool {
        match self.phase {
            Phase::Holding { confirmed, .. } => !self.believes(now) || now < confirmed,
            _ => true,
        }
    }

    /// It holds the lock, and has heard of this configuration.
    pub(super) fn has_it_of(&self, configuration: usize) -> bool {
        matches!(self.phase, Phase::Holding { .. }) && self.heard == configuration
    }

    /// It has heard of this configuration, and nothing of what follows from that is still to happen.
    pub(super) fn is_settled(&self, configuration: usize, now: Tick) -> bool {
        let nothing_is_due = self
            .schedule
            .due_at()
            .is_none_or(|due| due > moment(now) + NEARLY_NOW);
        let is_releasing = matches!(self.phase, Phase::Releasing(_));
        self.heard == configuration && self.renewal.is_none() && nothing_is_due && !is_releasing
    }
}

impl State {
    pub(super) fn master(&self) -> Server {
        self.masters[self.configuration()]
    }

    pub(super) fn do_two_believe(&self, counts: impl Fn(&Process) -> bool) -> bool {
        let believe = |process: &&Process| process.believes(self.now) && counts(process);
        self.processes.iter().filter(believe).count() > 1
    }

    /// The master has what a process gave back, whose lease goes on, and which will not be given back again.
    pub(super) fn is_anything_left(&self) -> bool {
        let held = self.nodes[self.master()].lock;
        let settled = self
            .processes
            .iter()
            .filter(|process| process.is_settled(self.configuration(), self.now));
        let mut let_go = settled.flat_map(|process| &process.let_go);
        let_go.any(|(token, end)| {
            *end > moment(self.now) && held.is_some_and(|held| held.token == *token)
        })
    }

    pub(super) fn configuration(&self) -> usize {
        self.masters.len() - 1
    }

    pub(super) fn replicas_of(&self, server: Server) -> impl Iterator<Item = (Server, &Node)> {
        let nodes = self.nodes.iter().enumerate();
        nodes.filter(move |(_, node)| node.is_up && node.follows == Some(server))
    }
}

pub(super) fn asks_in_ticks(ask: Ask, token: Token) -> Command {
    match ask {
        Ask::Look => Command::Look(token),
        Ask::Renew(lease) => {
            Command::Renew(token, Tick::try_from(lease.as_secs()).unwrap_or(Tick::MAX))
        }
        // It may have been put off for the shortest time.
        Ask::Repeat(left) => {
            let left = (left + NEARLY_NOW).as_secs();
            Command::Repeat(token, Tick::try_from(left).unwrap_or(Tick::MAX))
        }
    }
}
