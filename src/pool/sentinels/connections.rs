//! The connections to the sentinels: the questions for the master, and the announcements.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use redis::{Client, Connection, ErrorKind, ProtocolVersion, RedisResult, Value};

use super::known::NamedMaster;
use crate::{
    error::makes_no_sense,
    pool::{
        connector::Address,
        dial::{asked, set_timeouts, speaking},
        reasons,
    },
    time::{self, Deadline},
    wire::{exchange, within},
};

/// A sentinel that timed out is asked after the others for this long.
const FORGIVEN: Duration = Duration::from_secs(5);
/// The pause between two attempts to subscribe to announcements.
const SUBSCRIBE_PAUSE: Duration = Duration::from_secs(5);
/// Reading announcements should not wait, but a socket has no shorter time-out.
const AT_ONCE: Duration = Duration::from_millis(1);
/// If subscribing takes longer, it is retried later.
const SUBSCRIBING: Duration = Duration::from_millis(250);
/// The sentinel that leads a failover announces `+failover-state-reconf-slaves` as soon as the new
/// master is promoted, and `+switch-master` only when all replicas follow the new master. The other
/// sentinels announce `+switch-master` as soon as they learn of the failover.
const CHANNELS: [&str; 2] = ["+switch-master", "+failover-state-reconf-slaves"];

/// The connections to the sentinels: one to each for questions, and one subscription to the
/// announcements of one of them.
pub(super) struct SentinelConnections {
    sentinels: Vec<SentinelConnection>,
    /// The index of the sentinel that has answered last.
    pub(super) last: usize,
    /// The subscription, with the index of its sentinel.
    announcements: Option<(usize, Connection)>,
    /// The moment of the last attempt to subscribe.
    tried: Option<Instant>,
}

struct SentinelConnection {
    client: Client,
    /// The connection for the next question.
    kept: Option<Connection>,
    /// The moment of its last time-out.
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
    pub(super) fn in_order(&self, start_at: usize) -> Vec<usize> {
        let count = self.sentinels.len();
        let mut order: Vec<_> = (0..count).map(|step| (start_at + step) % count).collect();
        order.sort_by_key(|which| self.was_silent_lately(*which));
        order
    }

    pub(super) fn was_silent_lately(&self, which: usize) -> bool {
        let silent = self.sentinels[which].silent;
        silent.is_some_and(|silent| silent.elapsed() < FORGIVEN)
    }

    /// Asks one sentinel for the master.
    pub(super) fn question_one(
        &mut self,
        which: usize,
        master: &str,
        limit: Duration,
    ) -> RedisResult<(NamedMaster, Duration)> {
        let sentinel = &mut self.sentinels[which];
        let said = sentinel.question(master, limit);
        match &said {
            Ok(_) => self.last = which,
            Err(error) if error.is_timeout() => sentinel.silent = Some(time::now()),
            Err(_) => {}
        }
        said
    }

    /// Returns the sentinel that may know of a failover: it has announced one, or the subscription
    /// is new, since earlier announcements are not repeated. If there is no subscription,
    /// subscribes to the sentinel that answered last.
    pub(super) fn has_news(&mut self) -> Option<usize> {
        let Some((which, connection)) = &mut self.announcements else {
            let is_due = self
                .tried
                .is_none_or(|tried| tried.elapsed() >= SUBSCRIBE_PAUSE);
            if !is_due {
                return None;
            }
            self.tried = Some(time::now());
            self.announcements = Some((self.last, self.sentinels[self.last].subscribed()?));
            return Some(self.last);
        };
        let (which, mut has_announced) = (*which, false);
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
        has_announced.then_some(which)
    }

    /// Drops the subscription to another sentinel, which may be partitioned: this one named the new
    /// master first.
    pub(super) fn prefer(&mut self, which: usize) {
        if (self.announcements.as_ref()).is_some_and(|(subscribed, _)| *subscribed != which) {
            (self.announcements, self.tried) = (None, None);
        }
    }
}

impl SentinelConnection {
    fn question(&mut self, master: &str, limit: Duration) -> RedisResult<(NamedMaster, Duration)> {
        let deadline = Deadline::after(limit);
        let name = master.to_owned();
        if let Some(mut connection) = self.kept.take() {
            let peer = reasons::shown(self.client.get_connection_info().addr());
            let name = name.clone();
            let said = within(&peer, limit, move || {
                let said = question(&mut connection, &name, limit)?;
                Ok((connection, said))
            });
            match said {
                // The sentinel may have restarted: try a new connection.
                Err(error) if error.is_connection_dropped() => {}
                said => {
                    let (connection, said) = said?;
                    self.kept = Some(connection);
                    return Ok(said);
                }
            }
        }
        let limit = deadline.remaining_up_to(limit);
        let (connection, said) = asked(&self.client, limit, move |connection| {
            question(connection, &name, deadline.remaining_up_to(limit))
        })?;
        self.kept = Some(connection);
        Ok(said)
    }

    /// Opens a subscription, by RESP3, in which messages are distinguishable from replies.
    fn subscribed(&self) -> Option<Connection> {
        let client = speaking(&self.client, ProtocolVersion::RESP3).ok()?;
        let subscribe = |connection: &mut Connection| {
            let mut subscribe = redis::cmd("SUBSCRIBE");
            let subscribe = subscribe.arg(&CHANNELS).get_packed_command();
            connection.send_packed_command(&subscribe)?;
            for _ in CHANNELS {
                let Value::Push { .. } = connection.recv_response()? else {
                    return Err(makes_no_sense());
                };
            }
            connection.set_read_timeout(Some(AT_ONCE))
        };
        let (connection, ()) = asked(&client, SUBSCRIBING, subscribe).ok()?;
        Some(connection)
    }
}

/// Asks for the master, and for its age as far as the sentinel knows.
///
/// Both questions go in one write, so that the address and the age describe one moment: during a
/// failover the address changes when the age begins to count.
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
    // In RESP2 this is a list of names and values, in RESP3 a map.
    let facts: HashMap<String, String> = redis::from_redis_value(facts)?;
    let number = |name: &str| facts.get(name)?.parse().ok();
    let config_epoch = number("config-epoch").ok_or_else(makes_no_sense)?;
    let master = NamedMaster {
        address: Address::new(&host, port),
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
