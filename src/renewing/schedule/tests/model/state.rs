//! One state of the model: the schedule, the holders, the server, and the commands and messages in
//! flight.

use std::sync::LazyLock;

use super::*;

/// Ten milliseconds: the length of the rest between two looks, and of the pauses after a refusal
/// and after a broken connection.
pub(super) type Tick = u8;
/// Locks and holders are numbers. A hand-over gives a lock to another holder with the same token.
pub(super) type Lock = usize;
pub(super) type Holder = usize;
pub(super) type Token = usize;

static START: LazyLock<Instant> = LazyLock::new(crate::time::now);
const TICK: Duration = Duration::from_millis(10);

pub(super) fn length(ticks: Tick) -> Duration {
    TICK * ticks.into()
}

pub(super) fn moment(tick: Tick) -> Instant {
    *START + length(tick)
}

pub(super) fn ticks(length: Duration) -> Tick {
    Tick::try_from(length.as_millis() / TICK.as_millis()).unwrap_or(Tick::MAX)
}

/// The key of a lock on the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) token: Token,
    pub(super) end: Tick,
    /// The end before the last renewal, which a replica may have missed.
    pub(super) end_before: Tick,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    /// The holder relies on the lease.
    Held,
    /// The holder was notified of the loss.
    Lost,
    HandedOver,
    Released,
    /// The holder has released the lock, and got no reply.
    Abandoned,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Held {
    pub(super) lock: Lock,
    pub(super) token: Token,
    pub(super) id: Id,
    pub(super) phase: Phase,
    /// The end of the lease by its clock.
    pub(super) end: Instant,
    pub(super) out: Outstanding,
    /// The lease was not renewed since the report of a failover.
    pub(super) is_to_be_renewed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Said {
    Ours,
    NotOurs,
    Forgotten,
    Refused,
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Command {
    Renewal(Holder, Ask),
    Release(Token),
}

/// A batch in flight.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Flight {
    pub(super) sent: Tick,
    pub(super) questions: Vec<Question<Holder>>,
    pub(super) orphans: Vec<Orphan<Token>>,
    /// The reply to each command: first the questions, then the orphans.
    pub(super) answers: Option<Vec<Said>>,
}

impl Flight {
    pub(super) fn commands(&self) -> Vec<Command> {
        let questions = self.questions.iter();
        let renewals = questions.map(|question| Command::Renewal(question.item, question.ask));
        let orphans = self.orphans.iter();
        let releases = orphans.map(|orphan| Command::Release(orphan.item));
        renewals.chain(releases).collect()
    }
}

/// The number of times that each event has happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Happened {
    pub(super) refusals: u8,
    pub(super) breaks: u8,
    pub(super) deletions: u8,
    pub(super) failovers: u8,
    pub(super) hand_overs: u8,
    pub(super) extensions: u8,
    pub(super) releases: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) now: Tick,
    pub(super) schedule: Schedule<Holder, Token>,
    pub(super) holders: Vec<Held>,
    pub(super) keys: Vec<Option<Key>>,
    pub(super) flight: Option<Flight>,
    /// The commands that timed out before the server executed them, and may arrive at any time.
    pub(super) late: Vec<Command>,
    /// The keys whose change the server has not reported yet.
    pub(super) changed: Vec<Lock>,
    /// A failover was not reported yet.
    pub(super) failed_over: bool,
    /// The time of the last report of a change of each key.
    pub(super) told: Vec<Option<Tick>>,
    pub(super) happened: Happened,
    /// The property that an event violated.
    pub(super) wrong: Option<&'static str>,
}

impl State {
    pub(super) fn new(world: &World) -> Self {
        let mut schedule = Schedule::default();
        let (mut holders, mut keys) = (Vec::new(), Vec::new());
        for (lock, begun) in world.begun.iter().enumerate() {
            let end = world.lease - begun;
            let id = schedule.keep(lock, world.terms(moment(end)), moment(0));
            schedule.set_alarm(id);
            holders.push(Held {
                lock,
                token: lock,
                id,
                phase: Phase::Held,
                end: moment(end),
                out: Outstanding::default(),
                is_to_be_renewed: false,
            });
            keys.push(Some(Key {
                token: lock,
                end,
                end_before: end,
            }));
        }
        Self {
            now: 0,
            schedule,
            told: vec![None; keys.len()],
            holders,
            keys,
            flight: None,
            late: Vec::new(),
            changed: Vec::new(),
            failed_over: false,
            happened: Happened::default(),
            wrong: None,
        }
    }

    pub(super) fn is_due(&self) -> bool {
        let due = self.schedule.due_at();
        due.is_some_and(|due| due <= moment(self.now))
    }

    pub(super) fn believers(&self) -> impl Iterator<Item = &Held> {
        let now = moment(self.now);
        let all = self.holders.iter();
        all.filter(move |held| held.phase == Phase::Held && now < held.end)
    }

    /// Returns the key on the server, if it has this token.
    pub(super) fn key_of(&self, lock: Lock, token: Token) -> Option<Key> {
        self.keys[lock].filter(|key| key.token == token && key.end > self.now)
    }

    /// Returns true if a change of the key or a failover is not reported yet, or a question is
    /// pending.
    fn is_open(&self, held: &Held) -> bool {
        let soon = moment(self.now + 1);
        let is_asked = |entry: &LeaseEntry<Holder>| {
            entry.look_at.is_some()
                || entry.in_flight.is_some()
                || held.is_to_be_renewed && entry.renew_at.is_some_and(|at| at <= soon)
        };
        let entry = self.schedule.leases.get(&held.id);
        self.failed_over || self.changed.contains(&held.lock) || entry.is_some_and(is_asked)
    }

    pub(super) fn is_believed_rightly(&self) -> bool {
        self.believers().all(|held| {
            let key = self.key_of(held.lock, held.token);
            key.is_some_and(|key| moment(key.end) >= held.end) || self.is_open(held)
        })
    }

    /// Checks that a key that a holder has released is gone, or its release is still repeated.
    pub(super) fn judge_release(&self) -> bool {
        let abandoned = |held: &&Held| held.phase == Phase::Abandoned;
        self.holders.iter().filter(abandoned).all(|held| {
            let on_its_way = self.flight.iter().flat_map(|flight| &flight.orphans);
            let mut orphans = self.schedule.orphans.iter().chain(on_its_way);
            self.key_of(held.lock, held.token).is_none()
                || orphans.any(|orphan| orphan.item == held.token)
        })
    }

    /// Checks that at most a third of a lease has elapsed, plus the time of a refusal.
    pub(super) fn is_on_time(&self, world: &World) -> bool {
        let late = length(world.lease / 3 + self.happened.refusals);
        let left = length(world.lease).saturating_sub(late);
        let now = moment(self.now);
        self.holders.iter().all(|held| {
            let was_deleted = self.told[held.lock].is_some() || self.changed.contains(&held.lock);
            was_deleted
                || match held.phase {
                    Phase::Held => now + left <= held.end,
                    Phase::Lost => false,
                    Phase::HandedOver | Phase::Released | Phase::Abandoned => true,
                }
        })
    }

    /// Checks that no holder counts on a key that is gone, ten milliseconds after the report, plus
    /// the time of a refusal.
    pub(super) fn is_looked_at(&self) -> bool {
        let soon = 1 + self.happened.refusals;
        self.believers().all(|held| {
            let is_fresh = self.told[held.lock].is_none_or(|told| self.now <= told + soon);
            is_fresh || self.key_of(held.lock, held.token).is_some()
        })
    }
}
