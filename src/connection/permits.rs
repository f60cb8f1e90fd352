//! The right to borrow a connection: there are as many permits as the pool may have connections.

use std::{sync::Arc, time::Duration};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::{
    cancel::{Cancel, Woken},
    time::Deadline,
};

/// The permits of a pool. r2d2 does not wake a waiting thread when a connection comes back broken.
/// A permit comes back in any case, and whoever takes it finds an idle connection, or room to open
/// one.
#[derive(Clone)]
pub(super) struct Permits(Arc<(Mutex<Counts>, Condvar)>);

struct Counts {
    free: u32,
    /// How many of those that are out were taken by `Pool::get`.
    callers: u32,
}

/// What a permit is taken for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Borrower {
    /// `Pool::get`: the connection is lent for as long as the caller likes.
    Caller,
    /// One call of the library's own.
    Ourselves,
}

/// The right to one connection, given back when dropped.
pub(super) struct Permit {
    permits: Permits,
    borrower: Borrower,
}

impl Permits {
    pub(super) fn new(count: u32) -> Self {
        let counts = Counts {
            free: count,
            callers: 0,
        };
        Self(Arc::new((Mutex::new(counts), Condvar::new())))
    }

    /// Waits for a permit, at most `longest`, and no longer than until the wait is called off. The
    /// error says how many are out with callers.
    pub(super) fn take(
        &self,
        borrower: Borrower,
        longest: Duration,
        cancel: Option<&Cancel>,
    ) -> Result<Permit, u32> {
        let mut counts = self.0.0.lock();
        if counts.free == 0 {
            drop(counts);
            counts = self.wait(longest, cancel);
        }
        counts.free = counts.free.checked_sub(1).ok_or(counts.callers)?;
        counts.callers += u32::from(borrower == Borrower::Caller);
        Ok(Permit {
            permits: self.clone(),
            borrower,
        })
    }

    /// Until there is a permit, the time is over, or the wait is called off.
    fn wait(&self, longest: Duration, cancel: Option<&Cancel>) -> MutexGuard<'_, Counts> {
        let _woken = cancel.map(|cancel| self.woken_by(cancel));
        let is_called_off = || cancel.is_some_and(Cancel::is_cancelled);
        let deadline = Deadline::after(longest);
        let (counts, returned) = &*self.0;
        let mut counts = counts.lock();
        while counts.free == 0 && !is_called_off() && !deadline.has_passed() {
            // Anew each time it is woken: the flag may have been asked for meanwhile.
            let pause = cancel.and_then(Cancel::look_again).unwrap_or(longest);
            returned.wait_for(&mut counts, deadline.remaining().min(pause));
        }
        counts
    }

    /// Whoever raises it locks the counts for a moment, so that it does not come between a look at
    /// it and the sleep.
    fn woken_by<'a>(&self, cancel: &'a Cancel) -> Woken<'a> {
        let permits = self.clone();
        cancel.wakes(move || {
            let (counts, returned) = &*permits.0;
            drop(counts.lock());
            returned.notify_all();
        })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let (counts, returned) = &*self.permits.0;
        let mut counts = counts.lock();
        counts.free += 1;
        counts.callers -= u32::from(self.borrower == Borrower::Caller);
        returned.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::atomic::Ordering, thread};

    use super::*;

    const LONG: Duration = Duration::from_secs(10);
    const SHORT: Duration = Duration::from_millis(100);

    #[test]
    fn a_flag_that_is_asked_for_while_somebody_waits_is_looked_at() {
        let (permits, cancel) = (Permits::new(1), Cancel::new());
        let only = permits.take(Borrower::Caller, LONG, None);
        thread::scope(|scope| {
            let asked = crate::time::now();
            let waits = scope.spawn(|| permits.take(Borrower::Ourselves, LONG, Some(&cancel)));
            // Most likely it waits by then, and has gone on waiting when the flag is raised. If
            // not, this shows nothing.
            thread::sleep(SHORT);
            let flag = cancel.flag();
            thread::sleep(SHORT);
            flag.store(true, Ordering::SeqCst);
            assert!(waits.join().is_ok_and(|taken| taken.is_err()));
            assert!(asked.elapsed() < LONG / 2, "{:?}", asked.elapsed());
        });
        drop(only);
    }
}
