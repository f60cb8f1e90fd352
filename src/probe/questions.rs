//! The questions to one server.

use std::time::{Duration, SystemTime};

use redis::{Connection, ProtocolVersion, RedisError, RedisResult, Value};

use super::{
    asking::{Asking, is_of_now, reason, words},
    finding::{Finding, Severity},
    needs::{COUNT, all, judge},
    times::{clock, round_trip},
    told::ServerSettings,
};
use crate::{
    error::Result,
    name::LockName,
    pool::{Connector, is_unknown_command},
    server::{redirect_to, subscribe},
    time::{self, Deadline},
    wire::{exchange_each, scripts},
};

scripts! {
    WRITES_AFTER_TIME = "after_time.lua";
}

/// The lifetime of the key in milliseconds, in case it cannot be deleted.
const LIFETIME: u64 = 5_000;
/// The longest wait for replicas, in milliseconds.
const REPLICAS_WAIT: u64 = 500;
const SAMPLES: usize = 5;
const ASK_AGAIN: &str = "Probe again when the master accepts writes.";

/// A server that is being probed.
pub(super) struct Questions<'a> {
    asking: Asking<'a>,
    lock: &'a LockName,
    told: ServerSettings,
}

impl<'a> Questions<'a> {
    /// Opens a connection, and asks the server for its settings.
    pub(super) fn begin(
        connector: &'a Connector,
        lock: &'a LockName,
        deadline: Deadline,
    ) -> Result<Self> {
        let mut asked = Self {
            asking: Asking::begin(connector, deadline)?,
            lock,
            told: ServerSettings::default(),
        };
        asked.told = ServerSettings {
            info: asked.asking.ask(&redis::cmd("INFO")).unwrap_or_default(),
            role: asked.asking.ask(&redis::cmd("ROLE")).ok(),
            hello: asked.asking.ask(&redis::cmd("HELLO")).unwrap_or_default(),
            policy: asked.setting("maxmemory-policy"),
            appendfsync: asked.setting("appendfsync"),
            save: asked.setting("save"),
        };
        Ok(asked)
    }

    fn setting(&mut self, name: &str) -> Option<String> {
        let mut get = redis::cmd("CONFIG");
        let answer = self
            .asking
            .ask::<Vec<String>>(get.arg("GET").arg(name))
            .ok()?;
        answer.into_iter().nth(1)
    }

    pub(super) fn server(&self) -> Finding {
        let address = self.asking.connector.address(self.asking.deadline);
        let address = address.unwrap_or_else(|_| self.asking.connector.server());
        self.told.server(&address)
    }

    /// Reports the single server, or the master that sentinels name.
    pub(super) fn topology(&self) -> Finding {
        let finding = |severity, found: &str, consequence: &str| {
            Finding::new("topology", severity, found, consequence)
        };
        if self.told.is_of_a_cluster() {
            let consequence =
                "Locks in slots of other nodes fail: the URL must begin with redis+cluster://.";
            return finding(Severity::Fails, "one node of a cluster", consequence);
        }
        if let Some(role) = self.told.role().filter(|role| role != "master") {
            let found = if role == "slave" { "a replica" } else { &role };
            let consequence = "Only a master can lock: the URL must point to the master.";
            return finding(Severity::Fails, found, consequence);
        }
        let server = self.asking.connector.server();
        if self.asking.connector.has_locator() {
            let found = format!("{server}, by sentinels");
            let consequence = "A failover is followed. It may lose a lock, or grant it twice for a \
                               moment: a wait for replicas and fencing tokens help.";
            return finding(Severity::Good, &found, consequence);
        }
        let consequence = "A failover is not followed: a lock is as safe as this server's data.";
        finding(Severity::Good, "one server", consequence)
    }

    pub(super) fn sentinels(&self) -> Option<Finding> {
        let survey = self.asking.connector.survey(self.asking.deadline)?;
        let mut found = format!(
            "{} of {} answer, {} name this master",
            survey.answered, survey.asked, survey.agreed
        );
        let (severity, consequence) = if let Some(differing) = survey.differing {
            found = format!("{found}: {differing}");
            let consequence = "They contradict each other, unless this is a failover: all of them \
                               have to watch the same group.";
            (Severity::Limits, consequence)
        } else if survey.asked == 1 {
            let consequence = "If it fails, no connection can be opened: add others to the URL.";
            (Severity::Limits, consequence)
        } else if survey.agreed < survey.asked {
            let consequence = "The others cannot name the next master after a failover: fix them.";
            (Severity::Limits, consequence)
        } else {
            (Severity::Good, "Any of them can name the next master.")
        };
        Some(Finding::new("sentinels", severity, found, consequence))
    }

    /// Asks all questions except those about the topology.
    pub(super) fn the_rest(&mut self) -> Vec<Finding> {
        let (scripts, time) = self.scripts();
        let wake_ups = self.wake_ups();
        let resp3 = self.resp3();
        let replicas = self.replicas();
        let (clock, round_trip) = self.times();
        vec![
            scripts,
            time,
            wake_ups,
            resp3,
            replicas,
            self.told.memory(),
            self.told.persistence(),
            clock,
            round_trip,
            self.keys(),
            self.commands(),
        ]
    }

    fn scripts(&mut self) -> (Finding, Finding) {
        let scripts = |severity, found: &str, consequence: &str| {
            Finding::new("scripts", severity, found, consequence)
        };
        let time = |severity, found: &str, consequence: &str| {
            Finding::new("time", severity, found, consequence)
        };
        let mut plain = redis::cmd("EVAL");
        plain.arg("return 1").arg(1).arg(self.lock.key());
        if let Err(error) = self.asking.ask::<i64>(&plain) {
            let not_asked = time(Severity::NotTold, "not asked", "It requires a script.");
            let refused = if is_of_key(&error) {
                let consequence = "The access list must allow the key: see `keys`.";
                scripts(Severity::NotTold, &words(&error), consequence)
            } else {
                let consequence = "Every lock requires a script: none works.";
                scripts(Severity::Fails, &words(&error), consequence)
            };
            return (refused, not_asked);
        }
        let by_hash = WRITES_AFTER_TIME.on([self.lock.key()]);
        let answer = match self.asking.ask::<Value>(by_hash.command()) {
            Err(error) if error.code() == Some("NOSCRIPT") => {
                self.asking.ask::<Value>(&by_hash.whole())
            }
            answer => answer,
        };
        let good = scripts(
            Severity::Good,
            "executed",
            "A lock is acquired in one round trip.",
        );
        match answer {
            Ok(_) => {
                let consequence = "Fencing tokens grow with the server's clock.";
                (good, time(Severity::Good, "writes allowed", consequence))
            }
            Err(error) if is_unknown_command(&error) => {
                let not_asked = time(Severity::NotTold, "not asked", "It requires a script.");
                let consequence = "Every lock sends scripts by their hash: none works.";
                (
                    scripts(Severity::Fails, &words(&error), consequence),
                    not_asked,
                )
            }
            Err(error) if error.code() == Some("NOPERM") => {
                let consequence = "The access list must allow it: see `commands`.";
                (good, time(Severity::NotTold, &words(&error), consequence))
            }
            Err(error) => {
                let consequence = if words(&error).contains("non deterministic") {
                    "Locks with a fencing token fail: set lua-replicate-commands yes."
                } else {
                    "Every lock reads the clock and writes in a script: none works."
                };
                (good, time(Severity::Fails, &words(&error), consequence))
            }
        }
    }

    fn wake_ups(&mut self) -> Finding {
        let finding = |severity, found: &str, consequence: &str| {
            Finding::new("wake-ups", severity, found, consequence)
        };
        let polls = "Waiters poll every 1 to 10 ms, and a loss is noticed at the next renewal.";
        match self.is_notified() {
            Ok(Some(true)) => {
                let consequence = "A release wakes waiters, and a loss is noticed at once.";
                finding(Severity::Good, "a message arrived", consequence)
            }
            Ok(Some(false)) => finding(Severity::Limits, "accepted, but no message arrived", polls),
            Ok(None) => {
                let consequence = "A release wakes waiters if messages arrive.";
                finding(Severity::NotTold, "accepted, not tried", consequence)
            }
            Err(error) if is_of_now(&error) => {
                finding(Severity::NotTold, &reason(&error), ASK_AGAIN)
            }
            Err(error) => finding(Severity::Limits, &reason(&error), polls),
        }
    }

    /// Reads the key while another connection listens, and writes it on a third one. `None`: the
    /// key may not be written.
    fn is_notified(&mut self) -> Result<Option<bool>> {
        let mut ear = self.asking.open(Connector::open_to_listen)?;
        let mut id = redis::cmd("CLIENT");
        let id = self.asking.ask_on(&mut ear, id.arg("ID"))?;
        self.asking.ask_on::<Value>(&mut ear, &subscribe())?;
        let key = self.lock.key();
        self.asking.ask::<Value>(&redirect_to(id))?;
        self.asking.ask::<Value>(redis::cmd("PTTL").arg(key))?;
        let mut writer = self.asking.open(Connector::open)?;
        if self.write(&mut writer).is_err() {
            return Ok(None);
        }
        let by = self.asking.patience();
        let mut has_come = false;
        while !has_come && !by.has_passed() {
            ear.set_read_timeout(Some(by.remaining_up_to(Duration::MAX)))?;
            let Ok(message) = ear.recv_response() else {
                break;
            };
            let message = redis::from_redis_value::<(String, String, Vec<String>)>(message);
            has_come = message.is_ok_and(|(_, _, keys)| keys.iter().any(|it| it == key));
        }
        let _ = self
            .asking
            .ask_on::<Value>(&mut writer, redis::cmd("DEL").arg(key));
        Ok(Some(has_come))
    }

    /// Writes the key, with a short lifetime.
    fn write(&self, connection: &mut Connection) -> RedisResult<()> {
        let mut set = redis::cmd("SET");
        set.arg(self.lock.key())
            .arg("probe")
            .arg("PX")
            .arg(LIFETIME);
        self.asking.ask_on(connection, &set)
    }

    fn resp3(&mut self) -> Finding {
        let open = |connector: &Connector| connector.open_speaking(ProtocolVersion::RESP3);
        let asked = self.asking.open(open).and_then(|mut connection| {
            let mut tracking = redis::cmd("CLIENT");
            tracking.arg("TRACKING").arg("ON").arg("NOLOOP");
            Ok(self.asking.ask_on::<()>(&mut connection, &tracking)?)
        });
        let found = match asked {
            Ok(()) => "accepted".to_owned(),
            Err(error) => reason(&error),
        };
        let consequence = "leasehold does not use it.";
        Finding::new("resp3", Severity::Good, found, consequence)
    }

    fn replicas(&mut self) -> Finding {
        let finding = |severity, found: &str, consequence: &str| {
            Finding::new("replicas", severity, found, consequence)
        };
        let refused = "A lock that waits for replicas is refused: a failover may lose any lock.";
        let is_master = self.told.role().is_none_or(|role| role == "master");
        let told = self.told.replicas();
        let connected = told.unwrap_or(1);
        let mut wait = redis::cmd("WAIT");
        wait.arg(connected).arg(REPLICAS_WAIT);
        let confirmed = self.asking.open(Connector::open).and_then(|mut writer| {
            // Without a write, the replicas confirm the earlier ones.
            let _ = self.write(&mut writer);
            let confirmed = self.asking.ask_on::<usize>(&mut writer, &wait);
            let mut del = redis::cmd("DEL");
            let _ = self
                .asking
                .ask_on::<Value>(&mut writer, del.arg(self.lock.key()));
            Ok(confirmed?)
        });
        match confirmed {
            Err(error) if is_of_now(&error) || !is_master => {
                finding(Severity::NotTold, &reason(&error), ASK_AGAIN)
            }
            Err(error) => finding(Severity::Limits, &reason(&error), refused),
            Ok(0) if told.is_none_or(|told| told == 0) => finding(
                Severity::Limits,
                "none",
                "No other server has copies: a lock that waits for replicas is not granted.",
            ),
            Ok(confirmed) if told.is_some() && confirmed < connected => finding(
                Severity::Limits,
                &format!("{confirmed} of {connected} confirmed a write within {REPLICAS_WAIT} ms"),
                &format!("A lock that waits for more than {confirmed} is not granted now."),
            ),
            Ok(confirmed) => finding(
                Severity::Good,
                &format!("{confirmed} confirmed a write"),
                &format!("A lock may wait for up to {confirmed}."),
            ),
        }
    }

    /// Measures the clock and the round trip.
    fn times(&mut self) -> (Finding, Finding) {
        let mut samples = Vec::new();
        for _ in 0..SAMPLES {
            let (sent, local) = (time::now(), SystemTime::now());
            let answer = self.asking.ask::<(u64, u64)>(&redis::cmd("TIME"));
            let took = sent.elapsed();
            match answer {
                Ok((seconds, micros)) => {
                    let server = Duration::from_secs(seconds) + Duration::from_micros(micros);
                    samples.push((took, Some((server, local + took / 2))));
                }
                // A refusal takes a round trip too.
                Err(error) if !error.is_io_error() => samples.push((took, None)),
                Err(_) => {}
            }
        }
        samples.sort_by_key(|(took, _)| *took);
        (
            clock(samples.first().copied()),
            round_trip(&samples, self.asking.is_gone),
        )
    }

    /// Tries the keys of a lock, each with a script that the server does not know.
    fn keys(&mut self) -> Finding {
        let lock = self.lock;
        let (prefix, name) = (lock.prefix(), lock.text());
        let all = [
            (lock.key().to_owned(), "lock"),
            (lock.companion(), "fencing token"),
            (lock.run_mark(), "mark of a run"),
            (lock.mark("a"), "mark of a commit"),
            (lock.proof("a"), "proof of a commit"),
        ];
        let mut refused = Vec::new();
        for (key, what) in all {
            let mut by_hash = redis::cmd("EVALSHA");
            by_hash.arg("0".repeat(40)).arg(1).arg(&key);
            match self.asking.ask::<Value>(&by_hash) {
                Err(error) if error.code() == Some("NOSCRIPT") => {}
                Err(error) if is_of_key(&error) => {
                    let pattern = key.replace(name, "*").replace("{a}", "{*}");
                    refused.push((pattern, what));
                }
                Ok(_) => {}
                Err(_) => {
                    let consequence = "It requires a script.";
                    return Finding::new("keys", Severity::NotTold, "unknown", consequence);
                }
            }
        }
        let finding = |severity, found: &str, consequence: &str| {
            Finding::new("keys", severity, found, consequence)
        };
        if refused.is_empty() {
            let found = format!("allowed, with the prefix `{prefix}`");
            let consequence = "A lock can use all of its keys.";
            return finding(Severity::Good, &found, consequence);
        }
        let patterns: Vec<_> = refused.iter().map(|(key, _)| format!("`{key}`")).collect();
        let without: Vec<_> = refused
            .iter()
            .map(|(_, what)| format!("no {what}"))
            .collect();
        let is_needed = refused
            .iter()
            .any(|(_, what)| ["lock", "fencing token"].contains(what));
        let severity = if is_needed {
            Severity::Fails
        } else {
            Severity::Limits
        };
        finding(
            severity,
            &format!("refused: {}", patterns.join(", ")),
            &format!(
                "With this prefix there is {}: the access list must allow these keys.",
                without.join(", ")
            ),
        )
    }

    fn commands(&mut self) -> Finding {
        let opened = self.asking.open(Connector::open);
        let answers = opened.and_then(|mut connection| {
            let all = all(self.lock.key()).get_packed_pipeline();
            let (limit, mut answers) = (self.asking.patience().remaining(), Vec::new());
            // An error, such as that of a master that has become a replica, is also among the
            // answers.
            let _ = exchange_each(&mut connection, &all, COUNT, limit, |it| {
                answers.push(it.and_then(Value::extract_error));
            });
            match answers
                .iter()
                .find_map(|it| it.as_ref().err().filter(|it| it.is_io_error()))
            {
                Some(error) => Err(error.clone().into()),
                None => Ok(answers),
            }
        });
        match answers {
            Ok(answers) => judge(&answers),
            Err(error) => {
                let consequence = "A missing command is noticed only when it is used.";
                Finding::new("commands", Severity::NotTold, reason(&error), consequence)
            }
        }
    }
}

/// Returns true if the access list forbids the key, and not the command.
fn is_of_key(refusal: &RedisError) -> bool {
    let is_of_command = refusal.detail().is_some_and(|it| it.contains("to run the"));
    refusal.code() == Some("NOPERM") && !is_of_command
}
