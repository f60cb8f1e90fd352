//! The connections to sentinels: one to each for questions, and one to one of them on which it
//! announces failovers.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use redis::{Client, Connection, ConnectionAddr, ErrorKind, ProtocolVersion, RedisResult, Value};

use super::known::NamedMaster;
use crate::{
    connection::dial::{connect, set_timeouts, speaking},
    error::makes_no_sense,
    exchange::exchange,
    time::{self, Deadline},
};

/// One that was silent is asked after the others for so long.
const FORGIVEN: Duration = Duration::from_secs(5);
/// How long the announcements are listened to: not at all, but the system knows nothing shorter.
const AT_ONCE: Duration = Duration::from_millis(1);
/// A sentinel that takes longer to subscribe to is tried again later.
const SUBSCRIBING: Duration = Duration::from_millis(250);
/// The one that leads a failover announces the second as soon as the new master is one, and the
/// first after all replicas follow it. The others announce the first as soon as they hear of it.
const CHANNELS: [&str; 2] = ["+switch-master", "+failover-state-reconf-slaves"];

/// The sentinels that watch one master.
pub(super) struct SentinelConnections {
    sentinels: Vec<SentinelConnection>,
    /// The number of the one that has answered last.
    pub(super) last: usize,
    /// Where failovers are announced, with the number of the sentinel.
    announcements: Option<(usize, Connection)>,
    /// When it was last tried to subscribe.
    tried: Option<Instant>,
}

struct SentinelConnection {
    client: Client,
    /// For the next question.
    kept: Option<Connection>,
    /// When it was silent.
    silent: Option<Instant>,
}

impl SentinelConnections {
    pub(super) fn new(clients: Vec<Client>) -> Self {
        let sentinels = clients.into_iter().map(|client| SentinelConnection {
            client,
            kept: None,
            silent: None,
        });
        Self {
            sentinels: sentinels.collect(),
            last: 0,
            announcements: None,
            tried: None,
        }
    }

    /// The sentinels in the order in which they are asked: those that were silent lately come last.
    pub(super) fn in_order(&self, first: usize) -> Vec<usize> {
        let count = self.sentinels.len();
        let mut order: Vec<_> = (0..count).map(|step| (first + step) % count).collect();
        order.sort_by_key(|at| self.was_silent_lately(*at));
        order
    }

    pub(super) fn address(&self, at: usize) -> &ConnectionAddr {
        self.sentinels[at].client.get_connection_info().addr()
    }

    pub(super) fn was_silent_lately(&self, at: usize) -> bool {
        let silent = self.sentinels[at].silent;
        silent.is_some_and(|silent| silent.elapsed() < FORGIVEN)
    }

    /// Asks one of them where the master is.
    pub(super) fn ask(
        &mut self,
        at: usize,
        master: &str,
        limit: Duration,
    ) -> RedisResult<(NamedMaster, Duration)> {
        let sentinel = &mut self.sentinels[at];
        let said = sentinel.ask(master, limit);
        match &said {
            Ok(_) => self.last = at,
            Err(error) if error.is_timeout() => sentinel.silent = Some(time::now()),
            Err(_) => {}
        }
        said
    }

    /// Which sentinel may know of a failover: it has announced one, or was subscribed to just now
    /// and does not repeat what it has announced before. Subscribes where that was not done yet, to
    /// the one that has answered last.
    pub(super) fn has_news(&mut self) -> Option<usize> {
        let Some((at, connection)) = &mut self.announcements else {
            let is_due = self.tried.is_none_or(|tried| tried.elapsed() >= FORGIVEN);
            if !is_due {
                return None;
            }
            self.tried = Some(time::now());
            self.announcements = Some((self.last, self.sentinels[self.last].subscribed()?));
            return Some(self.last);
        };
        let (at, mut has_announced) = (*at, false);
        loop {
            match connection.recv_response() {
                Ok(Value::Push { .. }) => has_announced = true,
                Err(error) if error.is_timeout() => break,
                Ok(_) | Err(_) => {
                    self.announcements = None;
                    break;
                }
            }
        }
        has_announced.then_some(at)
    }

    /// This one has told of a failover: it knows sooner than others, of which one may be cut off.
    pub(super) fn prefer(&mut self, at: usize) {
        if (self.announcements.as_ref()).is_some_and(|(subscribed, _)| *subscribed != at) {
            (self.announcements, self.tried) = (None, None);
        }
    }
}

impl SentinelConnection {
    fn ask(&mut self, master: &str, limit: Duration) -> RedisResult<(NamedMaster, Duration)> {
        let deadline = Deadline::after(limit);
        if let Some(mut connection) = self.kept.take() {
            match question(&mut connection, master, limit) {
                // The sentinel may have been started again: a new connection tells.
                Err(error) if error.is_connection_dropped() => {}
                said => {
                    self.kept = said.is_ok().then_some(connection);
                    return said;
                }
            }
        }
        let mut connection = connect(&self.client, deadline.remaining_up_to(limit))?;
        let said = question(&mut connection, master, deadline.remaining_up_to(limit))?;
        self.kept = Some(connection);
        Ok(said)
    }

    /// A connection by the newer protocol, in which what comes unasked is told from answers.
    fn subscribed(&self) -> Option<Connection> {
        let client = speaking(&self.client, ProtocolVersion::RESP3).ok()?;
        let mut connection = connect(&client, SUBSCRIBING).ok()?;
        let mut subscribe = redis::cmd("SUBSCRIBE");
        let subscribe = subscribe.arg(&CHANNELS).get_packed_command();
        connection.send_packed_command(&subscribe).ok()?;
        for _ in CHANNELS {
            let Value::Push { .. } = connection.recv_response().ok()? else {
                return None;
            };
        }
        connection.set_read_timeout(Some(AT_ONCE)).ok()?;
        Some(connection)
    }
}

/// The master, and for how long it has been the master as far as the sentinel knows.
///
/// Both questions go in one write, so that both answers are of the same moment: during a failover
/// the first names the new master as soon as the second counts it.
fn question(
    connection: &mut Connection,
    master: &str,
    limit: Duration,
) -> RedisResult<(NamedMaster, Duration)> {
    set_timeouts(connection, limit)?;
    let mut both = redis::pipe();
    both.cmd("SENTINEL")
        .arg("GET-MASTER-ADDR-BY-NAME")
        .arg(master);
    both.cmd("SENTINEL").arg("MASTER").arg(master);
    let mut replies = exchange(connection, &both.get_packed_pipeline(), 2)?.into_iter();
    let (address, facts) = (replies.next(), replies.next());
    let address = address.ok_or_else(makes_no_sense)?.extract_error()?;
    if address == Value::Nil {
        let kind = ErrorKind::Client;
        return Err((kind, "it knows no master of this name").into());
    }
    let (host, port): (String, u16) = redis::from_redis_value(address)?;
    let facts = facts.ok_or_else(makes_no_sense)?.extract_error()?;
    // In RESP2 a list of names and values, in RESP3 a map.
    let facts: HashMap<String, String> = redis::from_redis_value(facts)?;
    let number = |name: &str| facts.get(name)?.parse().ok();
    let config_epoch = number("config-epoch").ok_or_else(makes_no_sense)?;
    let master = NamedMaster {
        host,
        port,
        config_epoch,
    };
    let is_failing_over =
        (facts.get("flags")).is_some_and(|it| it.contains("failover_in_progress"));
    let since = match number("role-reported-time") {
        _ if is_failing_over => Duration::ZERO,
        Some(millis) => Duration::from_millis(millis),
        None => Duration::MAX,
    };
    Ok((master, since))
}
