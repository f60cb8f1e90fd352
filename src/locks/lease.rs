//! The guard: what a user has for as long as the lock is held.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{
    error::LostReason,
    event::HoldEnd,
    locks::{options::Settings, stack::Stack},
    renewing::{
        entry::{Ask, Terms},
        keeper::Handle,
        lease_state::{LeaseState, RenewalState},
        signal::LostSignal,
    },
    server::{Failure, Patience},
    waiting::{HandOverBudget, PastHold},
};
use crate::{
    error::{Error, Operation, Result},
    recipes::hold::Hold,
    time::lease_millis,
    token::{FencingToken, Token},
    wire::yes_or_no,
};

/// The function that an error of a look at the lease names.
pub(super) const CHECK: &str = "Lease::check";

/// A lock that is held, until it is released or dropped. It may move to another thread.
///
/// Dropping it releases the lock, also on a panic; it waits for that at most
/// [`Options::drop_timeout`](crate::Options::drop_timeout), and says nothing.
/// [`release`](Self::release) says what there is to say. In a child after a fork it does nothing:
/// the lock is the parent's.
///
/// The answers of [`is_held`](Self::is_held), [`check`](Self::check),
/// [`remaining`](Self::remaining), [`state`](Self::state) and [`lost`](Self::lost) are computed
/// from our own clock and from what the server has told; asking sends nothing.
///
/// # Guarantees
/// - [`is_held`](Self::is_held) is never true after the lease has ended on the server, provided
///   that the clocks run at the same rate, that the server loses no data and that nobody deletes
///   the lock by hand.
/// - A loss is told by [`lost`](Self::lost): when the lock is deleted, taken over or flushed, soon
///   after the server knows; at the end of the lease by our own clock.
/// - When `release` has returned, nothing is sent for this hold any more; unless an attempt to
///   acquire it got no answer, and may be delivered late: then the watchdog's thread releases it
///   again, for some minutes and ever more seldom. Or another server becomes the master within a
///   minute: it is released there as well.
///
/// Not that the lock is still there while you write: a process can be halted between the question
/// and the write. For that hand the [fencing token](Self::fencing_token) to the resource, or
/// [`commit`](Self::commit) to the same server.
///
/// # Examples
/// ```no_run
/// use std::time::Duration;
///
/// # fn pages() -> Vec<u32> { Vec::new() }
/// # fn rebuild(page: u32) {}
/// let locks = leasehold::Locks::connect("redis://127.0.0.1/")?;
/// let lease = locks.lock("report:daily").acquire(Duration::from_secs(5))?;
/// for page in pages() {
///     lease.check()?; // stops as soon as the lock is lost
///     rebuild(page);
/// }
/// lease.release()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
#[must_use = "dropping it releases the lock at once"]
pub struct Lease {
    pub(crate) stack: Arc<Stack<Lease>>,
    pub(crate) handle: Handle,
    /// Its queue is told this at its end.
    pub(super) turn: PastHold,
    /// The budget of its hand-overs, if it may be handed over.
    turns: Option<HandOverBudget>,
    pub(crate) drop_timeout: Duration,
    /// It ends so much sooner by our clock than on the server.
    skew: Duration,
    /// The end, once it has come. The drop tells the hooks.
    pub(super) end: Option<HoldEnd>,
    /// A user has it. A guard that no user has taken is never handed on, and its release is not
    /// reported.
    pub(crate) is_claimed: bool,
    /// The token was given out, and whoever has it may release the lock.
    disclosed: AtomicBool,
}

/// The start of a lease, whether the server has granted it or the turn before has handed it
/// over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseGrant {
    pub(crate) fence: Option<FencingToken>,
    /// A moment before the server was asked, or that at which the lock was handed over.
    pub(crate) since: Instant,
    /// When the server ends it, unless it is renewed.
    pub(crate) end: Instant,
    /// When the watchdog asks about it for the first time, so that the server tells of its loss
    /// from then on.
    pub(crate) look_at: Option<Instant>,
    /// The budget of its hand-overs, if it may be handed over.
    pub(crate) turns: Option<HandOverBudget>,
    /// An attempt before the one that was granted got no answer.
    pub(crate) unanswered_before: bool,
}

impl Lease {
    /// The lease that begins with this grant. `keep` has the keeper keep it; `None` if it does not.
    pub(crate) fn begin(
        stack: &Arc<Stack<Self>>,
        settings: &Settings,
        hold: &Arc<Hold>,
        grant: LeaseGrant,
        keep: impl FnOnce(LeaseState) -> Option<Handle>,
    ) -> Option<Self> {
        // A longest hold further away than the clock can tell is none.
        let longest = settings.max_hold;
        let cap = longest.and_then(|longest| grant.since.checked_add(longest));
        let terms = Terms {
            lease: settings.lease,
            cap,
            end: Some(cap.map_or(grant.end, |cap| cap.min(grant.end))),
            renews: settings.renewal,
            look_at: grant.look_at,
            skew: settings.skew_on(&*stack.server),
        };
        let events = settings.events.clone();
        let holder = settings.owner.clone();
        let lease_state = LeaseState::new(hold, holder, grant.fence, &terms, events, stack.clock);
        if grant.unanswered_before {
            lease_state.outstanding().acquire_is_out();
        }
        let handle = keep(lease_state)?;
        Some(Self {
            stack: Arc::clone(stack),
            handle,
            turn: PastHold {
                since: grant.since,
                stood_in_queue: false,
            },
            turns: grant.turns,
            drop_timeout: settings.drop_timeout,
            skew: terms.skew,
            end: None,
            is_claimed: false,
            disclosed: AtomicBool::new(false),
        })
    }

    pub(crate) fn having_stood_in_queue(mut self) -> Self {
        self.turn.stood_in_queue = true;
        self
    }

    /// From now on the hooks of its options are told of a loss as soon as it is known.
    pub(crate) fn report_loss(&self) {
        if self.lease_state().events.is_some() {
            let lease_state = Arc::downgrade(self.handle.lease_state());
            let lost = move |reason| {
                if let Some(lease_state) = lease_state.upgrade() {
                    lease_state.tell_loss(reason);
                }
            };
            // Without a thread for it, the end of the hold tells of the loss.
            let _ = self.lost().notify(lost);
        }
    }

    /// The number to hand to the resource: greater than that of every holder before. A reader has
    /// none, nor has a mutex without [`Options::fencing`](crate::Options::fencing).
    #[must_use]
    pub fn fencing_token(&self) -> Option<FencingToken> {
        self.lease_state().fence
    }

    /// The proof of this hold, for another process, or for the plain functions.
    #[must_use]
    pub fn token(&self) -> &Token {
        self.disclosed.store(true, Ordering::SeqCst);
        self.hold().token()
    }

    /// The name of the lock.
    #[must_use]
    pub fn name(&self) -> &str {
        self.hold().lock_name().text()
    }

    /// True while the lock is held, by our clock and by what the server has told. False at the end,
    /// with no grace.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// The rest of the lease by our clock, before the next renewal; nothing once it is lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.lease_state().remaining()
    }

    /// Held, lost, or in doubt because the last renewal failed.
    #[must_use]
    pub fn state(&self) -> RenewalState {
        self.lease_state().state()
    }

    /// [`is_held`](Self::is_held) as a `Result`, for `?`. Sends nothing.
    ///
    /// # Errors
    /// [`Error::Lost`], and why.
    pub fn check(&self) -> Result<()> {
        self.check_for(CHECK)
    }

    pub(super) fn check_for(&self, name: &'static str) -> Result<()> {
        if self.is_held() {
            return Ok(());
        }
        Err(self.lost_for(name))
    }

    /// A signal that the lease is lost, to poll, to wait on, or to be called by.
    #[must_use]
    pub fn lost(&self) -> LostSignal {
        LostSignal::new(self.handle.clone())
    }

    /// Why the last attempt to renew it failed, if it did: for a log, when it is lost.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        self.lease_state().failure(self.operation("renew"))
    }

    /// Asks the server whether the lock is still ours. One round trip; changes nothing.
    ///
    /// # Errors
    /// - [`Error::Lost`]: it is not. The lease is lost from now on.
    /// - [`Error::Unknown`], [`Error::Pool`], [`Error::Redis`]: there is no telling.
    pub fn verify(&self) -> Result<()> {
        self.stack.process.refuse_forked_child()?;
        self.ask("Lease::verify", Ask::Look)?;
        self.check()
    }

    /// Lets the lease end so long from now, but never earlier than it does, nor later than
    /// [`Options::max_hold`](crate::Options::max_hold) allows. 1 ms to 24 h.
    ///
    /// For a step that must not be interrupted by a lost connection: the watchdog renews the usual
    /// lease anyway. One round trip.
    ///
    /// # Errors
    /// As [`verify`](Self::verify), [`Error::Invalid`] for the length, and
    /// [`Error::TooFewReplicas`] with [`Options::replicas`](crate::Options::replicas): it ends when
    /// it did before.
    pub fn renew(&self, lease: Duration) -> Result<()> {
        self.stack.process.refuse_forked_child()?;
        let lease = self
            .lease_state()
            .terms()
            .capped(lease, self.stack.clock.now());
        let sent = self.ask("Lease::renew", Ask::Renew(lease))?;
        if self.handle.extend(sent + lease.saturating_sub(self.skew)) {
            return Ok(());
        }
        Err(self.lost_for("Lease::renew"))
    }

    pub(crate) fn lease_state(&self) -> &LeaseState {
        self.handle.lease_state()
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.lease_state().hold
    }

    /// The waiting thread has taken over what was handed to it.
    pub(crate) fn claimed(mut self) -> Self {
        self.is_claimed = true;
        self
    }

    /// Nobody wants it any more: to be dropped.
    pub(crate) fn declined(mut self) -> Self {
        self.is_claimed = false;
        self
    }

    /// The budget of its hand-overs, if it may be handed over.
    pub(crate) fn turns(&self) -> Option<HandOverBudget> {
        let is_over = self.end.is_some() || self.is_disclosed();
        self.turns.filter(|_| self.is_claimed && !is_over)
    }

    /// A program that was given the token may use it after our release.
    pub(crate) fn is_disclosed(&self) -> bool {
        self.disclosed.load(Ordering::SeqCst)
    }

    /// A child has a copy after a fork: the lock is not its own.
    pub(crate) fn is_forked_child(&self) -> bool {
        self.stack.process.is_forked_child()
    }

    /// Asks about it, or renews it, by a connection of the pool. Not to be called in a child.
    /// Returns a moment before that was sent.
    pub(super) fn ask(&self, name: &'static str, ask: Ask) -> Result<Instant> {
        if let Ask::Renew(lease) = ask {
            lease_millis("lease", lease)?;
        }
        if !self.is_held() {
            // The server may say yes again: to the next hold of the same owner.
            return Err(self.lost_for(name));
        }
        let asked = (self.stack.server).ask(&ask.of(self.hold()), Patience::USUAL);
        if ask.is_renewal() && asked.as_ref().is_ok_and(|asked| asked.again) {
            // The first may be executed later, whatever the second has come to.
            self.lease_state().outstanding().renewal_is_out();
        }
        let answer = asked.map_err(Failure::Unsent).and_then(|asked| {
            let sent = asked.sent;
            let ours = asked.of_both().and_then(|answer| yes_or_no(&answer));
            ours.map(|ours| (ours, sent)).map_err(Failure::Sent)
        });
        match answer {
            Ok((true, sent)) => Ok(sent),
            Ok((false, _)) => {
                self.handle.lose(LostReason::TakenAway);
                Err(self.lost_for(name))
            }
            Err(failure) => {
                let error = failure.error(self.operation(name));
                if ask.is_renewal() {
                    let is_out = matches!(error, Error::Unknown { .. });
                    self.lease_state()
                        .renewal_failed(&Arc::new(failure), is_out);
                }
                // A loss that has become known meanwhile says more.
                self.check_for(name)?;
                Err(error)
            }
        }
    }

    pub(super) fn lost_for(&self, name: &'static str) -> Error {
        self.operation(name).lost_because(self.lease_state().lost())
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
