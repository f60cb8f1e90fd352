//! The end of a hold: handed over, released, or left to the watchdog's thread, which retries.
//!
//! A release without a reply is an error for the caller, and [`settle`](Lease::settle) leaves the
//! lock to the watchdog's thread, by
//! [`Keeper::abandon`](crate::renewing::keeper::Keeper::abandon). That thread repeats the release
//! until the server replies, or the last `Locks`, lock and lease are gone; if an acquire got no
//! reply, until that acquire is 100 s old.
//!
//! Every hold ends with the drop of its guard. Only the drop reports the end to the hooks.
//!
//! [`let_go_all`] ends several holds in one write: those of a set that is released, dropped or not
//! acquired, and the lock that a cancelled wait was just granted.
//!
//! Runs on the holder's thread, in a release or a drop. A hand-over locks the queues (`by_key`),
//! then the keeper's `state` with the lease's `facts` within it, and then the queues again. A
//! release is sent with no mutex locked.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use super::{
    lease::{Lease, LeaseGrant},
    stack::Stack,
};
use crate::{
    error::{Result, no_answer},
    event::{HoldEnd, Released},
    options::settings::Settings,
    recipes::Evidence,
    renewing::lease_state::RenewalState,
    server::{Patience, RenewalError, Reply},
    time::{self, Deadline},
    token::{FencingToken, Token},
    waiting::HandOverBudget,
    wire::Call,
};

const RELEASE: &str = "Lease::release";
/// A silent server gets at least this time to release what a failed wait or commit leaves.
pub(super) const GIVES_BACK_WITHIN: Duration = Duration::from_millis(100);

impl Lease {
    /// Releases the lock, and returns the error if that fails. One round trip.
    ///
    /// First waits for a renewal that was already sent. Wakes the first thread that waits for the
    /// lock.
    ///
    /// # Errors
    /// - [`Error::Lost`](crate::Error::Lost): the lock was lost earlier, so someone else may have
    ///   held it at the same time.
    /// - [`Error::Unknown`](crate::Error::Unknown), [`Error::Pool`](crate::Error::Pool),
    ///   [`Error::Redis`](crate::Error::Redis): the lock may not be free yet. The watchdog's thread
    ///   retries until the server replies, as long as you keep a clone of the
    ///   [`Locks`](crate::Locks), a lock or a lease of it. Otherwise the lock ends with its lease.
    /// - [`Error::Forked`](crate::Error::Forked): this is a forked child. The lock belongs to the
    ///   parent and does not change.
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
    ///         Err(Error::Lost { .. }) => println!("lost: another holder may have run too"),
    ///         released => released?,
    ///     }
    /// }
    /// # Ok::<(), Error>(())
    /// ```
    #[doc(alias = "unlock")]
    pub fn release(mut self) -> Result<()> {
        let forked = self.stack.process.refuse_forked_child();
        self.operation(RELEASE).run(|_| forked)?;
        self.let_go(Duration::MAX)
    }

    /// Detaches the lock from this guard, to pass it to another process with the token.
    ///
    /// Returns the token and the time left of the lease. This process no longer renews or releases
    /// the lock. The lock ends with its lease, unless the other process
    /// [adopts](crate::Lock::adopt) it before. A [commit](Self::commit) that got no reply may still
    /// be executed while the other process holds the lock. In a forked child the time left is zero,
    /// and the parent's lease continues.
    ///
    /// Waits for a renewal that was already sent; sends nothing.
    ///
    /// # Examples
    /// ```no_run
    /// use std::process::Command;
    ///
    /// let locks = leasehold::Locks::connect("redis://127.0.0.1/")?;
    /// let lease = locks.lock("report:daily").try_acquire()?;
    /// if let Some(lease) = lease {
    ///     let (token, left) = lease.detach();
    ///     // The other process adopts the lock with the token, and releases it.
    ///     let mut second_half = Command::new("second-half");
    ///     let second_half = second_half.env("LOCK_TOKEN", token.to_string()).spawn();
    ///     if second_half.is_err() {
    ///         locks.lock("report:daily").adopt(&token)?.release()?;
    ///     }
    ///     println!("{left:?} are left");
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[must_use = "the lock stays held until its lease ends or the token releases it"]
    pub fn detach(mut self) -> (Token, Duration) {
        if self.is_forked_child() {
            return (self.hold().token.clone(), Duration::ZERO);
        }
        let left = self.remaining();
        self.end = Some(match self.stop_renewing(Deadline::after(Duration::MAX)) {
            RenewalState::Lost(reason) => HoldEnd::Lost(reason),
            RenewalState::Held | RenewalState::Unknown => HoldEnd::Detached,
        });
        self.notify_queue();
        (self.hold().token.clone(), left)
    }

    /// Stops the renewals and returns the state of the lease. Must not be called in a forked child.
    pub(super) fn stop_renewing(&mut self, deadline: Deadline) -> RenewalState {
        // The release sets the real end.
        self.end = Some(HoldEnd::Unknown);
        self.handle.stop_by(deadline)
    }

    /// Hands the lock over or releases it. Must not be called in a forked child, nor twice.
    fn let_go(&mut self, patience: Duration) -> Result<()> {
        let deadline = Deadline::after(patience);
        if let Some(handed) = self.hand_on(deadline) {
            return handed;
        }
        let state = self.stop_renewing(deadline);
        let was_released = self.send_release(deadline);
        self.settle(RELEASE, was_released, state)
    }

    /// Hands the lock over. `None`: it must be released.
    fn hand_on(&mut self, deadline: Deadline) -> Option<Result<()>> {
        match self.hand_over()? {
            Ok(()) => {
                // The watchdog may just have found a loss.
                let state = self.lease_state().stop();
                Some(self.ends(RELEASE, Ok(true), state))
            }
            Err(mut unwanted) => {
                self.lease_state().stop();
                let released = unwanted.let_go(deadline.remaining());
                self.end = unwanted.end;
                Some(released)
            }
        }
    }

    /// Records the result of the release. Leaves the lock to the watchdog's thread if it may still
    /// be ours.
    pub(super) fn settle(
        &mut self,
        name: &'static str,
        was_released: Result<bool>,
        state: RenewalState,
    ) -> Result<()> {
        let comes_late = self.lease_state().outstanding().acquire && !self.is_disclosed();
        if was_released.is_err() || comes_late {
            self.stack.keeper.abandon(self.hold(), comes_late);
        }
        self.notify_queue();
        self.ends(name, was_released, state)
    }

    /// Wakes the next thread of the queue, which asks for the lock.
    fn notify_queue(&self) {
        let key = self.hold().lock.key();
        self.stack.queues.released(key, &self.turn);
    }

    /// Sets the end of the hold, for the hooks and the caller. A known loss takes precedence.
    fn ends(
        &mut self,
        name: &'static str,
        was_released: Result<bool>,
        state: RenewalState,
    ) -> Result<()> {
        let end = match (&was_released, state) {
            (_, RenewalState::Lost(reason)) => HoldEnd::Lost(reason),
            (Ok(true), _) => HoldEnd::Released,
            (Ok(false), _) => HoldEnd::Lost(self.lease_state().lost_by_a_no()),
            (Err(_), _) => HoldEnd::Unknown,
        };
        self.end = Some(end);
        match end {
            HoldEnd::Lost(reason) => {
                Err((self.lease_state()).lost_error(self.operation(name), Some(reason)))
            }
            _ => was_released.map(drop),
        }
    }

    /// Reports the end of the hold to the hooks, after its loss. Reports nothing for a guard that
    /// was never returned to a user.
    fn report_end(&self) {
        let (Some(end), Some(events)) = (self.end, &self.lease_state().events) else {
            return;
        };
        if !self.is_claimed {
            return;
        }
        if let HoldEnd::Lost(reason) = end {
            self.lease_state().report_lost(reason);
        }
        let held = self.stack.clock.since(self.turn.since);
        let released = Released::new(self.name(), self.lease_state().number, held, end);
        events.tell(|events| events.released(&released));
    }

    /// Sends the release. Returns false if the lock was no longer ours.
    pub(super) fn send_release(&self, deadline: Deadline) -> Result<bool> {
        let releasing = self.hold().releasing();
        let asked = (self.stack.server).ask(&releasing, Patience::until(deadline));
        self.judge_release(asked)
    }

    /// Reads the reply to the release.
    fn judge_release(&self, asked: Result<Reply>) -> Result<bool> {
        let operation = self.operation(RELEASE);
        let asked = operation.run(|_| asked)?;
        let again = asked.again;
        match Evidence::of(asked.write_result()) {
            Evidence::Ours(held) => {
                self.note_released(held);
                Ok(true)
            }
            // The release was sent twice. The first may have released the lock, so a no to the
            // second does not prove a loss.
            Evidence::NotOurs | Evidence::AnotherKind(_) if again => {
                Err(operation.unknown(None, no_answer()))
            }
            Evidence::NotOurs => Ok(false),
            Evidence::AnotherKind(found) => {
                self.failed(RenewalError::Sent(found));
                Ok(false)
            }
            Evidence::NotKnown(error) => Err(operation.unanswered(None, error)),
        }
    }

    /// Records why the lock was not released, or what its key holds instead.
    pub(super) fn failed(&self, failure: RenewalError) {
        (self.lease_state()).renewal_failed(&Arc::new(failure), false);
    }

    /// Notes the end of a hold of a reentrant lock if this was its last level.
    pub(super) fn note_released(&self, levels: u64) {
        if levels == 1 {
            let (now, terms) = (self.stack.clock.now(), self.lease_state().terms());
            let lease_end = terms.end.unwrap_or(now);
            self.hold().note_ended(self.fencing_token(), lease_end, now);
        }
    }
}

impl Lease {
    /// Hands the lock to the first waiting thread. `None`: no thread takes it, and the caller must
    /// release this guard. `Err`: the thread left the queue meanwhile, and the caller must release
    /// the guard in the error instead of this one.
    ///
    /// The lock on the server does not change. After a hand-over this guard must not release or
    /// renew it.
    fn hand_over(&self) -> Option<Result<(), Self>> {
        let (turns, queues) = (self.turns()?, &self.stack.queues);
        let key = self.hold().lock.key();
        let next = queues.next_taker(key)?;
        let (lease, end) = self.successor(turns, next.takes()?)?;
        Some(queues.hand_over(key, &next, lease, end))
    }

    /// Creates the guard of the next turn, and returns it with the end of its lease. `None`: this
    /// lock cannot be handed to that thread.
    fn successor(&self, turns: HandOverBudget, settings: &Settings) -> Option<(Self, Instant)> {
        let (hold, skew) = (self.hold(), self.lease_state().terms().skew);
        // The next thread must want the same key, the same fencing, the same replicas and the same
        // skew, and no command of this lease may still be executed in its turn.
        let fits = hold.lock.prefix() == &*settings.prefix
            && hold.is_fenced == settings.fencing
            && hold.replicas == settings.replicas
            && skew == settings.skew_on(&*self.stack.server)
            && self.lease_state().is_settled();
        if !fits {
            return None;
        }
        let now = self.stack.clock.now();
        let end = self.lease_state().terms().end?;
        let grant = LeaseGrant {
            fence: self.fencing_token().map(FencingToken::next),
            since: now,
            terms: settings.terms(now, end, None, skew),
            turns: Some(turns.spend(now, end, settings.longest_at_first())?),
            unanswered_before: false,
        };
        let lease_state = grant.lease_state(&self.stack, settings, hold);
        let handle = self.handle.hand_over(lease_state)?;
        let lease = Self::kept(&self.stack, settings, grant, handle);
        Some((lease.after_queue(), end))
    }
}

/// Hands over or releases these leases, in one write to each server, and to all servers at once.
/// Leaves those whose server has not replied by the deadline to the watchdog's thread. Must not be
/// called in a forked child, nor for a hold that has ended.
pub(super) fn let_go_all(
    leases: &mut [Lease],
    name: &'static str,
    by: Deadline,
) -> Vec<Result<()>> {
    let handed = leases.iter_mut().map(|lease| lease.hand_on(by));
    let mut done: Vec<Option<Result<()>>> = handed.collect();
    let mut left: Vec<_> = (leases.iter_mut().zip(&mut done))
        .filter(|(_, done)| done.is_none())
        .collect();
    let states = left.iter_mut().map(|(lease, _)| lease.stop_renewing(by));
    let states: Vec<RenewalState> = states.collect();
    let release = |lease: &Lease| (Arc::clone(&lease.stack), lease.hold().releasing());
    let releases: Vec<_> = left.iter().map(|(lease, _)| release(lease)).collect();
    let asked = ask_together(&releases, Patience::until(by));
    for (((lease, done), state), asked) in left.into_iter().zip(states).zip(asked) {
        let was_released = lease.judge_release(asked);
        *done = Some(lease.settle(name, was_released, state));
    }
    done.into_iter().flatten().collect()
}

/// Sends each call to its server, in one write to each server, and to all servers at once. Returns
/// the replies in the order of the calls.
pub(super) fn ask_together(
    calls: &[(Arc<Stack<Lease>>, Call)],
    patience: Patience<'_>,
) -> impl Iterator<Item = Result<Reply>> {
    let mut stacks: Vec<&Arc<Stack<Lease>>> = Vec::new();
    let mut places = Vec::with_capacity(calls.len());
    for (stack, _) in calls {
        let known = stacks.iter().position(|known| Arc::ptr_eq(known, stack));
        places.push(known.unwrap_or(stacks.len()));
        if known.is_none() {
            stacks.push(stack);
        }
    }
    let ask = |stack: &Arc<Stack<Lease>>| {
        let is_its = |(of, _): &&(Arc<_>, _)| Arc::ptr_eq(of, stack);
        let its: Vec<Call> = calls.iter().filter(is_its).map(|it| it.1.clone()).collect();
        stack.server.ask_all(&its, patience)
    };
    let ask = &ask;
    let replies: Vec<Vec<Result<Reply>>> = thread::scope(|scope| {
        let others: Vec<_> = (stacks.iter().skip(1))
            .map(|stack| thread::Builder::new().spawn_scoped(scope, move || ask(stack)))
            .collect();
        let first = stacks.first().map(|stack| ask(stack));
        let others = stacks.iter().skip(1).zip(others);
        let others = others.map(|(stack, asking)| match asking {
            Ok(asking) => asking.join().unwrap_or_default(),
            Err(_no_thread) => ask(stack),
        });
        first.into_iter().chain(others).collect()
    });
    let mut replies: Vec<_> = replies.into_iter().map(Vec::into_iter).collect();
    let nothing = || Ok(Reply::untracked(Err(no_answer()), time::now(), false));
    (places.into_iter()).map(move |place| replies[place].next().unwrap_or_else(nothing))
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.end.is_none() && !self.is_forked_child() {
            let _ = self.let_go(self.drop_timeout);
        }
        self.report_end();
    }
}
