//! `Lock::adopt`: a guard for a lock that another process has acquired, by the token of its hold.
//!
//! One question about the fencing token, if the kind has one, and one renewal, whose reply the
//! verdict of `recipes` judges. No queue and no mutex: only the start of the lease locks the
//! keeper, briefly.

use std::sync::Arc;

use super::{
    attempts::ARMED_WITHIN,
    lease::{Lease, LeaseGrant},
    lock::Lock,
    stack::Stack,
};
use crate::{
    error::{Operation, Result, ensure},
    event::Acquired,
    recipes::{Evidence, Hold, LockKind, inspecting, read_inspection},
    renewing::entry::Ask,
    server::Patience,
    token::{FencingToken, Token},
};

impl Lock {
    /// Adopts the hold with this token, which another process or a plain function acquired:
    /// returns a guard that renews it from now on, and releases it.
    ///
    /// The token comes from [`Lease::detach`] or [`acquire_lock`](crate::acquire_lock), for
    /// example. The lock must have the same kind, name and [prefix](crate::Options::prefix), and
    /// a reentrant lock the same [`Options::owner`](crate::Options::owner).
    ///
    /// The lease is extended to [`Options::lease`](crate::Options::lease) from now, even if it is
    /// not [renewed](crate::Options::renewal) after that, and never shortened. A lock without an
    /// end stays without one. [`Options::max_hold`](crate::Options::max_hold) counts from now; a
    /// longer lease stays on the server until the guard is released or dropped.
    ///
    /// The [fencing token](Lease::fencing_token) is that of the hold; after
    /// [hand-overs](crate::Options::hand_over), the last one that is reserved for it, which is not
    /// less than any that was used. [`inspect`](Self::inspect) goes on to show the owner that
    /// acquired the lock. The guard is not handed over.
    ///
    /// **Adopt a hold once, after its guard is gone.** Two guards of one hold do not exclude each
    /// other, and the first release ends it for both.
    ///
    /// Two round trips; one if the kind or the options have no fencing token. Does not wait for the
    /// lock. If the server is silent, ends after one I/O time-out of the pool for each, and at most
    /// one more to connect. If it fails, the hold stays as it is, until the end of its lease.
    ///
    /// # Errors
    /// - [`Error::Lost`](crate::Error::Lost): the lock is not held by this token, or no longer, or
    ///   it is a reader's token at a writer's lock, or the reverse. It has no reason: the server
    ///   does not say which of these is the case.
    /// - [`Error::Invalid`](crate::Error::Invalid): the name or an option is invalid, or the lock
    ///   is reentrant and has no [`Options::owner`](crate::Options::owner). Nothing was sent.
    /// - [`Error::WrongKind`](crate::Error::WrongKind): the key holds another kind of lock, or no
    ///   lock.
    /// - [`Error::Unknown`](crate::Error::Unknown): no reply came, so the lease may have been
    ///   extended once. Repeat the call.
    /// - [`Error::TooFewReplicas`](crate::Error::TooFewReplicas): too few replicas confirmed the
    ///   renewal; see [`Options::replicas`](crate::Options::replicas). Repeat the call.
    /// - [`Error::Pool`](crate::Error::Pool), [`Error::TooOld`](crate::Error::TooOld),
    ///   [`Error::Redis`](crate::Error::Redis): no connection, or the server refused.
    /// - [`Error::Cancelled`](crate::Error::Cancelled): see
    ///   [`Options::cancel`](crate::Options::cancel). Nothing was sent.
    /// - [`Error::Forked`](crate::Error::Forked): this is a forked child. Nothing was sent.
    ///
    /// # Examples
    /// ```no_run
    /// use std::env;
    ///
    /// use leasehold::{Locks, Token};
    ///
    /// // In the process that the holder started, see `Lease::detach`:
    /// let token: Token = env::var("LOCK_TOKEN")?.parse()?;
    /// let locks = Locks::connect("redis://127.0.0.1/")?;
    /// let lease = locks.lock("report:daily").adopt(&token)?;
    /// // the second half of the work; the lease renews itself
    /// lease.release()?;
    /// # anyhow::Ok(())
    /// ```
    #[doc(alias = "take_over")]
    pub fn adopt(&self, token: &Token) -> Result<Lease> {
        let operation = Operation::new("Lock::adopt", self.name());
        let adopted = self.reporting(operation, || self.ask_to_adopt(operation, token));
        adopted.map_err(|error| self.with_found_kind(operation, error))
    }

    fn ask_to_adopt(&self, operation: Operation<'_>, token: &Token) -> Result<Lease> {
        self.check()?;
        let settings = &self.settings;
        let is_named = self.kind != LockKind::Reentrant || settings.owner.is_some();
        let reason = "set the owner that acquired the reentrant lock";
        ensure(is_named, "owner", reason)?;
        if settings.is_cancelled() {
            return Err(operation.cancelled());
        }
        let mut hold = self.hold()?;
        hold.token = token.clone();
        let hold = Arc::new(settings.demanded_of(hold));
        let stack = self.stack(&hold.lock)?;
        let started = stack.clock.now();
        let fence = fence_of(&stack, operation, &hold)?;
        let lease = self.begin_adopted(&stack, operation, &hold, fence)?;
        if let Some(events) = &settings.events {
            let number = lease.lease_state().number;
            let waited = stack.clock.since(started);
            let acquired = Acquired::new(operation.lock, number, waited, 1, fence);
            events.answered(|events| events.acquired(&acquired));
        }
        lease.report_loss();
        Ok(lease)
    }

    /// Renews the hold, and creates its guard.
    fn begin_adopted(
        &self,
        stack: &Arc<Stack<Lease>>,
        operation: Operation<'_>,
        hold: &Arc<Hold>,
        fence: Option<FencingToken>,
    ) -> Result<Lease> {
        let settings = &self.settings;
        let asks = Ask::Renew(settings.longest_at_first());
        let reply = stack.server.ask(&asks.of(hold), Patience::USUAL)?;
        let (sent, again) = (reply.sent, reply.again);
        match Evidence::of(reply.write_result()) {
            Evidence::Ours(_) => {}
            Evidence::NotOurs => return Err(operation.lost()),
            Evidence::AnotherKind(found) => return Err(operation.failed(found)),
            Evidence::NotKnown(error) => return Err(operation.unanswered(Some(&hold.token), error)),
        }
        let now = stack.clock.now();
        let skew = settings.skew_on(&*stack.server);
        let end = sent + settings.longest_at_first().saturating_sub(skew);
        let terms = settings.terms(sent, end, Some(now + ARMED_WITHIN), skew);
        if let Some(reason) = terms.lost_at(now) {
            // The reply came too late.
            return Err(operation.lost_because(Some(reason), None));
        }
        let grant = LeaseGrant {
            fence,
            since: sent,
            terms,
            turns: None,
            unanswered_before: false,
        };
        let lease = Lease::begin(stack, settings, hold, grant);
        if again {
            lease.lease_state().outstanding().renewal = true;
        }
        Ok(lease.claimed())
    }
}

/// Returns the fencing token of this hold, which is in the companion of the lock. `None`: the hold
/// has no fencing token, or this token does not hold the lock. In the second case the renewal that
/// follows fails.
fn fence_of(
    stack: &Stack<Lease>,
    operation: Operation<'_>,
    hold: &Hold,
) -> Result<Option<FencingToken>> {
    if !hold.is_fenced {
        return Ok(None);
    }
    let reply = stack.server.ask(&inspecting(&hold.lock), Patience::USUAL)?;
    let (_, holders) =
        (reply.answer.and_then(read_inspection)).map_err(|error| operation.failed(error))?;
    Ok(holders.iter().find_map(|holder| holder.last_fence_of(hold)))
}
