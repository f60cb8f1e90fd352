//! The questions to one server.

use std::time::{Duration, SystemTime};

use redis::{Connection, RedisError, RedisResult, Value};

use super::{
    asking::{Asking, is_of_now, reason, words},
    finding::{
        Finding,
        Severity::{Fails, Good, Limits, NotTold},
        Verdict, verdict,
    },
    needs::{all, judge},
    told::Told,
};
use crate::{
    error::Result,
    name::LockName,
    pool::Connector,
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
/// A slower round trip limits locks.
const SLOW: Duration = Duration::from_millis(100);
/// A greater difference between the clocks is reported.
const APART: Duration = Duration::from_secs(1);
const ASK_AGAIN: &str = "Probe again when the master accepts writes.";

/// A server that is being probed.
pub(super) struct Questions<'a> {
    asking: Asking<'a>,
    lock: &'a LockName,
    told: Told,
}

impl<'a> Questions<'a> {
    /// Opens a connection, and asks the server for its settings.
    pub(super) fn begin(
        connector: &'a Connector,
        lock: &'a LockName,
        deadline: Deadline,
    ) -> Result<Self> {
        let mut asking = Asking::begin(connector, deadline)?;
        let told = Told::by(&mut asking);
        Ok(Self { asking, lock, told })
    }

    /// Returns the findings without the topology.
    pub(super) fn ask(&mut self) -> Vec<Finding> {
        let connector = self.asking.connector;
        let address = connector.address(self.asking.deadline);
        let address = address.unwrap_or_else(|_| connector.server());
        let (server, scripts) = (self.told.server(&address), self.scripts());
        let (wake_ups, replicas) = (self.wake_ups(), self.replicas());
        let (clock, round_trip) = self.times();
        let verdicts = [
            ("server", server),
            ("scripts", scripts),
            ("wake-ups", wake_ups),
            ("replicas", replicas),
            ("memory", self.told.memory()),
            ("persistence", self.told.persistence()),
            ("clock", clock),
            ("round trip", round_trip),
            ("keys", self.keys()),
            ("commands", self.commands()),
        ];
        verdicts
            .map(|(topic, verdict)| Finding::new(topic, verdict))
            .into()
    }

    /// Judges the single server, or the master that sentinels name.
    pub(super) fn topology(&self) -> Finding {
        let connector = self.asking.connector;
        let by_sentinels = connector.has_locator().then(|| connector.server());
        Finding::new("topology", self.told.topology(by_sentinels.as_deref()))
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
            (Limits, consequence)
        } else if survey.asked == 1 {
            let consequence = "If it fails, no connection can be opened: add others to the URL.";
            (Limits, consequence)
        } else if survey.agreed < survey.asked {
            let consequence = "The others cannot name the next master after a failover: fix them.";
            (Limits, consequence)
        } else {
            (Good, "Any of them can name the next master.")
        };
        Some(Finding::new(
            "sentinels",
            verdict(severity, found, consequence),
        ))
    }

    /// Writes after `TIME` in a script, as every lock does.
    fn scripts(&mut self) -> Verdict {
        let by_hash = WRITES_AFTER_TIME.on([self.lock.key()]);
        let answer = match self.asking.ask::<Value>(by_hash.command()) {
            Err(error) if error.code() == Some("NOSCRIPT") => {
                self.asking.ask::<Value>(&by_hash.whole())
            }
            answer => answer,
        };
        let Err(error) = answer else {
            let consequence = "A lock is acquired in one round trip.";
            return verdict(Good, "executed, with writes after TIME", consequence);
        };
        let found = words(&error);
        let consequence = if found.contains("non deterministic") {
            "Locks with a fencing token fail: set lua-replicate-commands yes."
        } else if error.code() == Some("NOPERM") {
            "The access list must allow it: see `keys` and `commands`."
        } else {
            "Every lock reads the clock and writes in a script: none works."
        };
        verdict(Fails, found, consequence)
    }

    fn wake_ups(&mut self) -> Verdict {
        let polls = "Waiters poll every 1 to 10 ms, and a loss is noticed at the next renewal.";
        match self.is_notified() {
            Ok(Some(true)) => self.told.wake_ups(),
            Ok(Some(false)) => verdict(Limits, "accepted, but no message arrived", polls),
            Ok(None) => {
                let consequence = "A release wakes waiters if messages arrive.";
                verdict(NotTold, "accepted, not tried", consequence)
            }
            Err(error) if is_of_now(&error) => verdict(NotTold, reason(&error), ASK_AGAIN),
            Err(error) => verdict(Limits, reason(&error), polls),
        }
    }

    /// Reads the key while another connection listens, and writes it on a third one. `None`: the
    /// key may not be written.
    fn is_notified(&mut self) -> Result<Option<bool>> {
        let mut ear = self.asking.open(Connector::open_to_listen)?;
        let id = self
            .asking
            .ask_on(&mut ear, redis::cmd("CLIENT").arg("ID"))?;
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
        self.delete(&mut writer);
        Ok(Some(has_come))
    }

    /// Writes the key, with a short lifetime.
    fn write(&self, connection: &mut Connection) -> RedisResult<()> {
        let mut set = redis::cmd("SET");
        let set = set.arg(self.lock.key()).arg("probe");
        self.asking.ask_on(connection, set.arg("PX").arg(LIFETIME))
    }

    fn delete(&self, connection: &mut Connection) {
        let mut del = redis::cmd("DEL");
        let _ = (self.asking).ask_on::<Value>(connection, del.arg(self.lock.key()));
    }

    fn replicas(&mut self) -> Verdict {
        let told = self.told.replicas();
        let connected = told.unwrap_or(1);
        let mut wait = redis::cmd("WAIT");
        wait.arg(connected).arg(REPLICAS_WAIT);
        let confirmed = self.asking.open(Connector::open).and_then(|mut writer| {
            // Without a write, the replicas confirm the earlier ones.
            let _ = self.write(&mut writer);
            let confirmed = self.asking.ask_on::<usize>(&mut writer, &wait);
            self.delete(&mut writer);
            Ok(confirmed?)
        });
        match confirmed {
            Err(error) if is_of_now(&error) || !self.told.is_master() => {
                verdict(NotTold, reason(&error), ASK_AGAIN)
            }
            Err(error) => {
                let consequence =
                    "A lock that waits for replicas is refused: a failover may lose any lock.";
                verdict(Limits, reason(&error), consequence)
            }
            Ok(0) if told.is_none_or(|told| told == 0) => {
                let consequence =
                    "No other server has copies: a lock that waits for replicas is not granted.";
                verdict(Limits, "none", consequence)
            }
            Ok(confirmed) if told.is_some() && confirmed < connected => verdict(
                Limits,
                format!("{confirmed} of {connected} confirmed a write within {REPLICAS_WAIT} ms"),
                format!("A lock that waits for more than {confirmed} is not granted now."),
            ),
            Ok(confirmed) => verdict(
                Good,
                format!("{confirmed} confirmed a write"),
                format!("A lock may wait for up to {confirmed}."),
            ),
        }
    }

    /// Measures the clock and the round trip.
    fn times(&mut self) -> (Verdict, Verdict) {
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
        let clock = samples
            .first()
            .and_then(|(took, clocks)| clocks.map(|it| (*took, it)));
        let median = samples.get(samples.len() / 2).map(|(took, _)| *took);
        (clock_of(clock), self.round_trip(median))
    }

    fn round_trip(&self, median: Option<Duration>) -> Verdict {
        let Some(took) = median else {
            let severity = if self.asking.is_gone { Fails } else { NotTold };
            return verdict(severity, "no answer", "The server has stopped answering.");
        };
        let severity = if took < SLOW { Good } else { Limits };
        let consequence = "An acquire takes one round trip, and a release another.";
        verdict(severity, millis(took), consequence)
    }

    /// Tries the keys of a lock, each with a script that the server does not know.
    fn keys(&mut self) -> Verdict {
        let lock = self.lock;
        let all = [
            (lock.key().to_owned(), "lock"),
            (lock.companion(), "fencing token"),
            (lock.run_mark(), "mark of a run"),
            (lock.mark("a"), "mark of a commit"),
            (lock.proof("a"), "proof of a commit"),
        ];
        let (mut patterns, mut without) = (Vec::new(), Vec::new());
        for (key, what) in all {
            let mut by_hash = redis::cmd("EVALSHA");
            by_hash.arg("0".repeat(40)).arg(1).arg(&key);
            match self.asking.ask::<Value>(&by_hash) {
                Err(error) if is_of_key(&error) => {
                    let pattern = key.replace(lock.text(), "*").replace("{a}", "{*}");
                    patterns.push(format!("`{pattern}`"));
                    without.push(what);
                }
                Err(error) if error.code() != Some("NOSCRIPT") => {
                    return verdict(NotTold, "unknown", "It requires a script.");
                }
                _ => {}
            }
        }
        if patterns.is_empty() {
            let found = format!("allowed, with the prefix `{}`", lock.prefix());
            return verdict(Good, found, "A lock can use all of its keys.");
        }
        let is_needed = |what: &&str| ["lock", "fencing token"].contains(what);
        let severity = if without.iter().any(is_needed) {
            Fails
        } else {
            Limits
        };
        let consequence = format!(
            "With this prefix there is no {}: the access list must allow these keys.",
            without.join(", no ")
        );
        verdict(
            severity,
            format!("refused: {}", patterns.join(", ")),
            consequence,
        )
    }

    fn commands(&mut self) -> Verdict {
        let answers = self
            .asking
            .open(Connector::open)
            .and_then(|mut connection| {
                let (all, count) = all(self.lock.key());
                let (limit, mut answers) = (self.asking.patience().remaining(), Vec::new());
                // An error, such as that of a master that has become a replica, is also among the
                // answers.
                let all = all.get_packed_pipeline();
                let _ = exchange_each(&mut connection, &all, count, limit, |it| {
                    answers.push(it.and_then(Value::extract_error));
                });
                let mut errors = answers.iter().filter_map(|it| it.as_ref().err());
                match errors.find(|it| it.is_io_error()) {
                    Some(error) => Err(error.clone().into()),
                    None => Ok(answers),
                }
            });
        match answers {
            Ok(answers) => judge(&answers),
            Err(error) => {
                let consequence = "A missing command is noticed only when it is used.";
                verdict(NotTold, reason(&error), consequence)
            }
        }
    }
}

/// Judges the clock by the fastest sample: its round trip, the server's clock and this machine's.
fn clock_of(fastest: Option<(Duration, (Duration, SystemTime))>) -> Verdict {
    let Some((took, (server, local))) = fastest else {
        return verdict(NotTold, "unknown", "Leases go by the server's clock.");
    };
    let local = local
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let side = if server < local { "behind" } else { "ahead of" };
    let apart = server.abs_diff(local);
    let (by, error) = (millis(apart), millis(took / 2));
    let found = format!("{by} {side} this machine's, ± {error}");
    if apart < APART + took / 2 {
        let consequence = "Leases go by the server's clock: the difference does not matter.";
        return verdict(Good, found, consequence);
    }
    let consequence = "Leases go by the server's clock; times of day, printed or given as an end, \
                       are off by this.";
    verdict(Limits, found, consequence)
}

fn millis(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1_000.0)
}

/// Returns true if the access list forbids the key, and not the command.
fn is_of_key(refusal: &RedisError) -> bool {
    let is_of_command = refusal.detail().is_some_and(|it| it.contains("to run the"));
    refusal.code() == Some("NOPERM") && !is_of_command
}
