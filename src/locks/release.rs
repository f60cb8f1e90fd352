//! Letting a lock go: handed over, given back, or left to the watchdog's thread, which tries again.
//!
//! A release that got no answer is an error for the caller, and [`settle`](Lease::settle) leaves
//! the lock to the watchdog's thread: [`Keeper::abandon`](crate::renewing::keeper::Keeper::abandon)
//! has it released until the server answers.
//!
//! However a hold ends, its guard is dropped: the drop tells the hooks of the end, in the one place
//! that does.
//!
//! Called on the holder's thread, by a release or a drop. A hand-over locks the queues
//! (`by_key`), then the keeper's `state` with the lease's `facts` within it, and then the queues
//! again. Giving back sends with nothing locked.

use std::time::{Duration, Instant};

use super::{
    lease::{Lease, LeaseGrant},
    options::Settings,
};
use crate::{
    error::{Error, LostReason, Result, no_answer},
    event::{HoldEnd, Released},
    renewing::lease_state::RenewalState,
    server::Patience,
    time::Deadline,
    token::{FencingToken, Token},
    waiting::HandOverBudget,
    wire::count,
};

const RELEASE: &str = "Lease::release";

impl Lease {
    /// Gives the lock back. One round trip.
    ///
    /// Waits for a renewal that is being sent at this moment. The first thread that waits for the
    /// lock is woken.
    ///
    /// # Errors
    /// - [`Error::Lost`]: it was not ours any more, so that somebody else may have had it at the
    ///   same time.
    /// - [`Error::Unknown`], [`Error::Pool`], [`Error::Redis`]: it may not be free yet. It is tried
    ///   again, by the watchdog's thread, until the server has answered.
    /// - [`Error::Forked`]: this is a child's copy after a fork. The lock is the parent's, and
    ///   stays as it is.
    ///
    /// # Examples
    /// ```no_run
    /// use leasehold::{Error, Locks};
    ///
    /// let locks = Locks::connect("redis://127.0.0.1/")?;
    /// let lock = locks.lock("report:daily");
    /// if let Some(lease) = lock.try_acquire()? {
    ///     // the work
    ///     match lease.release() {
    ///         Err(Error::Lost { .. }) => println!("the lock was lost: somebody else may have worked at the same time"),
    ///         released => released?,
    ///     }
    /// }
    /// # Ok::<(), Error>(())
    /// ```
    pub fn release(mut self) -> Result<()> {
        self.stack.process.refuse_forked_child()?;
        self.let_go(Duration::MAX)
    }

    /// Detaches the lock from this guard, for another process that is given the token: nothing is
    /// renewed or released any more.
    ///
    /// It ends with its lease, unless the other process renews it. Says what is left of it. A
    /// [commit](Self::commit) that got no answer may still be executed while the other process has
    /// the lock. In the child of a fork nothing is left, and its parent's lease goes on.
    ///
    /// # Examples
    /// ```no_run
    /// use std::process::Command;
    ///
    /// let locks = leasehold::Locks::connect("redis://127.0.0.1/")?;
    /// let lease = locks.lock("report:daily").try_acquire()?;
    /// if let Some(lease) = lease {
    ///     let (token, left) = lease.detach();
    ///     // The other process renews and releases by the token, with the functions of recipes::mutex.
    ///     let second_half = Command::new("second-half").env("LOCK_TOKEN", token.to_string()).spawn();
    ///     println!("{left:?} are left: {second_half:?}");
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[must_use = "who has the token has the lock"]
    pub fn detach(mut self) -> (Token, Duration) {
        if self.is_forked_child() {
            return (self.hold().token().clone(), Duration::ZERO);
        }
        let left = self.remaining();
        self.end = Some(match self.stop_renewing(Deadline::after(Duration::MAX)) {
            RenewalState::Lost(reason) => HoldEnd::Lost(reason),
            RenewalState::Held | RenewalState::Unknown => HoldEnd::Detached,
        });
        self.tell_queue();
        (self.hold().token().clone(), left)
    }

    /// Ends the keeping, and says how the lease stood. Not to be called in a child.
    pub(super) fn stop_renewing(&mut self, deadline: Deadline) -> RenewalState {
        // Until more is known.
        self.end = Some(HoldEnd::Unknown);
        self.handle.stop_by(deadline)
    }

    /// Hands the lock over or gives it back. Not to be called in a child, nor twice.
    fn let_go(&mut self, patience: Duration) -> Result<()> {
        match self.hand_over() {
            Some(Ok(())) => {
                // A look may have found a loss at this moment.
                let state = self.lease_state().stop();
                return self.ends(RELEASE, Ok(true), state);
            }
            Some(Err(mut unwanted)) => {
                self.lease_state().stop();
                let released = unwanted.let_go(patience);
                self.end = unwanted.end;
                return released;
            }
            None => {}
        }
        let deadline = Deadline::after(patience);
        let state = self.stop_renewing(deadline);
        let given_back = self.give_back(deadline);
        self.settle(RELEASE, given_back, state)
    }

    /// Notes the result of the release. A lock that may still be ours is left to the watchdog's
    /// thread.
    pub(super) fn settle(
        &mut self,
        name: &'static str,
        given_back: Result<bool>,
        state: RenewalState,
    ) -> Result<()> {
        let failed = matches!(&given_back, Err(error) if !matches!(error, Error::WrongKind { .. }));
        let comes_late = self.lease_state().outstanding().may_acquire() && !self.is_disclosed();
        if failed || comes_late {
            self.stack.keeper.abandon(self.hold(), comes_late);
        }
        self.tell_queue();
        self.ends(name, given_back, state)
    }

    /// This process has let the lock go: the next in the queue asks.
    fn tell_queue(&self) {
        let key = self.hold().lock_name().key();
        self.stack.released(key, &self.turn);
    }

    /// Notes how it has ended, for the hooks and for the caller: a loss that is known comes first.
    fn ends(
        &mut self,
        name: &'static str,
        given_back: Result<bool>,
        state: RenewalState,
    ) -> Result<()> {
        let end = match (&given_back, state) {
            (_, RenewalState::Lost(reason)) => HoldEnd::Lost(reason),
            (Ok(true), _) => HoldEnd::Released,
            (Ok(false), _) => HoldEnd::Lost(LostReason::TakenAway),
            (Err(_), _) => HoldEnd::Unknown,
        };
        self.end = Some(end);
        match end {
            HoldEnd::Lost(reason) => Err(self.operation(name).lost_because(Some(reason))),
            _ => given_back.map(drop),
        }
    }

    /// Tells the hooks how the hold has ended, of a loss first. Of a guard that no user has had
    /// there is nothing to tell.
    fn tell_of_end(&self) {
        let (Some(end), Some(events)) = (self.end, &self.lease_state().events) else {
            return;
        };
        if !self.is_claimed {
            return;
        }
        if let HoldEnd::Lost(reason) = end {
            self.lease_state().tell_loss(reason);
        }
        let held = self.stack.clock.since(self.turn.since);
        events.tell(|events| events.released(&Released::new(self.name(), held, end)));
    }

    /// Sends the release. False: the lock was not ours any more.
    pub(super) fn give_back(&self, deadline: Deadline) -> Result<bool> {
        let operation = self.operation(RELEASE);
        let giving_back = self.hold().giving_back();
        let asked = (self.stack.server).ask(&giving_back, Patience::until(deadline))?;
        let again = asked.again;
        match asked.of_both().and_then(|answer| count(&answer)) {
            // It was sent twice, and the first may have released the lock: the no to the second
            // proves no loss.
            Ok(0) if again => Err(operation.unknown(None, no_answer())),
            Ok(held) => Ok(held > 0),
            Err(error) => Err(operation.unanswered(None, error)),
        }
    }
}

impl Lease {
    /// Hands the lock to the first of those who wait for it. `None`: it has to be released. An
    /// error is the next guard, where the thread that it was made for has left meanwhile: it has to
    /// be released instead.
    ///
    /// The lock on the server stays as it is. This guard is of no use afterwards: it must not
    /// release or renew.
    fn hand_over(&self) -> Option<Result<(), Self>> {
        let (turns, queues) = (self.turns()?, &self.stack.queues);
        let key = self.hold().lock_name().key();
        let next = queues.next_taker(key)?;
        let (lease, end) = self.successor(turns, next.takes()?)?;
        Some(queues.hand_over(key, &next, lease, end))
    }

    /// The guard of the next turn, with an identity of its own, and when it ends unless it is
    /// renewed. `None`: not from this one.
    fn successor(&self, turns: HandOverBudget, settings: &Settings) -> Option<(Self, Instant)> {
        let hold = self.hold();
        // By another prefix the next thread asks for another name; it has a fencing token, or not;
        // it asks for other replicas to confirm the hold; or a command that is still out there must
        // not be executed in its turn.
        let fits = hold.lock_name().prefix() == &*settings.prefix
            && hold.is_fenced() == settings.fencing
            && hold.replicas() == settings.replicas
            && self.lease_state().is_settled();
        if !fits {
            return None;
        }
        let now = self.stack.clock.now();
        let end = self.lease_state().terms().end?;
        let grant = LeaseGrant {
            fence: self.fencing_token().map(FencingToken::next),
            since: now,
            end,
            look_at: None,
            turns: Some(turns.spend(now, end, settings.longest_at_first())?),
            unanswered_before: false,
        };
        let keep = |lease_state| self.handle.hand_over(lease_state);
        let lease = Self::begin(&self.stack, settings, self.hold(), grant, keep)?;
        Some((lease.having_stood_in_queue(), end))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.end.is_none() && !self.is_forked_child() {
            let _ = self.let_go(self.drop_timeout);
        }
        self.tell_of_end();
    }
}
