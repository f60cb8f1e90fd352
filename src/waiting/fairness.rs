//! When the head of a queue asks the server after a release, so that other processes have their turns: a plain value.
//!
//! A process has a few turns in a row, and then stays away for a while: it asks nothing, so that the others take turns
//! without it, and the server is spared attempts that would be refused. How long it stays away follows from how long it took
//! the last time until it had the lock again, so that it is back before its next turn and not long before. A process that
//! sees nobody else stays away less and less often, and not at all from a lock that nobody but itself has asked for lately.

use std::{
    mem,
    time::{Duration, Instant},
};

/// After so many turns in a row this process does not ask at once: it stays away for a while, or waits until the server tells it of
/// the release, as the others have to. Its own threads know of a release before anybody else, and would have every turn.
pub(super) const IN_A_ROW: u32 = 4;

/// While no other process is seen, this one still stays away at least once in so many waits for the server's message. While
/// others are seen, it stays away every time.
const LONGEST_ALONE: u32 = 64;

/// A push takes less than this, in most networks.
const PUSH: Duration = Duration::from_millis(5);
/// Another process that hears of a release asks within this time, in most networks: it stays away no shorter, while nothing is
/// known of how long the others take.
const SHORTEST: Duration = Duration::from_millis(1);
/// When that is known, it stays away no shorter than this.
const SHORTEST_KNOWN: Duration = Duration::from_micros(500);
/// It stays away no longer.
pub(super) const LONGEST: Duration = Duration::from_millis(20);
/// Of so many attempts that are likely to be refused, all but one look first.
const LOOKS: u32 = 64;
/// Others that were not seen for so long are gone.
const LATELY: Duration = Duration::from_secs(1);

/// Of one lock: the turns of this process, and what was seen of others.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Fairness {
    turns_in_a_row: u32,
    held: Held,
    /// How often this process has waited for the server's message since it last stayed away.
    waits: u32,
    /// After so many waits it stays away.
    waits_until_others: u32,
    /// When another process was last seen to have the lock.
    others_seen: Option<Instant>,
    /// What was known of others before the first refusal since the last turn. A thread of this process that does not stand in
    /// the queue may have been the reason, and then the refusal says nothing of others. That thread may say so when the head has had
    /// its turn: the server's message of a release may overtake that release's own answer.
    before_refusals: Option<SeenOfOthers>,
    /// Since when this process has stayed away, until its next turn.
    away: Option<Away>,
    /// How long it took until this process had its next turn, the last time.
    others_took: Duration,
    /// The releases that the head knows of, and has not asked after.
    known: Releases,
    /// Those that it knew of when it asked the last time.
    asked_after: Releases,
    /// When this process released the lock last, if the server has not told of that yet.
    message_due: Option<Instant>,
    /// When the server told of a change while this process had the lock: the message of a release may overtake that release's own
    /// answer.
    told_early: Option<Instant>,
    /// How often the head was refused since the last turn of this process, though the server or a thread of this process had told it
    /// of a release: others were faster. One more when this process stays away from a lock that others want.
    in_vain: u32,
}

/// What is known of other processes, and changes with a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct SeenOfOthers {
    /// When the head was refused.
    until: Instant,
    /// The head has had a turn since.
    is_past: bool,
    waits_until_others: u32,
    others_seen: Option<Instant>,
    in_vain: u32,
}

/// What a thread of this process had, and has released.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PastHold {
    /// When it had asked for the lock, or was handed it.
    pub(crate) since: Instant,
    /// The queue knows that it had the lock.
    pub(crate) stood_in_queue: bool,
}

/// Of which releases a waiting head knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Releases {
    /// The server has told of one.
    told: bool,
    /// A thread of this process has released the lock.
    own: bool,
}

/// Whether a thread that stood in the queue has the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Held {
    No,
    BesideOthers,
    /// Since that moment.
    Alone(Instant),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Away {
    since: Instant,
    until: Instant,
    /// Another process had the lock then.
    refused: bool,
}

/// How a head asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Manner {
    /// Others are likely to have the lock by now: they were faster the last time, and the head asks since it has heard of a
    /// release or comes back. A look costs the server less than an attempt. What a look cannot see, such as a key that is no
    /// lock, an attempt finds out that is made when the head has heard nothing for a while.
    pub(crate) looks_first: bool,
    /// The lock goes from process to process, so that the next release is near: it is not worth a command to be told for how
    /// long somebody may have it, nor another to have the next head told of a change.
    pub(crate) is_brief: bool,
}

impl Default for Fairness {
    fn default() -> Self {
        Self {
            turns_in_a_row: 0,
            held: Held::No,
            waits: 0,
            waits_until_others: 1,
            others_seen: None,
            before_refusals: None,
            away: None,
            others_took: Duration::ZERO,
            known: Releases::default(),
            asked_after: Releases::default(),
            message_due: None,
            told_early: None,
            in_vain: 0,
        }
    }
}

impl Fairness {
    /// A thread that stood in the queue has the lock, alone or beside others.
    pub(super) fn granted(&mut self, now: Instant, alone: bool) {
        self.turns_in_a_row += 1;
        self.held = if alone {
            Held::Alone(now)
        } else {
            Held::BesideOthers
        };
        (self.known, self.asked_after, self.in_vain) = Default::default();
        if let Some(before) = &mut self.before_refusals {
            before.is_past = true;
        }
        if let Some(away) = self.away.take() {
            self.others_took = if away.refused {
                // What took long once need not take long again.
                let longest = (self.others_took * 2).max(SHORTEST);
                now.saturating_duration_since(away.since).min(longest)
            } else {
                self.others_took * 7 / 8
            };
        }
    }

    /// The head asks.
    pub(super) fn asks(&mut self) {
        self.asked_after = mem::take(&mut self.known);
    }

    /// The head was refused: others have their turns, unless a thread of this process has the lock, or has released it since the head
    /// asked.
    pub(super) fn refused(&mut self, now: Instant) {
        if self.is_held_here() || self.known.own {
            return;
        }
        let is_over =
            |it: &SeenOfOthers| it.is_past || now.saturating_duration_since(it.until) >= LATELY;
        if self.before_refusals.as_ref().is_none_or(is_over) {
            self.before_refusals = Some(SeenOfOthers {
                until: now,
                is_past: false,
                waits_until_others: self.waits_until_others,
                others_seen: self.others_seen,
                in_vain: self.in_vain,
            });
        }
        let was_our_turn = mem::take(&mut self.turns_in_a_row) > 0;
        self.waits_until_others = 1;
        self.others_seen = Some(now);
        let Releases { told, own } = mem::take(&mut self.asked_after);
        self.in_vain += u32::from(told || own && was_our_turn);
        if let Some(away) = &mut self.away {
            away.refused = true;
        }
    }

    /// A thread of this process has released the lock. Says when the head asks, if one waits; `None`: the lock was released by a thread
    /// that did not stand in the queue, and one that did has it alone by now.
    pub(super) fn released(
        &mut self,
        now: Instant,
        waits: bool,
        hold: &PastHold,
    ) -> Option<Instant> {
        self.take_back_refusals(hold);
        let was_granted_later = matches!(self.held, Held::Alone(since) if since < hold.since);
        if !hold.stood_in_queue && was_granted_later {
            // The thread that stood in the queue has lost the lock.
            self.held = Held::No;
        }
        if !self.is_held_here() {
            // The turn was not counted when it began.
            self.turns_in_a_row += 1;
        }
        if hold.stood_in_queue {
            self.held = Held::No;
        }
        (!self.is_held_alone()).then(|| self.after_release(now, waits))
    }

    /// Forgets what the refusals of the head since the beginning of that hold have said of others: the hold was the reason.
    pub(super) fn take_back_refusals(&mut self, hold: &PastHold) {
        if let Some(known) = self.before_refusals.take_if(|it| hold.since <= it.until) {
            self.waits_until_others = known.waits_until_others;
            self.others_seen = known.others_seen;
            self.in_vain = known.in_vain;
        }
    }

    fn after_release(&mut self, now: Instant, waits: bool) -> Instant {
        let early = self.told_early.take();
        let was_told = early.is_some_and(|at| is_just_before(at, now));
        self.message_due = (!was_told).then_some(now);
        self.known.own = waits;
        if self.turns_in_a_row < IN_A_ROW {
            return self.asks_at(now);
        }
        self.turns_in_a_row = 0;
        self.waits += 1;
        if self.waits < self.waits_until_others {
            if was_told {
                self.known.told = true;
                return self.asks_at(now);
            }
            // The server's message comes before, or does not come.
            return now + PUSH;
        }
        self.waits = 0;
        if self.sees_others(now) {
            self.in_vain += 1;
        } else {
            self.waits_until_others = LONGEST_ALONE.min(self.waits_until_others * 2);
        }
        let shortest = if self.others_took.is_zero() {
            SHORTEST
        } else {
            SHORTEST_KNOWN
        };
        let until = now + (self.others_took * 3 / 4).clamp(shortest, LONGEST);
        self.away = Some(Away {
            since: now,
            until,
            refused: false,
        });
        until
    }

    /// The server says that something has happened to the lock.
    pub(super) fn heard(&mut self) {
        self.known.told = true;
        self.message_due = None;
    }

    /// The server says so while a thread that stood in the queue has the lock alone. Within [`PUSH`] of our last release the message
    /// is taken for that release's, which was late. Otherwise it is taken for an early one of our next release, if that follows
    /// within [`PUSH`]. If it was a renewal's, the other processes lose one chance.
    pub(super) fn heard_while_held(&mut self, now: Instant) {
        let due = self.message_due.take();
        if !due.is_some_and(|released| is_just_before(released, now)) {
            self.told_early = Some(now);
        }
    }

    /// How the head asks, if it asks now.
    pub(super) fn manner(&self, now: Instant) -> Manner {
        let comes_back = self.away.as_ref().is_some_and(|away| !away.refused);
        let expects_to_wait = self.asked_after.told || comes_back;
        let expects_a_release = expects_to_wait || self.turns_in_a_row > 0;
        Manner {
            looks_first: expects_to_wait && !self.in_vain.is_multiple_of(LOOKS),
            is_brief: expects_a_release && !self.is_held_here() && self.sees_others(now),
        }
    }

    /// Whether a thread that stood in the queue has the lock, alone or beside others.
    pub(super) fn is_held_here(&self) -> bool {
        self.held != Held::No
    }

    /// Whether a thread that stood in the queue has the lock alone, unless it has lost it.
    pub(super) fn is_held_alone(&self) -> bool {
        matches!(self.held, Held::Alone(_))
    }

    /// When the head asks about what happens now.
    pub(super) fn asks_at(&self, now: Instant) -> Instant {
        let Some(away) = &self.away else {
            return now;
        };
        // Whoever is back before `others_took` is over waits up to a millisecond more, so that who has been away for longer comes first.
        let early = (away.since + self.others_took).saturating_duration_since(now);
        away.until.max(now + (early / 8).min(SHORTEST))
    }

    /// Whether others were seen lately.
    pub(super) fn sees_others(&self, now: Instant) -> bool {
        let is_lately = |seen: Instant| now.saturating_duration_since(seen) < LATELY;
        self.others_seen.is_some_and(is_lately)
    }
}

/// Whether less than [`PUSH`] lies between: a message of what happened at one of these moments may come at the other.
fn is_just_before(earlier: Instant, now: Instant) -> bool {
    now.saturating_duration_since(earlier) < PUSH
}
