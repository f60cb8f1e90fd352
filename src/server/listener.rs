//! The listener: one connection on which the server tells what happens to the keys that others of ours have read.
//!
//! The server forgets what a connection has read as soon as the key has changed: the next attempt or renewal reads it
//! anew. What is told is a hint. Whoever waits for it also has an end to wait for.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use redis::{Connection, PubSub, RedisResult, Value};

use super::Heard;
use crate::{
    connection::Beside,
    error::{Error, Result},
    time::{self, Backoff},
};

const NAME: &str = "leasehold-listener";
const CHANNEL: &str = "__redis__:invalidate";
/// How long it listens before it looks whether it is to end.
const LISTEN: Duration = Duration::from_millis(100);
/// How often the connections are asked whether they are still there, while somebody relies on them.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Between attempts to connect.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LAST_PAUSE: Duration = Duration::from_millis(250);
/// No listener.
const NOBODY: i64 = 0;

/// What the thread and those who read keys share.
pub(crate) struct Listener {
    beside: Beside,
    /// The server's number of the connection that listens.
    id: AtomicI64,
    wanted: AtomicBool,
    connected: AtomicU64,
    closing: Mutex<bool>,
    wake: Condvar,
}

impl Listener {
    pub(crate) fn new(beside: Beside) -> Arc<Self> {
        Arc::new(Self {
            beside,
            id: AtomicI64::new(NOBODY),
            wanted: AtomicBool::new(false),
            connected: AtomicU64::new(0),
            closing: Mutex::new(false),
            wake: Condvar::new(),
        })
    }

    /// Starts the thread. It connects when it is [wanted](Self::want), and ends within [`LISTEN`] when nobody is there to be
    /// told.
    pub(crate) fn start(self: &Arc<Self>, heard: Weak<dyn Heard>) -> Result<()> {
        let listener = Arc::clone(self);
        thread::Builder::new()
            .name(NAME.to_owned())
            .spawn(move || listener.run(&heard))
            .map(drop)
            .map_err(Error::thread)
    }

    /// From now on it is to listen.
    pub(crate) fn want(&self) {
        if !self.wanted.swap(true, Ordering::SeqCst) {
            drop(self.closing.lock());
            self.wake.notify_all();
        }
    }

    /// The number of the connection that listens at this moment.
    pub(crate) fn id(&self) -> Option<i64> {
        Some(self.id.load(Ordering::SeqCst)).filter(|id| *id != NOBODY)
    }

    pub(crate) fn close(&self) {
        *self.closing.lock() = true;
        self.wake.notify_all();
    }

    fn is_closing(&self) -> bool {
        *self.closing.lock()
    }

    fn run(&self, heard: &Weak<dyn Heard>) {
        let mut pauses = Backoff::between(FIRST_PAUSE, LAST_PAUSE);
        self.wait_until_wanted();
        while !self.is_closing() {
            let before = self.connected.load(Ordering::SeqCst);
            // Why it failed is told by the connections that have something to say.
            let _ = self.listen(heard);
            if self.id.swap(NOBODY, Ordering::SeqCst) != NOBODY {
                heard.upgrade().inspect(|heard| heard.anything());
            }
            if self.connected.load(Ordering::SeqCst) != before {
                pauses.start_again();
            }
            let mut closing = self.closing.lock();
            if !*closing {
                let pause = pauses.next_pause(Duration::MAX);
                self.wake.wait_for(&mut closing, pause);
            }
        }
    }

    fn wait_until_wanted(&self) {
        let mut closing = self.closing.lock();
        while !*closing && !self.wanted.load(Ordering::SeqCst) {
            self.wake.wait(&mut closing);
        }
    }

    /// Listens until the connection breaks or nobody is there to be told.
    fn listen(&self, heard: &Weak<dyn Heard>) -> Result<(), Failed> {
        let mut connection = self.beside.open_to_listen()?;
        let id: i64 = redis::cmd("CLIENT").arg("ID").query(&mut connection)?;
        let mut messages = subscribed(&mut connection)?;
        self.id.store(id, Ordering::SeqCst);
        self.connected.fetch_add(1, Ordering::SeqCst);
        heard.upgrade().ok_or(Failed)?.anything();

        let mut beat = time::now();
        while !self.is_closing() {
            messages.set_read_timeout(Some(LISTEN))?;
            match messages.get_message() {
                Ok(message) => {
                    let heard = heard.upgrade().ok_or(Failed)?;
                    tell(&*heard, message.get_payload::<Value>()?);
                }
                Err(error) if error.is_timeout() => {}
                Err(_) => return Err(Failed),
            }
            self.beat(&mut beat, &mut messages, heard)?;
        }
        Ok(())
    }

    /// A connection that is silent may be one that is gone.
    fn beat(
        &self,
        last: &mut Instant,
        messages: &mut PubSub<'_>,
        heard: &Weak<dyn Heard>,
    ) -> Result<(), Failed> {
        if last.elapsed() < HEARTBEAT {
            return Ok(());
        }
        *last = time::now();
        let heard = heard.upgrade().ok_or(Failed)?;
        if heard.relies() {
            messages.set_read_timeout(Some(self.beside.io_timeout()))?;
            messages.ping::<Value>()?;
            heard.heartbeat();
        }
        Ok(())
    }
}

/// The connection is of no more use; or nobody is.
struct Failed;

impl From<Error> for Failed {
    fn from(_: Error) -> Self {
        Self
    }
}

impl From<redis::RedisError> for Failed {
    fn from(_: redis::RedisError) -> Self {
        Self
    }
}

/// Not by `PubSub::subscribe`, to which a refusal is an answer like any other.
fn subscribed(connection: &mut Connection) -> RedisResult<PubSub<'_>> {
    redis::cmd("SUBSCRIBE").arg(CHANNEL).exec(connection)?;
    Ok(connection.as_pubsub())
}

/// One push names some keys; that of a `FLUSHALL` names none, which means all.
fn tell(heard: &dyn Heard, push: Value) {
    let Value::Array(keys) = push else {
        return heard.anything();
    };
    for key in keys {
        match key {
            // A key that is no text is none of ours.
            Value::BulkString(key) => {
                let _ = std::str::from_utf8(&key).map(|key| heard.changed(key));
            }
            _ => heard.anything(),
        }
    }
}

/// Of one connection: which listener is told about the keys that it reads.
#[derive(Debug, Default)]
pub(crate) struct Redirect {
    asked_for: Option<i64>,
    granted: bool,
}

impl Redirect {
    /// Has the listener told about whatever this connection reads from now on, except of what it writes itself. False: it
    /// will not be, for there is no listener, or the server refuses.
    ///
    /// A round trip if it is a new listener or a new connection, otherwise none.
    pub(crate) fn point(
        &mut self,
        connection: &mut Connection,
        listener: &Listener,
    ) -> RedisResult<bool> {
        let Some(id) = listener.id() else {
            return Ok(false);
        };
        if self.asked_for.replace(id) != Some(id) {
            let asked = redis::cmd("CLIENT")
                .arg("TRACKING")
                .arg("ON")
                .arg("REDIRECT")
                .arg(id)
                .arg("NOLOOP")
                .query::<()>(connection);
            self.granted = match asked {
                Ok(()) => true,
                Err(error) if error.is_io_error() => return Err(error),
                Err(_) => false,
            };
        }
        Ok(self.granted)
    }
}
