//! The listener: a connection on which the server notifies us of changes of the keys that our
//! tracked connections have read.
//!
//! The server stops tracking a key once it has changed: the next attempt or renewal reads it again.
//! A notification is a hint: a thread that waits for one also has a moment at which it asks anyway.
//!
//! When the listener's connection breaks, notifications may be lost: every head asks the server
//! again and every lease is checked ([`Observer::all_may_have_changed`]), once when it breaks and
//! once when the next connection listens. Between the two, replies are untracked and heads poll.
//! All the while its thread keeps the [`MasterWatch`].

use std::{
    sync::{Arc, OnceLock, Weak},
    thread,
    time::Duration,
};

use parking_lot::{Condvar, Mutex, MutexGuard};
use redis::{Cmd, Connection, PubSub, RedisError, RedisResult, Value};

use super::{
    Observer,
    master_watch::{EACH_SECOND, MasterWatch, OFTEN},
};
use crate::{
    error::{Error, Result, may_pass},
    pool::{Connector, Epoch, Opened},
    time::{Backoff, Deadline},
    wire::{Finished, ask},
};

const NAME: &str = "leasehold-listener";
const CHANNEL: &str = "__redis__:invalidate";
/// The longest wait for a message before the thread checks whether it has to end.
const LISTEN: Duration = OFTEN;
/// The wait for the reply to its `UNSUBSCRIBE`, which is not needed. A socket has no shorter
/// time-out.
const GOODBYE: Duration = Duration::from_millis(1);
/// The pause between attempts to connect.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LAST_PAUSE: Duration = Duration::from_millis(250);
/// The pause after the server has refused to let it listen, which a proxy does permanently: each
/// attempt is a new connection.
const REFUSED: Duration = Duration::from_secs(10);

/// Shared by the listener's thread and the threads that read keys.
pub(crate) struct Listener {
    connector: Connector,
    /// Receives the notifications.
    observer: OnceLock<Weak<dyn Observer>>,
    subscription: Mutex<Subscription>,
    life: Mutex<Life>,
    wake: Condvar,
}

/// The stage of the listener's thread. It begins to listen with the first request for
/// notifications.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Life {
    #[default]
    Idle,
    Listening,
    Closing,
}

/// The state of the connection that listens.
#[derive(Clone, Copy, Default)]
struct Subscription {
    /// Counts such connections. A server that has restarted assigns the same client ids again, so
    /// ids do not distinguish our connections.
    generation: u64,
    /// The server's id of the connection, while it listens.
    id: Option<i64>,
    /// The connection is useless and must be replaced.
    is_useless: bool,
    /// The connection was closed to make room for a more important one.
    gives_way: bool,
    /// The epoch of its destination: see [`Connector::epoch`].
    epoch: Epoch,
}

/// The result of one attempt to listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listening {
    /// The connection was not opened, or it has listened until it ended.
    Ended,
    /// The server does not allow it.
    Refused,
}

impl Listener {
    pub(crate) fn new(connector: Connector) -> Arc<Self> {
        Arc::new(Self {
            connector,
            observer: OnceLock::new(),
            subscription: Mutex::default(),
            life: Mutex::default(),
            wake: Condvar::new(),
        })
    }

    /// Starts the thread. It connects after [`start_notifications`](Self::start_notifications), and
    /// ends within [`LISTEN`] once the observer is gone.
    pub(super) fn start(
        self: &Arc<Self>,
        observer: Weak<dyn Observer>,
        mut watch: MasterWatch,
    ) -> Result<()> {
        let observer = self.observer.get_or_init(|| observer).clone();
        let listener = Arc::clone(self);
        thread::Builder::new()
            .name(NAME.to_owned())
            .spawn(move || listener.run(&observer, &mut watch))
            .map(drop)
            .map_err(Error::thread)
    }

    /// Starts to listen.
    pub(crate) fn start_notifications(&self) {
        let mut life = self.life.lock();
        if *life == Life::Idle {
            *life = Life::Listening;
            self.wake.notify_all();
        }
    }

    /// The observer, if it still exists.
    pub(super) fn observer(&self) -> Option<Arc<dyn Observer>> {
        self.observer.get()?.upgrade()
    }

    /// Replaces the useless connection of this generation, within [`LISTEN`].
    fn reconnect(&self, generation: u64) {
        let mut subscription = self.subscription.lock();
        subscription.is_useless |= subscription.generation == generation;
    }

    /// Closes the connection that listens, within [`LISTEN`], to make room for a more important
    /// one. It is reopened after a second.
    pub(super) fn give_way(&self) {
        let mut subscription = self.subscription.lock();
        (subscription.is_useless, subscription.gives_way) = (true, true);
    }

    pub(crate) fn close(&self) {
        *self.life.lock() = Life::Closing;
        self.wake.notify_all();
    }

    fn is_closing(&self) -> bool {
        *self.life.lock() == Life::Closing
    }

    fn run(&self, observer: &Weak<dyn Observer>, watch: &mut MasterWatch) {
        let mut pauses = Backoff::between(FIRST_PAUSE, LAST_PAUSE);
        self.wait_until_wanted();
        while !self.is_closing() {
            // No thread waits for this result: one that asks the server gets the error on its own
            // connection.
            let is_refused = self.listen(observer, watch) == Listening::Refused;
            let mut subscription = self.subscription.lock();
            let (has_listened, gives_way) =
                (subscription.id.take().is_some(), subscription.gives_way);
            subscription.gives_way = false;
            drop(subscription);
            if has_listened {
                observer
                    .upgrade()
                    .inspect(|observer| observer.all_may_have_changed());
                pauses.start_again();
            }
            let pause = pauses.next_pause(Duration::MAX);
            let pause = match (is_refused, gives_way) {
                (true, _) => REFUSED,
                (false, true) => EACH_SECOND,
                (false, false) => pause,
            };
            self.pause(pause, is_refused, watch);
        }
    }

    /// Sleeps, and keeps the watch meanwhile. A server that refused to let it listen does answer.
    fn pause(&self, pause: Duration, server_answers: bool, watch: &mut MasterWatch) {
        let until = Deadline::after(pause);
        let mut life = self.life.lock();
        while *life != Life::Closing && !until.has_passed() {
            MutexGuard::unlocked(&mut life, || watch.look(|| server_answers.then_some(())));
            if *life != Life::Closing {
                let longest = until.remaining_up_to(OFTEN);
                self.wake.wait_for(&mut life, longest);
            }
        }
    }

    fn wait_until_wanted(&self) {
        let mut life = self.life.lock();
        while *life == Life::Idle {
            self.wake.wait(&mut life);
        }
    }

    /// Listens until the connection breaks, or the observer is gone.
    fn listen(&self, observer: &Weak<dyn Observer>, watch: &mut MasterWatch) -> Listening {
        let Ok(Opened {
            mut connection,
            epoch,
        }) = self.connector.open_to_listen()
        else {
            return Listening::Ended;
        };
        let (id, mut messages) = match subscribed(&mut connection) {
            Ok(subscribed) => subscribed,
            Err(error) if Finished::by_error(&error).is_none() && !may_pass(&error) => {
                return Listening::Refused;
            }
            Err(_) => return Listening::Ended,
        };
        let mut subscription = self.subscription.lock();
        subscription.generation += 1;
        subscription.id = Some(id);
        subscription.epoch = epoch;
        subscription.is_useless = false;
        drop(subscription);
        if let Some(observer) = observer.upgrade() {
            observer.all_may_have_changed();
        }
        self.hear(epoch, &mut messages, observer, watch);
        // On drop redis-rs unsubscribes and waits for the reply.
        let _ = messages.set_read_timeout(Some(GOODBYE));
        Listening::Ended
    }

    fn hear(
        &self,
        epoch: Epoch,
        messages: &mut PubSub<'_>,
        observer: &Weak<dyn Observer>,
        watch: &mut MasterWatch,
    ) -> Option<()> {
        let limit = self.connector.limits().answer;
        while !self.is_closing()
            && !self.subscription.lock().is_useless
            && self.connector.epoch() == epoch
        {
            messages.set_read_timeout(Some(LISTEN)).ok()?;
            match messages.get_message() {
                Ok(message) => {
                    let observer = observer.upgrade()?;
                    report(&*observer, message.get_payload::<Value>().ok()?);
                }
                Err(error) if error.is_timeout() => {}
                Err(_) => return None,
            }
            watch.look(|| {
                // A silent connection may be gone.
                messages.set_read_timeout(Some(limit)).ok()?;
                messages.ping::<Value>().ok().map(drop)
            })?;
        }
        Some(())
    }
}

/// Returns the command by which the connection with this id is notified of changes of the keys read
/// from now on, except those of the reader's own writes.
pub(crate) fn redirect_to(id: i64) -> Cmd {
    let mut tracking = redis::cmd("CLIENT");
    tracking.arg("TRACKING").arg("ON");
    tracking.arg("REDIRECT").arg(id).arg("NOLOOP");
    tracking
}

/// Returns the command by which notifications are sent to the connection.
pub(crate) fn subscribe() -> Cmd {
    let mut subscribe = redis::cmd("SUBSCRIBE");
    subscribe.arg(CHANNEL);
    subscribe
}

/// Subscribes without `PubSub::subscribe`, which mistakes a refusal for success. Also returns the
/// server's id of the connection.
fn subscribed(connection: &mut Connection) -> RedisResult<(i64, PubSub<'_>)> {
    let id = redis::cmd("CLIENT").arg("ID").query(connection)?;
    subscribe().exec(connection)?;
    Ok((id, connection.as_pubsub()))
}

/// Passes on a push: it names some keys, or none after a `FLUSHALL`, which means all.
fn report(observer: &dyn Observer, push: Value) {
    let Value::Array(keys) = push else {
        return observer.all_may_have_changed();
    };
    for key in keys {
        match key {
            // A key that is not UTF-8 is not ours.
            Value::BulkString(key) => {
                let _ = std::str::from_utf8(&key).map(|key| observer.changed(key));
            }
            _ => observer.all_may_have_changed(),
        }
    }
}

/// Returns true if the server does not know the listener's connection: it is broken, or leads to
/// the previous server at this address.
fn is_listener_unknown(refusal: &RedisError) -> bool {
    let detail = refusal.detail().unwrap_or_default();
    detail.contains("does not exist")
}

/// The listener that the server notifies of changes of the keys that one connection reads.
#[derive(Debug, Default)]
pub(crate) struct Tracking {
    /// The generation of the listener in the last `CLIENT TRACKING`.
    asked_for: Option<u64>,
    granted: bool,
}

impl Tracking {
    /// Has the listener notified of changes of the keys that this connection reads from now on,
    /// except of its own writes. False: there will be no notifications, because there is no
    /// listener or the server refuses.
    ///
    /// Takes a round trip for a new listener or a new connection, otherwise none.
    pub(crate) fn point(
        &mut self,
        connection: &mut Connection,
        epoch: Epoch,
        listener: &Listener,
    ) -> RedisResult<bool> {
        let subscription = *listener.subscription.lock();
        // On another server the listener's id means nothing, or belongs to another client. The
        // listener follows to that server within [`LISTEN`].
        let Some(id) = subscription.id.filter(|_| subscription.epoch == epoch) else {
            return Ok(false);
        };
        let generation = subscription.generation;
        if self.asked_for.replace(generation) != Some(generation) {
            let asked = ask::<()>(&redirect_to(id), connection);
            self.granted = match asked {
                Ok(()) => true,
                Err(error) if Finished::by_error(&error).is_some() => return Err(error),
                Err(error) => {
                    if is_listener_unknown(&error) {
                        listener.reconnect(generation);
                    }
                    false
                }
            };
        }
        Ok(self.granted)
    }
}
