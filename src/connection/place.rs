//! The places of a pool, and what is known of the connections in them.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use redis::{Connection, ConnectionLike, ErrorKind, RedisResult};

use super::opener::{Opener, is_forbidden, set_timeouts};
use crate::{
    Error, Result,
    time::{self, Deadline},
};

/// A connection that lay idle for longer is asked whether it is still there.
const IDLE_BEFORE_PING: Duration = Duration::from_secs(30);

pub(super) type LentPlace = r2d2::PooledConnection<Places>;

/// Room for one connection. r2d2 lends places and not connections: then it neither connects in the background for callers
/// who have gone, nor forgets to wake a waiting one when a broken connection comes back.
pub(super) struct Place {
    pub(super) held: Option<Held>,
}

/// A connection and what is known of it.
pub(super) struct Held {
    pub(super) connection: Connection,
    /// When it was opened or last answered a `PING`.
    proven: Instant,
    pub(super) lent: Instant,
    returned: Instant,
}

/// What r2d2 is told of the places.
pub(super) struct Places(pub(super) Arc<Shared>);

impl r2d2::ManageConnection for Places {
    type Connection = Place;
    type Error = Error;

    fn connect(&self) -> Result<Place> {
        Ok(Place { held: None })
    }

    fn is_valid(&self, _place: &mut Place) -> Result<()> {
        Ok(())
    }

    /// Called when a place comes back. It is the connection that may be broken, never the place.
    fn has_broken(&self, place: &mut Place) -> bool {
        if let Some(held) = &mut place.held {
            held.returned = time::now();
            if self.0.may_be_broken(held) {
                self.0.close(place);
            }
        }
        false
    }
}

/// What all users of a pool share.
pub(super) struct Shared {
    pub(super) opener: Opener,
    pub(super) get_timeout: Duration,
    io_timeout: Duration,
    /// When a connection was last found broken: those proven before may be broken too.
    doubt: Mutex<Option<Instant>>,
}

impl Shared {
    pub(super) fn new(opener: Opener, get_timeout: Duration, io_timeout: Duration) -> Self {
        Self {
            opener,
            get_timeout,
            io_timeout,
            doubt: Mutex::new(None),
        }
    }

    pub(super) fn open(&self, deadline: Deadline) -> Result<Held> {
        let asked = time::now();
        let connection = self.opener.open(deadline)?;
        set_timeouts(&connection, self.io_timeout)
            .map_err(|error| self.opener.failure(self.io_timeout, error))?;
        Ok(Held {
            connection,
            proven: asked,
            lent: asked,
            returned: asked,
        })
    }

    /// Makes sure that an idle connection is there, and undoes what its last user did to its time-outs.
    pub(super) fn prove(&self, held: &mut Held, deadline: Deadline) -> Result<()> {
        let asked = time::now();
        let limit = deadline.remaining_up_to(self.io_timeout);
        let doubted = self.doubt.lock().is_some_and(|since| held.proven <= since);
        let proof = if doubted || asked.duration_since(held.returned) >= IDLE_BEFORE_PING {
            held.proven = asked;
            ping(&mut held.connection, limit)
        } else {
            Ok(())
        };
        proof
            .and_then(|()| set_timeouts(&held.connection, self.io_timeout))
            .map_err(|error| self.opener.failure(limit, error))
    }

    /// Whether it was closed, or lent for so long that a reply may be owed. A sixteenth less, in case the socket's clock is
    /// the faster one.
    fn may_be_broken(&self, held: &Held) -> bool {
        let out = held.returned.duration_since(held.lent);
        !held.connection.is_open() || out >= self.io_timeout / 16 * 15
    }

    /// Closes the connection and doubts all others.
    pub(super) fn close(&self, place: &mut Place) {
        place.held = None;
        *self.doubt.lock() = Some(time::now());
    }
}

/// A `MULTI` that was left open answers otherwise.
fn ping(connection: &mut Connection, limit: Duration) -> RedisResult<()> {
    set_timeouts(connection, limit)?;
    match redis::cmd("PING").query::<String>(connection) {
        Ok(pong) if pong == "PONG" => Ok(()),
        Ok(_) => Err((ErrorKind::UnexpectedReturnType, "not an answer to PING").into()),
        Err(error) if is_forbidden(&error) => Ok(()),
        Err(error) => Err(error),
    }
}
