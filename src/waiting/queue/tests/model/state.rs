//! A state: threads, queues, connections, the server.

use std::{collections::VecDeque, mem, sync::LazyLock};

use super::*;

pub(super) static START: LazyLock<Instant> = LazyLock::new(crate::time::now);
/// A lease ends sooner than a head asks on its own. No thread may have to wait for either.
pub(super) const LEASE: Duration = Duration::from_millis(900);
/// The delay before an attempt that was untracked or got no reply is repeated.
pub(super) const PAUSE: Duration = Duration::from_millis(10);

/// Threads and locks are numbers. A thread's ticket, and the token it asks with, is its number.
pub(super) type Thread = usize;
pub(super) type Lock = usize;

/// The token of a held lock on the server: its thread's, or another process's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Token {
    Elsewhere,
    Of(Thread),
}

pub(super) fn end() -> Instant {
    *START + LEASE
}

/// The moment of a reply that came after so many grants, or was the last of them.
pub(super) fn answered(grants: u32) -> Instant {
    *START + Duration::from_nanos(grants.into())
}

pub(super) fn ticket(thread: Thread) -> Ticket {
    thread as Ticket
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    Outside,
    /// Asleep, or woken but not running yet.
    InQueue,
    /// Waits for the waiters' connection.
    Asking,
    /// Has sent an attempt on it, in a write with the others that asked.
    Sent(Sent),
    /// The server has answered.
    Answered(Sent, Answer),
    /// Another thread has found out that the connection is lost.
    Unanswered,
    Holding(Token),
    /// The server has executed the release.
    Released,
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Answer {
    /// After so many grants.
    Refused(u32),
    /// So many permits are left, by the answer with this number.
    Granted(u32, u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Sent {
    pub(super) tracked: bool,
    pub(super) on_new_connection: bool,
}

/// The connection that all heads share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Shared {
    pub(super) is_open: bool,
    /// Lost, but not noticed yet.
    pub(super) is_broken: bool,
    /// The notified listener.
    pub(super) told: Option<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) queues: [Queue<Thread, Token>; 2],
    /// A head that was chosen but not woken yet.
    pub(super) chosen: Option<(Lock, Thread)>,
    pub(super) threads: Vec<Phase>,
    pub(super) shared: Shared,
    /// The id of the listener that we know.
    pub(super) listener: Option<u8>,
    /// The id of the listener that the server knows.
    pub(super) listens: Option<u8>,
    /// The holders of each lock, as many as it has permits at most.
    pub(super) held_by: [Vec<Token>; 2],
    /// The number of permits that were granted so far.
    pub(super) grants: u32,
    /// The next change is notified.
    pub(super) tracked: [bool; 2],
    pub(super) messages: VecDeque<Lock>,
    pub(super) deletions: u8,
    pub(super) shared_losses: u8,
    pub(super) listener_losses: u8,
    pub(super) hand_overs: u8,
}

impl State {
    /// The server deletes the lock, and notifies if requested.
    pub(super) fn delete(&mut self, lock: Lock) {
        self.held_by[lock].clear();
        self.has_changed(lock);
    }

    /// The server executes a release, and notifies if requested.
    pub(super) fn free(&mut self, lock: Lock, token: Token) {
        if let Some(place) = self.held_by[lock].iter().position(|held| *held == token) {
            self.held_by[lock].remove(place);
            self.has_changed(lock);
        }
    }

    fn has_changed(&mut self, lock: Lock) {
        let is_told = mem::take(&mut self.tracked[lock]);
        if is_told && self.listens.is_some() && self.shared.told == self.listens {
            self.messages.push_back(lock);
        }
    }

    pub(super) fn all_may_have_changed(&mut self) {
        for queue in &mut self.queues {
            queue.may_have_changed(*START);
        }
    }

    /// True if a thread waits for an answer on the connection.
    pub(super) fn is_used(&self) -> bool {
        let is_out = |phase: &Phase| matches!(phase, Phase::Sent(_) | Phase::Answered(..));
        self.threads.iter().any(is_out)
    }

    /// The loss of the connection was noticed.
    pub(super) fn shared_is_lost(&mut self, rules: Rules, found_by_heartbeat: bool) {
        self.shared = Shared::default();
        for phase in &mut self.threads {
            if matches!(phase, Phase::Sent(_) | Phase::Answered(..)) {
                *phase = Phase::Unanswered;
            }
        }
        if found_by_heartbeat || rules.loss_is_told == LossIsTold::ByWhoeverFindsOut {
            self.all_may_have_changed();
        }
    }

    pub(super) fn somebody_waits(&self) -> bool {
        self.queues.iter().any(|queue| !queue.is_over())
    }
}
