//! The keeper's two threads: one renews leases, one runs callbacks.

use std::{
    mem,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::{
    entry::RenewalOutcome,
    keeper::{Keeper, KeeperState, call},
    lease_state::LeaseState,
    schedule::RenewalBatch,
};
use crate::{
    error::{Error, LostReason, Result},
    event::shielded,
    pool::{Limits, Process},
    server::{RenewalAnswer, RenewalError, Renewals, Replies},
    time::{Backoff, Clock, Deadline},
    wire::Call,
};

/// The name of the renewing thread. There is one for all leases.
const RENEWING: &str = "leasehold-watchdog";
/// The name of the callback thread, which starts with the first callback.
const CALLING: &str = "leasehold-signals";
/// The first pause between attempts to reach the server.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LAST_PAUSE: Duration = Duration::from_millis(250);

type LeaseBatch = RenewalBatch<Arc<LeaseState>, Call>;

impl Keeper {
    /// Starts the renewing thread. It connects when there is something to renew.
    pub(crate) fn start(
        renewals: Box<dyn Renewals>,
        limits: Limits,
        clock: Clock,
    ) -> Result<Arc<Self>> {
        let keeper = Arc::new(Self {
            state: Mutex::default(),
            wake: Condvar::new(),
            landed: Condvar::new(),
            call: Condvar::new(),
            limits,
            clock,
            process: Process::current(),
        });
        let thread = keeper.spawn(RENEWING, |keeper| keeper.renew(renewals))?;
        keeper.state.lock().renewing = Some(thread);
        Ok(keeper)
    }

    /// Starts the callback thread, unless it is running or the keeper is closing.
    pub(super) fn start_calling(self: &Arc<Self>, state: &mut KeeperState) -> Result<()> {
        if state.calling.is_none() && !state.closing {
            state.calling = Some(self.spawn(CALLING, Self::call_all)?);
        }
        Ok(())
    }

    fn spawn(
        self: &Arc<Self>,
        name: &str,
        run: impl FnOnce(&Self) + Send + 'static,
    ) -> Result<JoinHandle<()>> {
        let keeper = Arc::clone(self);
        let thread = thread::Builder::new().name(name.to_owned());
        thread.spawn(move || run(&keeper)).map_err(Error::thread)
    }

    /// Makes both threads end, after the callbacks that are queued. Must not be called in a forked
    /// child.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.closing = true;
        let leases = state.schedule.all();
        let calls: Vec<_> = leases.flat_map(|lease| lease.unwatch()).collect();
        state.calls.extend(calls);
        self.wake.notify_all();
        self.call.notify_all();
    }

    /// Waits until both threads have ended, or the deadline.
    pub(crate) fn wait_until_closed(&self, deadline: Deadline) {
        let mut state = self.state.lock();
        let threads = [state.renewing.take(), state.calling.take()];
        drop(state);
        let mut pauses = Backoff::new();
        for thread in threads.into_iter().flatten() {
            // A callback may drop the watchdog, and its thread cannot join itself.
            if thread.thread().id() == thread::current().id() {
                continue;
            }
            while !thread.is_finished() && pauses.pause(deadline) {}
            if thread.is_finished() {
                let _ = thread.join();
            }
        }
    }

    /// Runs the renewing thread: takes the due batch, sends it in one round trip, and records the
    /// replies. While it has leases and no listener watches the master, it also checks whether
    /// another server has become the master.
    ///
    /// Keeps `state` locked, except while the thread sleeps, checks or opens the connection, sends,
    /// or runs hooks.
    fn renew(&self, mut renewals: Box<dyn Renewals>) {
        let (mut pauses, mut had_one) = (Backoff::between(FIRST_PAUSE, LAST_PAUSE), false);
        let mut state = self.state.lock();
        while self.wait_until_due(&mut state, renewals.watch_pause()) {
            // Unlocked, since another thread may be using the connection. The batch is taken after
            // it is open: a lease may be stopped meanwhile, and must not be in flight.
            let opened = MutexGuard::unlocked(&mut state, || {
                let is_open = renewals.is_open();
                let opened = if is_open { Ok(()) } else { renewals.open() };
                opened.map(|()| !is_open)
            });
            if state.closing {
                return;
            }
            if matches!(opened, Ok(true)) && mem::replace(&mut had_one, true) {
                // The server of the new connection may have missed the last renewals.
                state.schedule.renew_all(self.clock.now());
            }
            let batch = state.take(self.clock.now());
            self.end(&mut state, &batch, opened.as_ref().err());
            let replies = match opened {
                Ok(_) if batch.questions.is_empty() && batch.orphans.is_empty() => continue,
                Ok(_) => Self::send(&mut state, &batch, &mut *renewals),
                Err(failure) => unsent(&batch, &failure),
            };
            let is_broken = replies.broken;
            self.enter(&mut state, batch, replies);
            if is_broken {
                let until = self.clock.now() + pauses.next_pause(Duration::MAX);
                state.schedule.pause(until);
            } else {
                pauses.start_again();
            }
        }
    }

    /// Sleeps until something is due, or for one pause while there are leases. Returns false if the
    /// keeper is closing.
    fn wait_until_due(
        &self,
        state: &mut MutexGuard<'_, KeeperState>,
        watch_pause: Option<Duration>,
    ) -> bool {
        let watches_at = watch_pause.map(|pause| self.clock.now() + pause);
        while !state.closing {
            let due = state.schedule.due_at();
            let watches_at = watches_at.filter(|_| state.schedule.len() > 0);
            let due = due.into_iter().chain(watches_at).min();
            if due.is_some_and(|due| due <= self.clock.now()) {
                break;
            }
            state.asleep_until = due;
            self.clock.at(due).wait(&self.wake, state);
            state.asleep_until = None;
        }
        !state.closing
    }

    /// Ends the leases that are over. Those with renewals get the failure.
    fn end(
        &self,
        state: &mut KeeperState,
        batch: &LeaseBatch,
        failure: Option<&Arc<RenewalError>>,
    ) {
        for (lease, reason) in &batch.over {
            if *reason == LostReason::Ended && lease.terms().renews {
                failure.inspect(|failure| lease.renewal_failed(failure, false));
            }
            self.lose(state, lease, *reason);
        }
    }

    fn send(
        state: &mut MutexGuard<'_, KeeperState>,
        batch: &LeaseBatch,
        renewals: &mut dyn Renewals,
    ) -> Replies {
        // The shortest of all leases, not only of this batch: nothing else is renewed before the
        // reply.
        let shortest = state.schedule.shortest().unwrap_or(Duration::MAX);
        Self::outside(state, || {
            let questions = batch.questions.iter();
            let questions = questions.map(|question| question.ask.of(&question.item.hold));
            let orphans = batch.orphans.iter().map(|orphan| orphan.item.clone());
            renewals.send(&questions.chain(orphans).collect::<Vec<_>>(), shortest)
        })
    }

    /// Records the reply to each question, and calls the hooks.
    ///
    /// - **`Ours`**: the lease is held until the new end; a renewal is reported. The schedule asks
    ///   again after a third of the lease.
    /// - **`NotOurs`**: the lease is lost. The schedule forgets it.
    /// - **`Forgotten`** (the server no longer has the script): no change. The schedule asks again
    ///   at once, with the whole script.
    /// - **`Refused`**: the state is unknown; the failure is reported. The schedule asks again
    ///   soon, then less often.
    /// - **`Unanswered`**: the state is unknown; the failure is reported; a renewal that was sent
    ///   may still be executed. The schedule asks again as soon as the connection is open.
    ///
    /// At its end the lease is lost, whatever the reply; a failure is still reported.
    fn enter(&self, state: &mut MutexGuard<'_, KeeperState>, batch: LeaseBatch, replies: Replies) {
        let (now, mut news) = (self.clock.now(), Vec::new());
        let RenewalBatch {
            questions, orphans, ..
        } = batch;
        let mut answers = replies.replies.into_iter();
        for (question, (answer, failure)) in questions.iter().zip(&mut answers) {
            let (id, lease) = (question.id, &question.item);
            let is_renewal = question.ask.is_renewal();
            let outcome = state.schedule.answered(id, answer, now);
            if let Some(failure) = failure {
                let was_sent = matches!(*failure, RenewalError::Sent(_));
                let is_out = answer == RenewalAnswer::Unanswered && is_renewal && was_sent;
                lease.renewal_failed(&failure, is_out);
                if answer != RenewalAnswer::NotOurs {
                    news.push((Arc::clone(lease), Some(failure)));
                }
            }
            match outcome {
                Some(RenewalOutcome::Held(end))
                    if self.renewed(state, (id, lease), end) && is_renewal =>
                {
                    news.push((Arc::clone(lease), None));
                }
                Some(RenewalOutcome::Lost) => self.lose(state, lease, lease.lost_by_a_no()),
                Some(RenewalOutcome::Held(_)) | None => {}
            }
        }
        for (orphan, (answer, _)) in orphans.into_iter().zip(answers) {
            state.schedule.was_released(orphan, answer, now);
        }
        self.landed.notify_all();
        Self::outside(state, || {
            for (lease, failure) in &news {
                lease.report_renewal(failure.as_deref());
            }
            // This may drop the last reference to a lease, and with it the user's hooks.
            shielded(|| drop((questions, batch.over, news)));
        });
    }

    /// Sends a batch, or runs a user's code, with `state` unlocked.
    fn outside<T>(state: &mut MutexGuard<'_, KeeperState>, run: impl FnOnce() -> T) -> T {
        state.busy_threads += 1;
        let done = MutexGuard::unlocked(state, run);
        state.busy_threads -= 1;
        done
    }

    /// Runs the callback thread.
    fn call_all(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(next) = state.calls.pop_front() {
                Self::outside(&mut state, || call(next));
                continue;
            }
            if state.closing {
                return;
            }
            let over = state.schedule.ring(self.clock.now());
            for (lease, reason) in &over {
                self.lose(&mut state, lease, *reason);
            }
            if over.is_empty() {
                let alarm = self.clock.at(state.schedule.next_alarm());
                alarm.wait(&self.call, &mut state);
            }
        }
    }
}

/// Returns the replies to a batch that could not be sent.
fn unsent(batch: &LeaseBatch, failure: &Arc<RenewalError>) -> Replies {
    let reply = (RenewalAnswer::Unanswered, Some(Arc::clone(failure)));
    Replies {
        replies: vec![reply; batch.questions.len() + batch.orphans.len()],
        broken: true,
    }
}
