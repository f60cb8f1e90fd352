//! Cancelling waits.
//!
//! Locks: `waiting`, briefly. It is unlocked before the waiters are woken, since that locks the
//! queues.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;

/// The interval at which waiters poll the flag, since a signal handler that sets the flag cannot
/// wake a waiter, and the condition of [`Cancel::or_when`].
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Cancels every wait for the locks that have it in their options. Clones share their state.
///
/// Set it with [`Options::cancel`](crate::Options::cancel).
///
/// The wait ends at once with [`Error::Cancelled`](crate::Error::Cancelled) and leaves nothing
/// behind: it leaves the queue, removes a waiting writer's intent, and releases a lock that was
/// granted or handed over at that moment. If an attempt was already sent, the wait ends with its
/// reply, at most one I/O time-out of the pool later. A connection that is being opened delays the
/// end too. Locks that are held are not affected. A `Cancel` cannot be reset: to wait again, create
/// another one.
///
/// - **From a thread**: [`cancel`](Self::cancel). The handlers of the crate `ctrlc` and of
///   `signal_hook`'s iterator run on their own threads, so they may call it.
/// - **In a signal handler**: set the [`flag`](Self::flag), as `signal_hook::flag::register` does.
///   That is one atomic store; a handler must not lock a mutex, so it cannot wake a waiter. After
///   the first call of `flag`, waiters poll it 20 times a second.
///
/// # Examples
/// ```no_run
/// use std::time::Duration;
///
/// use leasehold::{Cancel, Error, Locks, Options};
///
/// let cancel = Cancel::new();
/// let at_ctrl_c = cancel.clone();
/// // ctrlc::set_handler(move || at_ctrl_c.cancel())?;
/// let locks = Locks::connect("redis://127.0.0.1/")?.with(Options::new().cancel(&cancel));
/// match locks.lock("report:daily").acquire(Duration::MAX) {
///     Err(Error::Cancelled { .. }) => println!("cancelled"),
///     acquired => acquired?.release()?,
/// }
/// # drop(at_ctrl_c);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Cancel {
    raised: Arc<AtomicBool>,
    waits: Arc<Waits>,
    /// A condition that also ends the waits. Waiters poll it, because nothing wakes them when it
    /// becomes true.
    also: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
}

#[derive(Default)]
struct Waits {
    /// A caller has the flag and may set it without waking a waiter.
    flag_is_shared: AtomicBool,
    waiting: Mutex<Vec<Wake>>,
}

type Wake = Arc<dyn Fn() + Send + Sync>;

/// Registers a waiter, which the cancel wakes, until this is dropped.
pub(crate) struct Woken<'a> {
    waits: &'a Waits,
    wake: Wake,
}

impl Cancel {
    /// Creates a `Cancel` that is not cancelled.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends all current and later waits that use this `Cancel`. Call it from any thread, but not
    /// from a signal handler: see [`flag`](Self::flag).
    pub fn cancel(&self) {
        self.raised.store(true, Ordering::SeqCst);
        self.waits.wake_all();
    }

    /// Returns true once it is cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.raised.load(Ordering::SeqCst) || self.also.as_ref().is_some_and(|also| also())
    }

    /// Returns a `Cancel` that also counts as cancelled once `also` returns true.
    pub(crate) fn or_when(&self, also: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self {
            also: Some(Arc::new(also)),
            ..self.clone()
        }
    }

    /// Returns the flag that a signal handler sets to `true`, for `signal_hook::flag::register`.
    /// Waiters notice within 50 ms.
    #[must_use]
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.waits.flag_is_shared.store(true, Ordering::SeqCst);
        self.waits.wake_all();
        Arc::clone(&self.raised)
    }

    /// Returns the interval at which a waiting thread must poll the flag; `None` if it need not.
    pub(crate) fn poll_after(&self) -> Option<Duration> {
        let is_polled = self.waits.flag_is_shared.load(Ordering::SeqCst) || self.also.is_some();
        is_polled.then_some(LOOK_AGAIN)
    }

    /// Calls `wake` on every cancel, until the result is dropped.
    pub(crate) fn wakes(&self, wake: impl Fn() + Send + Sync + 'static) -> Woken<'_> {
        let (waits, wake): (_, Wake) = (&*self.waits, Arc::new(wake));
        waits.waiting.lock().push(Arc::clone(&wake));
        Woken { waits, wake }
    }
}

impl Waits {
    fn wake_all(&self) {
        let all = self.waiting.lock().clone();
        for wake in all {
            wake();
        }
    }
}

impl Drop for Woken<'_> {
    fn drop(&mut self) {
        let is_another = |wake: &Wake| !Arc::ptr_eq(wake, &self.wake);
        self.waits.waiting.lock().retain(is_another);
    }
}

impl fmt::Debug for Cancel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cancel")
            .field("is_cancelled", &self.is_cancelled())
            .finish_non_exhaustive()
    }
}
