//! One attempt to connect, bounded, and in words why it failed.

use std::{sync::Arc, thread, time::Duration};

use redis::{Client, Connection, ProtocolVersion, RedisError, Value};

use super::{
    dial::{
        self, addresses, client_by, connected, is_forbidden, prepared, refuse_old_server,
        set_timeouts, speaking, with_address,
    },
    hints::refuse_sentinel,
    master_locator::MasterLocator,
};
use crate::{
    error::{Error, Result, is_left_by_replicas, makes_no_sense},
    exchange::{exchange, is_interrupted},
    time::Deadline,
};

/// Between attempts while a server is named as the master that is none yet.
const NOT_YET: Duration = Duration::from_millis(20);

/// Opens connections to one server, or to whichever server is the master.
pub(super) struct Opener {
    /// How to connect. If `locator` says where the master is, the address in it is not used.
    client: Client,
    locator: Option<Arc<dyn MasterLocator>>,
    pub(super) connect_timeout: Duration,
}

/// A connection that was just opened.
pub(crate) struct Opened {
    pub(crate) connection: Connection,
    /// Where it leads: see [`Opener::epoch`].
    pub(crate) epoch: u64,
}

/// Why an attempt has failed.
enum Failed {
    ByError(RedisError),
    /// It is none that grants locks.
    Unfit(Error),
    /// The server is no master, and so grants no locks.
    NoMaster {
        role: String,
    },
}

impl From<RedisError> for Failed {
    fn from(error: RedisError) -> Self {
        Self::ByError(error)
    }
}

impl Opener {
    pub(super) fn new(
        client: &Client,
        locator: Option<Arc<dyn MasterLocator>>,
        connect_timeout: Duration,
    ) -> Result<Self> {
        Ok(Self {
            client: prepared(client)?,
            locator,
            connect_timeout,
        })
    }

    /// Opens connections to the same server that speak RESP2.
    pub(super) fn to_listen(&self) -> Result<Self> {
        Ok(Self {
            client: speaking(&self.client, ProtocolVersion::RESP2)?,
            locator: self.locator.clone(),
            connect_timeout: self.connect_timeout,
        })
    }

    /// The epoch of a connection that is opened now. It grows when another server has become the
    /// master; a connection of an earlier epoch must not be used again.
    pub(super) fn epoch(&self) -> u64 {
        self.locator.as_ref().map_or(0, |it| it.epoch())
    }

    /// Asks whether another server has become the master, where one can, unless that was asked
    /// within this time.
    pub(super) fn check(&self, unless_within: Duration) {
        if let Some(locator) = &self.locator {
            locator.check(unless_within);
        }
    }

    /// Hears whether another server has become the master, where that is announced.
    pub(super) fn listen(&self) {
        if let Some(locator) = &self.locator {
            locator.listen();
        }
    }

    /// This is what the server has answered.
    pub(super) fn was_refused(&self, error: &RedisError) {
        if is_left_by_replicas(error)
            && let Some(locator) = &self.locator
        {
            locator.is_left_by_replicas();
        }
    }

    /// A connection has failed, or leads to a server that is no master.
    pub(super) fn doubt(&self) {
        if let Some(locator) = &self.locator {
            locator.doubt();
        }
    }

    /// A key was not where it was looked for.
    pub(super) fn moved(&self) {
        if let Some(locator) = &self.locator {
            locator.moved();
        }
    }

    /// Whether another server may take the place of this one.
    pub(super) fn is_watched(&self) -> bool {
        self.locator.is_some()
    }

    /// A connection to a server that is new enough; where others say where it is, to one that is a
    /// master, and as soon as that may grant locks. Its time-outs are those of the attempt.
    pub(super) fn open(&self) -> Result<Opened> {
        self.open_for(true)
    }

    /// The same for who asks for no lock, but looks at those that are held.
    pub(super) fn open_to_look(&self) -> Result<Opened> {
        self.open_for(false)
    }

    fn open_for(&self, asks_for_locks: bool) -> Result<Opened> {
        let attempt = Deadline::after(self.connect_timeout);
        let Some(locator) = &self.locator else {
            let opened = self.open_at(&self.client, 0, attempt);
            return opened.map_err(|failed| self.told(&self.client, failed));
        };
        let mut place = locator.look(attempt)?;
        let mut denied = None;
        loop {
            if asks_for_locks && let Some(moment) = locator.grants_from() {
                thread::sleep(attempt.or_sooner(Some(moment)).remaining());
                if attempt.has_passed() {
                    let reason = format!("{} was replaced a moment ago", locator.whom());
                    let source = None;
                    return Err(Error::Pool { reason, source });
                }
            }
            let settings = self.client.get_connection_info().clone();
            let client = client_by(with_address(settings, &place.host, place.port))?;
            let failed = match self.open_at(&client, place.epoch, attempt) {
                Ok(opened) => {
                    locator.confirm(place.epoch);
                    return Ok(opened);
                }
                Err(failed) => failed,
            };
            locator.not_reached(place.epoch);
            let is_denied = matches!(failed, Failed::NoMaster { .. });
            let is_late = matches!(&failed, Failed::ByError(error) if error.is_timeout());
            let mut told = self.told(&client, failed);
            if is_late {
                // For the last try hardly any time may have been left: what the server said before
                // it says more.
                told = denied.take().unwrap_or(told);
            }
            let before = place.epoch;
            match locator.look(attempt) {
                Ok(now) if !attempt.has_passed() => place = now,
                _ => return Err(told),
            }
            if place.epoch != before {
                denied = None;
            } else if is_denied {
                // The server is about to become the master, or those who named it are about to hear
                // that it is not.
                denied = Some(told);
                thread::sleep(attempt.remaining().min(NOT_YET));
            } else {
                return Err(told);
            }
        }
    }

    fn open_at(&self, client: &Client, epoch: u64, attempt: Deadline) -> Result<Opened, Failed> {
        let limit = attempt.remaining_up_to(self.connect_timeout);
        let greeted = self.greeted(client, limit).or_else(|failed| match failed {
            // Nothing was asked for yet.
            Failed::ByError(error) if is_interrupted(&error) && !attempt.has_passed() => {
                self.greeted(client, attempt.remaining_up_to(limit))
            }
            failed => Err(failed),
        });
        let (connection, info) = greeted?;
        refuse_sentinel(client, &info).map_err(Failed::Unfit)?;
        refuse_old_server(&info).map_err(Failed::Unfit)?;
        Ok(Opened { connection, epoch })
    }

    fn told(&self, client: &Client, failed: Failed) -> Error {
        let server = client.get_connection_info().addr();
        match failed {
            Failed::ByError(error) => dial::failure(server, self.connect_timeout, error),
            Failed::Unfit(error) => error,
            Failed::NoMaster { role } => Error::Pool {
                reason: format!("{server}, which is named as the master, is no master: {role}"),
                source: None,
            },
        }
    }

    /// A connection, and what the server says of itself.
    fn greeted(&self, client: &Client, limit: Duration) -> Result<(Connection, String), Failed> {
        let attempt = Deadline::after(limit);
        // redis-rs tries the addresses of a host one after another, each for so long.
        let each = limit / addresses(client);
        let mut connection = connected(client, each)?;
        set_timeouts(&connection, attempt.remaining_up_to(limit))?;
        let mut questions = redis::pipe();
        questions.cmd("INFO").arg("server");
        if self.is_watched() {
            questions.cmd("ROLE");
        }
        let count = questions.len();
        let replies = exchange(&mut connection, &questions.get_packed_pipeline(), count)?;
        let mut replies = replies.into_iter().map(Value::extract_error);
        let info = match replies.next().ok_or_else(makes_no_sense)? {
            Ok(info) => redis::from_redis_value(info).map_err(RedisError::from)?,
            Err(error) if is_forbidden(&error) => String::new(),
            Err(error) => return Err(error.into()),
        };
        if let Some(role) = replies.next() {
            must_be_master(role?)?;
        }
        Ok((connection, info))
    }

    /// Why there is no connection any more.
    pub(super) fn failure(&self, limit: Duration, error: RedisError) -> Error {
        dial::failure(&self.server(), limit, error)
    }

    pub(super) fn no_answer(&self, limit: Duration, source: Option<RedisError>) -> Error {
        dial::no_answer(&self.server(), limit, source)
    }

    fn server(&self) -> String {
        match &self.locator {
            Some(locator) => locator.whom(),
            None => self.client.get_connection_info().addr().to_string(),
        }
    }
}

/// What a server says that is asked for its `ROLE`.
fn must_be_master(role: Value) -> Result<(), Failed> {
    let role = match role {
        Value::Array(parts) => parts.into_iter().next().unwrap_or(Value::Nil),
        role => role,
    };
    let role: String = redis::from_redis_value(role).map_err(RedisError::from)?;
    if role == "master" {
        return Ok(());
    }
    Err(Failed::NoMaster { role })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_socket_sends_without_delay() {
        let client = Client::open("redis://127.0.0.1/").unwrap();
        assert!(!client.get_connection_info().tcp_settings().nodelay());
        let opener = Opener::new(&client, None, Duration::from_secs(1)).unwrap();
        let settings = opener.client.get_connection_info();
        assert!(settings.tcp_settings().nodelay());
    }

    #[test]
    fn the_clients_own_settings_are_kept() {
        let client = Client::open("redis://me:secret@example.org:7000/3?protocol=resp3").unwrap();
        let settings = client.get_connection_info().clone();
        let login = settings.redis_settings().clone().set_lib_name("mine", "1");
        dial::prepare_tls(settings.addr());
        let client = Client::open(settings.set_redis_settings(login)).unwrap();

        let opener = Opener::new(&client, None, Duration::from_secs(1)).unwrap();
        let settings = opener.client.get_connection_info();
        let login = settings.redis_settings();
        assert_eq!(settings.addr().to_string(), "example.org:7000");
        assert_eq!(
            (login.username(), login.password()),
            (Some("me"), Some("secret"))
        );
        assert_eq!((login.db(), login.lib_name()), (3, Some("mine")));
        assert!(login.protocol().supports_resp3() && !login.skip_set_lib_name());
    }
}
