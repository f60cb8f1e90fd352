//! `Lease`, the guard of a lock that is held.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use redis::RedisError;

use crate::{
    error::{Error, Operation, Result},
    recipes::{Evidence, Hold},
    time::lease_millis,
    token::{FencingToken, Token},
};
use crate::{
    event::HoldEnd,
    locks::stack::Stack,
    options::settings::Settings,
    renewing::{
        entry::{Ask, Terms},
        keeper::Handle,
        lease_state::{LeaseState, RenewalState},
        signal::LostSignal,
    },
    server::{Patience, RenewalError, Reply},
    waiting::{HandOverBudget, PastHold},
};

/// The operation that errors of [`Lease::check`] name.
/// The guard of a lock that is held, until it is released or dropped. It is `Send`.
///
/// Dropping it releases the lock, on a panic too. The drop waits at most
/// [`Options::drop_timeout`](crate::Options::drop_timeout) and ignores errors;
/// [`release`](Self::release) returns them. In a forked child the drop does nothing: the lock is
/// the parent's.
///
/// [`is_held`](Self::is_held), [`check`](Self::check), [`remaining`](Self::remaining),
/// [`state`](Self::state) and [`lost`](Self::lost) use our own clock and the server's last replies
/// and notifications. They send nothing.
///
/// # Guarantees
/// - [`is_held`](Self::is_held) is never true after the lease has ended on the server, provided
///   that the clocks run at the same rate, the server loses no data and no one deletes the lock by
///   hand.
/// - [`lost`](Self::lost) reports a loss: soon after the lock is deleted, taken over or flushed on
///   the server, and at the end of the lease by our own clock.
/// - After `release` returns, nothing is sent for this hold, with one exception. If an attempt to
///   acquire it got no reply and may be delivered late, the watchdog's thread repeats the release,
///   less and less often, until that attempt is at least 100 s old.
///
/// It does not guarantee that the lock is still held while you write: a process can be paused
/// between the check and the write. For that, pass the [fencing token](Self::fencing_token) to the
/// resource, or [`commit`](Self::commit) to the same server. [A page](crate::docs::guarantees) has
/// each promise, and what breaks it.
///
/// # Examples
/// ```no_run
/// use std::time::Duration;
///
/// # fn pages() -> Vec<u32> { Vec::new() }
/// # fn rebuild(page: u32) {}
/// let locks = leasehold::Locks::connect("redis://127.0.0.1/")?;
/// let lease = locks.lock("report:daily").acquire(Duration::from_secs(30))?;
/// for page in pages() {
///     lease.check()?; // stops as soon as the lock is lost
///     rebuild(page);
/// }
/// lease.release()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
#[must_use = "dropping it releases the lock at once"]
#[doc(alias = "guard")]
pub struct Lease {
    pub(crate) stack: Arc<Stack<Lease>>,
    pub(crate) handle: Handle,
    /// Passed to the queue at the end of the hold.
    pub(super) turn: PastHold,
    /// The hand-over budget, if the lock may be handed over.
    turns: Option<HandOverBudget>,
    pub(crate) drop_timeout: Duration,
    /// The end of the hold, once it has ended. The drop reports it to the hooks.
    pub(super) end: Option<HoldEnd>,
    /// The guard was returned to a user. A guard that was not is never handed over, and the hooks
    /// do not learn of its release.
    pub(crate) is_claimed: bool,
    /// The token was read, so other code may use it to release the lock.
    disclosed: AtomicBool,
}

/// The data of a new lease, granted by the server or handed over by the previous holder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseGrant {
    pub(crate) fence: Option<FencingToken>,
    /// A moment just before the attempt was sent, or the moment of the hand-over.
    pub(crate) since: Instant,
    pub(crate) terms: Terms,
    /// The hand-over budget, if the lock may be handed over.
    pub(crate) turns: Option<HandOverBudget>,
    /// An attempt before the granted one got no reply.
    pub(crate) unanswered_before: bool,
}

impl LeaseGrant {
    /// Returns the state of the new lease.
    pub(super) fn lease_state(
        &self,
        stack: &Stack<Lease>,
        settings: &Settings,
        hold: &Arc<Hold>,
    ) -> LeaseState {
        let (events, holder) = (settings.events.clone(), settings.owner.clone());
        let lease_state =
            LeaseState::new(hold, holder, self.fence, &self.terms, events, stack.clock);
        if self.unanswered_before {
            lease_state.outstanding().acquire = true;
        }
        lease_state
    }
}

impl Lease {
    /// Creates the lease of this grant by the server, and has it kept.
    pub(crate) fn begin(
        stack: &Arc<Stack<Self>>,
        settings: &Settings,
        hold: &Arc<Hold>,
        grant: LeaseGrant,
    ) -> Self {
        let lease_state = grant.lease_state(stack, settings, hold);
        let handle = Handle::keep(&stack.keeper, lease_state);
        stack.server.start_notifications();
        Self::kept(stack, settings, grant, handle)
    }

    /// Creates the lease of this grant, which is kept already.
    pub(super) fn kept(
        stack: &Arc<Stack<Self>>,
        settings: &Settings,
        grant: LeaseGrant,
        handle: Handle,
    ) -> Self {
        Self {
            stack: Arc::clone(stack),
            handle,
            turn: PastHold {
                since: grant.since,
                stood_in_queue: false,
            },
            turns: grant.turns,
            drop_timeout: settings.drop_timeout,
            end: None,
            is_claimed: false,
            disclosed: AtomicBool::new(false),
        }
    }

    pub(crate) fn after_queue(mut self) -> Self {
        self.turn.stood_in_queue = true;
        self
    }

    /// Reports a loss to the hooks from now on, as soon as it is detected.
    pub(crate) fn report_loss(&self) {
        if self.lease_state().events.is_some() {
            let lease_state = Arc::downgrade(self.handle.lease_state());
            let lost = move |reason| {
                if let Some(lease_state) = lease_state.upgrade() {
                    lease_state.report_lost(reason);
                }
            };
            // If the callback thread cannot start, the end of the hold reports the loss.
            let _ = self.lost().notify(lost);
        }
    }

    /// Returns true while the lock is held, by our clock and the server's replies and
    /// notifications. Returns false as soon as the lease ends, without a grace period.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// Returns [`is_held`](Self::is_held) as a `Result`, for `?`. Sends nothing.
    ///
    /// # Errors
    /// [`Error::Lost`]: the lease was lost, with the reason.
    pub fn check(&self) -> Result<()> {
        self.check_for("Lease::check")
    }

    /// Returns the time left of the lease by our clock; zero once it is lost. A renewal extends it.
    #[must_use]
    #[doc(alias = "ttl")]
    pub fn remaining(&self) -> Duration {
        self.lease_state().remaining()
    }

    /// Returns whether the lease is held, lost, or unknown because the last renewal failed.
    #[must_use]
    pub fn state(&self) -> RenewalState {
        self.lease_state().state()
    }

    /// Returns a signal of the loss of the lease: poll it, wait on it, or register a callback.
    #[must_use]
    #[doc(alias = "on_lost")]
    pub fn lost(&self) -> LostSignal {
        LostSignal::new(self.handle.clone())
    }

    /// Returns the error of the last renewal, if it failed, for the log entry of a loss.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        self.lease_state().failure(self.operation("renew"))
    }

    /// Returns the number to pass to the resource, greater than that of every earlier holder.
    /// `None` for a reader, a permit, or a mutex without
    /// [`Options::fencing`](crate::Options::fencing).
    #[must_use]
    pub fn fencing_token(&self) -> Option<FencingToken> {
        self.lease_state().fence
    }

    /// Returns the token that identifies this hold, for another process or the plain functions.
    #[must_use]
    pub fn token(&self) -> &Token {
        self.disclosed.store(true, Ordering::SeqCst);
        &self.hold().token
    }

    /// Returns the name of the lock.
    #[must_use]
    pub fn name(&self) -> &str {
        self.hold().lock.text()
    }

    pub(super) fn check_for(&self, name: &'static str) -> Result<()> {
        if self.is_held() {
            return Ok(());
        }
        Err(self.lost_for(name))
    }

    /// Asks the server whether the lock is still ours. One round trip.
    ///
    /// # Errors
    /// - [`Error::Lost`]: the lock is not ours. The lease is lost from now on.
    /// - [`Error::Unknown`], [`Error::Pool`], [`Error::Redis`]: no answer, so it is unknown. The
    ///   lease does not change.
    ///
    /// # Examples
    /// ```no_run
    /// # let locks = leasehold::Locks::connect("redis://127.0.0.1/")?;
    /// # let lease = locks.lock("report:daily").acquire(std::time::Duration::from_secs(30))?;
    /// # fn send_to_the_printer() {}
    /// lease.verify()?; // the last moment to stop
    /// send_to_the_printer();
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn verify(&self) -> Result<()> {
        self.asks("Lease::verify", || Ok(Ask::Look))
    }

    /// Extends the lease to end this long from now, 1 ms to 24 h. One round trip.
    ///
    /// Never shortens the lease, nor extends it past
    /// [`Options::max_hold`](crate::Options::max_hold).
    ///
    /// Use it before a step during which the connection may be lost. Otherwise the watchdog's
    /// renewals are enough.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the length is not between 1 ms and 24 h.
    /// - [`Error::TooFewReplicas`]: see [`Options::replicas`](crate::Options::replicas). The end
    ///   does not change.
    /// - All others as [`verify`](Self::verify).
    ///
    /// # Examples
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// # let locks = leasehold::Locks::connect("redis://127.0.0.1/")?;
    /// # let lease = locks.lock("report:daily").acquire(Duration::from_secs(30))?;
    /// lease.renew(Duration::from_secs(120))?; // Redis restarts within two minutes
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[doc(alias = "extend")]
    #[doc(alias = "refresh")]
    pub fn renew(&self, lease: Duration) -> Result<()> {
        self.asks("Lease::renew", || self.extension(lease))
    }

    fn asks(&self, name: &'static str, ask: impl FnOnce() -> Result<Ask>) -> Result<()> {
        self.operation(name).run(|_| {
            self.stack.process.refuse_forked_child()?;
            let ask = ask()?;
            let sent = self.ask(name, ask)?;
            self.confirmed(name, ask, sent)
        })
    }

    /// Returns the question that extends the lease to this length.
    pub(super) fn extension(&self, lease: Duration) -> Result<Ask> {
        lease_millis("lease", lease)?;
        let now = self.stack.clock.now();
        Ok(Ask::Renew(self.lease_state().terms().capped(lease, now)))
    }

    /// Records that the lock was ours after a question that was sent at this moment.
    pub(super) fn confirmed(&self, name: &'static str, ask: Ask, sent: Instant) -> Result<()> {
        let is_held = match ask {
            Ask::Look => self.is_held(),
            Ask::Renew(lease) => self
                .handle
                .extend(sent + lease.saturating_sub(self.lease_state().terms().skew)),
        };
        if is_held {
            return Ok(());
        }
        Err(self.lost_for(name))
    }

    pub(crate) fn lease_state(&self) -> &LeaseState {
        self.handle.lease_state()
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.lease_state().hold
    }

    /// Marks the guard as returned to a user.
    pub(crate) fn claimed(mut self) -> Self {
        self.is_claimed = true;
        self
    }

    /// Marks the guard as not returned, before it is dropped.
    pub(crate) fn declined(mut self) -> Self {
        self.is_claimed = false;
        self
    }

    /// Returns the hand-over budget, if the lock may be handed over.
    pub(crate) fn turns(&self) -> Option<HandOverBudget> {
        let is_over = self.end.is_some() || self.is_disclosed();
        self.turns.filter(|_| self.is_claimed && !is_over)
    }

    /// Returns true if the token was read: other code may release the lock with it, or use it after
    /// our release.
    pub(crate) fn is_disclosed(&self) -> bool {
        self.disclosed.load(Ordering::SeqCst)
    }

    /// Returns true in a forked child, which has only a copy: the lock belongs to the parent.
    pub(crate) fn is_forked_child(&self) -> bool {
        self.stack.process.is_forked_child()
    }

    /// Looks at the lease or renews it, on a connection of the pool. Returns the time just before
    /// the call was sent. Must not be called in a forked child.
    pub(super) fn ask(&self, name: &'static str, ask: Ask) -> Result<Instant> {
        if !self.is_held() {
            // The server could say yes again, for the next hold of the same owner.
            return Err(self.lost_for(name));
        }
        let asked = (self.stack.server).ask(&ask.of(self.hold()), Patience::USUAL);
        self.judge(name, ask, asked)
    }

    /// Returns the time just before the call was sent, if the reply says that the lock is ours.
    pub(super) fn judge(
        &self,
        name: &'static str,
        ask: Ask,
        asked: Result<Reply>,
    ) -> Result<Instant> {
        if ask.is_renewal() && asked.as_ref().is_ok_and(|asked| asked.again) {
            // The call was sent twice, and the first may still be executed, whatever the reply to
            // the second.
            self.lease_state().outstanding().renewal = true;
        }
        let answer = asked.map(|asked| (asked.sent, Evidence::of(asked.write_result())));
        let failure = match answer {
            Ok((sent, Evidence::Ours(_))) => return Ok(sent),
            Ok((_, Evidence::NotOurs)) => return Err(self.not_ours(name, None)),
            Ok((_, Evidence::AnotherKind(found))) => return Err(self.not_ours(name, Some(found))),
            Ok((_, Evidence::NotKnown(error))) => RenewalError::Sent(error),
            Err(error) => RenewalError::Unsent(error),
        };
        let error = failure.error(self.operation(name));
        if ask.is_renewal() {
            let is_out = matches!(error, Error::Unknown { .. });
            self.lease_state()
                .renewal_failed(&Arc::new(failure), is_out);
        }
        // A loss that was detected meanwhile takes precedence.
        self.check_for(name)?;
        Err(error)
    }

    /// Marks the lease lost, since a reply says that the lock is not ours. `found`: what its key
    /// holds instead.
    pub(super) fn not_ours(&self, name: &'static str, found: Option<RedisError>) -> Error {
        self.handle.lose(found);
        self.lost_for(name)
    }

    fn lost_for(&self, name: &'static str) -> Error {
        let lease_state = self.lease_state();
        lease_state.lost_error(self.operation(name), lease_state.lost())
    }

    pub(super) fn operation(&self, name: &'static str) -> Operation<'_> {
        Operation::new(name, self.name())
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("hold", self.hold())
            .field("state", &self.state())
            .field("remaining", &self.remaining())
            .field("fencing_token", &self.fencing_token())
            .finish_non_exhaustive()
    }
}
