//! The questions to one server. Each topic has a connection of its own: an error of one leaves the
//! others as they are.

use std::{
    cell::Cell,
    time::{Duration, SystemTime},
};

use redis::{Cmd, Connection, RedisError, RedisResult, Value};

use super::{
    facts::ServerFacts,
    finding::{
        Finding,
        Severity::{self, Fails, Good, Limits, NotTold},
    },
    line::{Line, is_broken, reason},
    needs,
};
use crate::{
    error::{Error, Result, may_pass, no_answer},
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
const UNANSWERED: &str = "Unknown: probe again when the server answers.";

/// A server that is being probed.
pub(super) struct Questions<'a> {
    connector: &'a Connector,
    lock: &'a LockName,
    deadline: Deadline,
    facts: ServerFacts,
    /// A connection could not be opened: nothing more is asked.
    is_gone: Cell<bool>,
}

impl<'a> Questions<'a> {
    /// Opens a connection, and asks the server for its settings.
    pub(super) fn begin(
        connector: &'a Connector,
        lock: &'a LockName,
        deadline: Deadline,
    ) -> Result<Self> {
        let line = Line::open(connector, deadline, Connector::open)?;
        Ok(Self {
            connector,
            lock,
            deadline,
            facts: ServerFacts::of(line),
            is_gone: Cell::new(false),
        })
    }

    /// Returns the findings without the topology.
    pub(super) fn ask(&self) -> Vec<Finding> {
        let address = self.connector.address(self.deadline);
        let address = address.unwrap_or_else(|_| self.connector.server());
        let (clock, round_trip) = self.times();
        vec![
            self.facts.server(&address),
            self.scripts(),
            self.wake_ups(),
            self.replicas(),
            self.facts.memory(),
            self.facts.persistence(),
            clock,
            round_trip,
            self.keys(),
            self.commands(),
        ]
    }

    /// Judges the single server, or the master that sentinels name and these sentinels.
    pub(super) fn group(&self) -> Vec<Finding> {
        let sentinels = self.connector.has_locator();
        let group = sentinels.then(|| format!("{}, by sentinels", self.connector.server()));
        let mut findings = vec![self.facts.topology(group.as_deref())];
        let Some(survey) = self.connector.survey(self.deadline) else {
            return findings;
        };
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
        findings.push(Finding::new("sentinels", severity, found, consequence));
        findings
    }

    fn line(&self) -> Result<Line<'a>> {
        if self.is_gone.get() {
            return Err(no_answer().into());
        }
        let line = Line::open(self.connector, self.deadline, Connector::open);
        line.inspect_err(|_| self.is_gone.set(true))
    }

    /// Writes after `TIME` in a script, as every lock does.
    fn scripts(&self) -> Finding {
        let by_hash = WRITES_AFTER_TIME.on([self.lock.key()]);
        let answer = self.line().and_then(|mut line| {
            match line.ask::<Value>(by_hash.command()) {
                Err(error) if error.code() == Some("NOSCRIPT") => line.ask(&by_hash.whole()),
                answer => answer,
            }
            .map_err(Error::from)
        });
        let found = answer.map_or_else(|error| reason(&error), |_| String::new());
        let (severity, found, consequence) = if found.is_empty() {
            let consequence = "A lock is acquired in one round trip.";
            (Good, "executed, with writes after TIME", consequence)
        } else if found.contains("non deterministic") {
            let consequence = "Locks with a fencing token fail: set lua-replicate-commands yes.";
            (Fails, &*found, consequence)
        } else {
            let consequence = "Every lock reads the clock and writes in a script: none works. For \
                               an access list see `keys` and `commands`.";
            (Fails, &*found, consequence)
        };
        Finding::new("scripts", severity, found, consequence)
    }

    fn wake_ups(&self) -> Finding {
        let polls = "Waiters poll every 1 to 10 ms, and a loss is noticed at the next renewal.";
        let arrives = "A release wakes waiters, and a loss is noticed at once.";
        let answer = self.is_notified();
        let (severity, found, consequence) = match &answer {
            Ok(true) => (Good, "a message arrived".to_owned(), arrives),
            Ok(false) => (Limits, "accepted, but no message arrived".to_owned(), polls),
            Err(error) if is_temporary(error) => (NotTold, reason(error), UNANSWERED),
            Err(error) => (Limits, reason(error), polls),
        };
        Finding::new("wake-ups", severity, found, consequence)
    }

    /// Reads the key while another connection listens, and writes it on a third one.
    fn is_notified(&self) -> Result<bool> {
        let mut listener = Line::open(self.connector, self.deadline, Connector::open_to_listen)?;
        let id = listener.ask(redis::cmd("CLIENT").arg("ID"))?;
        listener.ask::<Value>(&subscribe())?;
        let (mut reader, mut writer) = (self.line()?, self.line()?);
        reader.ask::<Value>(&redirect_to(id))?;
        reader.ask::<Value>(redis::cmd("PTTL").arg(self.lock.key()))?;
        writer.ask::<Value>(&self.write())?;
        let message = listener.use_for(Connection::recv_response);
        let _ = writer.ask::<Value>(&self.delete());
        let message = message.map(redis::from_redis_value::<(String, String, Vec<String>)>);
        Ok(matches!(message, Ok(Ok((_, _, keys))) if keys.iter().any(|it| it == self.lock.key())))
    }

    /// The write of the key, with a short lifetime.
    fn write(&self) -> Cmd {
        let mut set = redis::cmd("SET");
        let set = set.arg(self.lock.key()).arg("probe");
        set.arg("PX").arg(LIFETIME).to_owned()
    }

    fn delete(&self) -> Cmd {
        redis::cmd("DEL").arg(self.lock.key()).to_owned()
    }

    fn replicas(&self) -> Finding {
        let connected = self.facts.replicas();
        let confirmed = self.line().and_then(|mut line| {
            // Without a write, the replicas confirm the earlier ones.
            let _ = line.ask::<Value>(&self.write());
            let mut wait = redis::cmd("WAIT");
            wait.arg(connected.unwrap_or(1)).arg(REPLICAS_WAIT);
            let confirmed = line.ask::<usize>(&wait);
            let _ = line.ask::<Value>(&self.delete());
            Ok(confirmed?)
        });
        let (severity, found, consequence) = match confirmed {
            Err(error) if is_temporary(&error) || !self.facts.is_master() => {
                (NotTold, reason(&error), UNANSWERED.to_owned())
            }
            Err(error) => (
                Limits,
                reason(&error),
                "A lock that waits for replicas is refused: a failover may lose any lock.".into(),
            ),
            Ok(0) if connected.is_none_or(|it| it == 0) => (
                Limits,
                "none".to_owned(),
                "No other server has copies: a lock that waits for replicas is not granted.".into(),
            ),
            Ok(confirmed) => (
                connected.map_or(Good, |it| if confirmed < it { Limits } else { Good }),
                format!("{confirmed} confirmed a write within {REPLICAS_WAIT} ms"),
                format!("A lock that waits for more than {confirmed} is not granted now."),
            ),
        };
        Finding::new("replicas", severity, found, consequence)
    }

    /// Measures the clock and the round trip by the fastest of some samples.
    fn times(&self) -> (Finding, Finding) {
        let mut samples = Vec::new();
        if let Ok(mut line) = self.line() {
            for _ in 0..SAMPLES {
                let (sent, local) = (time::now(), SystemTime::now());
                let answer = line.ask::<(u64, u64)>(&redis::cmd("TIME"));
                let took = sent.elapsed();
                // A refusal takes a round trip too.
                if !answer.as_ref().is_err_and(is_broken) {
                    samples.push((took, answer.ok().map(|clock| (clock, local + took / 2))));
                }
            }
        }
        let fastest = samples.into_iter().min_by_key(|(took, _)| *took);
        let (severity, found, consequence) = match fastest {
            None => {
                // Another connection tells whether only this question has no answer.
                let severity = self.line().map_or(Fails, |_| NotTold);
                let consequence = "The server has stopped answering.";
                (severity, "no answer".to_owned(), consequence)
            }
            Some((took, _)) => (
                if took < SLOW { Good } else { Limits },
                millis(took),
                "An acquire takes one round trip, and a release another.",
            ),
        };
        let round_trip = Finding::new("round trip", severity, found, consequence);
        let clock = fastest.and_then(|(took, clocks)| clocks.map(|it| clock(took, it.0, it.1)));
        let unknown = || Finding::new("clock", NotTold, "unknown", UNANSWERED);
        (clock.unwrap_or_else(unknown), round_trip)
    }

    /// Tries the keys of a lock, each with a script that the server does not know.
    fn keys(&self) -> Finding {
        let lock = self.lock;
        let keys = [
            (Fails, "lock", lock.key().to_owned()),
            (Fails, "fencing token", lock.companion()),
            (Limits, "mark of a run", lock.run_mark()),
            (Limits, "mark of a commit", lock.mark("a")),
            (Limits, "proof of a commit", lock.proof("a")),
        ];
        let tried = self.line().and_then(|mut line| {
            let mut refused = Vec::new();
            for (severity, what, key) in keys {
                let mut by_hash = redis::cmd("EVALSHA");
                by_hash.arg("0".repeat(40)).arg(1).arg(&key);
                match line.ask::<Value>(&by_hash) {
                    Err(error) if is_of_key(&error) => refused.push((severity, what, key)),
                    Err(error) if error.code() != Some("NOSCRIPT") => return Err(error.into()),
                    _ => {}
                }
            }
            Ok(refused)
        });
        match tried {
            Err(error) => Finding::new("keys", NotTold, reason(&error), "It requires a script."),
            Ok(refused) if refused.is_empty() => {
                let found = format!("allowed, with the prefix `{}`", lock.prefix());
                Finding::new("keys", Good, found, "A lock can use all of its keys.")
            }
            Ok(refused) => {
                let of_each = |text: fn(&LockName, &(Severity, &str, String)) -> String| {
                    refused.iter().map(|it| text(lock, it)).collect::<Vec<_>>()
                };
                let patterns = of_each(|lock, (_, _, key)| {
                    format!("`{}`", key.replace(lock.text(), "*").replace("{a}", "{*}"))
                });
                let without = of_each(|_, (_, what, _)| format!("no {what}"));
                let severity = refused.iter().map(|it| it.0).max().unwrap_or(Limits);
                let found = format!("refused: {}", patterns.join(", "));
                let without = without.join(", ");
                let consequence = format!(
                    "With this prefix there is {without}: the access list must allow these keys."
                );
                Finding::new("keys", severity, found, consequence)
            }
        }
    }

    fn commands(&self) -> Finding {
        let (all, count) = needs::all(self.lock.key());
        let packed = all.get_packed_pipeline();
        let limit = self.connector.limits().answer;
        let answers = self.line().and_then(|mut line| {
            let mut answers: Vec<RedisResult<Value>> = Vec::new();
            // An error, such as that of a master that has become a replica, is also among the
            // answers.
            let _ = line.use_for(|connection| {
                let pass_on =
                    |it: RedisResult<Value>| answers.push(it.and_then(Value::extract_error));
                exchange_each(connection, &packed, count, limit, pass_on)
            });
            let broken = answers
                .iter()
                .find_map(|it| it.as_ref().err().filter(|it| is_broken(it)));
            broken.map_or(Ok(()), |error| Err(Error::from(error.clone())))?;
            Ok(answers)
        });
        match answers {
            Ok(answers) => needs::judge(&answers),
            Err(error) => Finding::new("commands", NotTold, reason(&error), UNANSWERED),
        }
    }
}

/// Judges the clock by the fastest sample: its round trip, the server's clock and this machine's.
fn clock(took: Duration, (seconds, micros): (u64, u64), local: SystemTime) -> Finding {
    let server = Duration::from_secs(seconds) + Duration::from_micros(micros);
    let local = local.duration_since(SystemTime::UNIX_EPOCH);
    let local = local.unwrap_or_default();
    let side = if server < local { "behind" } else { "ahead of" };
    let apart = server.abs_diff(local);
    let found = format!(
        "{} {side} this machine's, ± {}",
        millis(apart),
        millis(took / 2)
    );
    let (severity, consequence) = if apart < APART + took / 2 {
        (
            Good,
            "Leases go by the server's clock: the difference does not matter.",
        )
    } else {
        let consequence = "Leases go by the server's clock; times of day, printed or given as an \
                           end, are off by this.";
        (Limits, consequence)
    };
    Finding::new("clock", severity, found, consequence)
}

fn millis(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1_000.0)
}

/// Returns true if the server refuses only for now, such as while it is loading.
fn is_temporary(error: &Error) -> bool {
    match error {
        Error::Redis { source, .. } | Error::Unknown { source, .. } => may_pass(source),
        _ => false,
    }
}

/// Returns true if the access list forbids the key, and not the command.
fn is_of_key(refusal: &RedisError) -> bool {
    let is_of_command = refusal.detail().is_some_and(|it| it.contains("to run the"));
    refusal.code() == Some("NOPERM") && !is_of_command
}
