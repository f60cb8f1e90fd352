//! Calling waits off.
//!
//! Locks: `waiting`, for a moment, and never while those who wait are woken, which locks the
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

/// The pause after which those who wait look again at a flag that a signal handler may raise, which cannot wake them.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Calls off every wait for a lock that was given it, by
/// [`Options::cancel`](crate::Options::cancel). A clone is the same one.
///
/// The wait ends at once, with [`Error::Cancelled`](crate::Error::Cancelled), and leaves nothing
/// behind: the place in the queue is given up, a waiting writer's intent taken back, and a lock
/// that was granted or handed over at that very moment is given back. If the server is being asked
/// just then, its answer is waited for, at most one I/O time-out of the pool. So is a connection
/// that is being opened. A lock that is held is not touched. It stays raised: to wait again, make
/// another `Cancel`.
///
/// - **From a thread**: [`cancel`](Self::cancel). The handlers of the crate `ctrlc`, and of
///   `signal_hook`'s iterator, run on a thread of their own.
/// - **In a signal handler itself** nothing may be locked, so that nobody can be woken: there
///   [`flag`](Self::flag) is to be raised, as `signal_hook::flag::register` does. That is one
///   atomic store. Once it was asked for, those who wait look at it 20 times a second.
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
///     Err(Error::Cancelled { .. }) => println!("called off"),
///     acquired => acquired?.release()?,
/// }
/// # drop(at_ctrl_c);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Cancel {
    raised: Arc<AtomicBool>,
    waits: Arc<Waits>,
}

#[derive(Default)]
struct Waits {
    /// The flag was given out, and may be raised without waking anybody.
    may_be_raised_in_silence: AtomicBool,
    waiting: Mutex<Vec<Wake>>,
}

type Wake = Arc<dyn Fn() + Send + Sync>;

/// Wakes one who waits, until this is dropped.
pub(crate) struct Woken<'a> {
    waits: &'a Waits,
    wake: Wake,
}

impl Cancel {
    /// Not raised.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends all waits that were given it, and those to come. From any thread; not in a signal
    /// handler, see [`flag`](Self::flag).
    pub fn cancel(&self) {
        self.raised.store(true, Ordering::SeqCst);
        self.waits.wake_all();
    }

    /// It was raised.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.raised.load(Ordering::SeqCst)
    }

    /// The flag that a signal handler sets to `true`, for `signal_hook::flag::register`: those who
    /// wait notice within 50 ms.
    #[must_use]
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.waits
            .may_be_raised_in_silence
            .store(true, Ordering::SeqCst);
        self.waits.wake_all();
        Arc::clone(&self.raised)
    }

    /// The time after which a thread that waits has to look at it again, if nothing wakes it.
    pub(crate) fn look_again(&self) -> Option<Duration> {
        let in_silence = self.waits.may_be_raised_in_silence.load(Ordering::SeqCst);
        in_silence.then_some(LOOK_AGAIN)
    }

    /// From now on this is called when it is raised.
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
