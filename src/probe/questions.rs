//! The questions to one server. They share a connection; after an answer that does not come, the
//! next question opens another.

use std::time::{Duration, SystemTime};

use redis::{Cmd, Connection, FromRedisValue, Pipeline, RedisError, RedisResult, Value};

use super::finding::{
    Finding,
    Severity::{self, Fails, Good, Limits, NotTold},
};
use crate::{
    error::{Error, Result, no_answer, refusal},
    name::LockName,
    pool::{Connector, is_unknown_command},
    server::{redirect_to, subscribe},
    time::{self, Deadline},
    wire::{Finished, command, exchange_each, scripts},
};

scripts! {
    WRITES_AFTER_TIME = "after_time.lua";
}

/// The longest wait for replicas, in milliseconds.
const REPLICAS_WAIT: u64 = 500;
const SAMPLES: usize = 5;
/// A slower round trip limits locks.
const SLOW: Duration = Duration::from_millis(100);
/// A greater difference between the clocks is reported.
const APART: Duration = Duration::from_secs(1);

/// The commands of all kinds of locks, each in a form that changes nothing. `KEY` is the key.
///
/// A server first compares the number of arguments with the command, then checks the access list,
/// and then executes. So each form has enough arguments, and does not touch a key that does not
/// exist. A lifetime of 0, a field without a value, a word in place of a number and an `EXEC`
/// without a transaction are refused. `MULTI` comes last, since only closing the connection ends
/// it.
const COMMANDS: &str = "eval return(1) 0, evalsha 0 0, time, get KEY, exists KEY, pttl KEY, \
                        del KEY, pexpire KEY 1, pexpireat KEY 1, set KEY a PX 0, hget KEY a, \
                        hmget KEY a, hgetall KEY, hlen KEY, hdel KEY a, hset KEY a a a, \
                        hincrby KEY a a, zadd KEY a a, zrem KEY a, zscore KEY a, zcount KEY 0 0, \
                        zrange KEY 0 0, zrangebyscore KEY 0 0, watch KEY, unwatch, exec, ping, \
                        info server, wait 0 1, multi";
/// The commands without which no mutex works.
const OF_MUTEX: &str = "eval evalsha time get hget exists hset pexpire set pttl del";

/// A server that is being probed.
pub(super) struct Questions<'a> {
    connector: &'a Connector,
    lock: &'a LockName,
    deadline: Deadline,
    connection: Option<Connection>,
    /// A connection could not be opened: nothing more is asked.
    is_gone: bool,
    /// The answer to `INFO`; empty if the server refuses it.
    info: String,
    findings: Vec<Finding>,
}

type Judged = (Severity, String);

impl<'a> Questions<'a> {
    /// Returns the findings in the order of the table at [`Probe`](super::Probe).
    ///
    /// # Errors
    /// No connection can be opened.
    pub(super) fn ask_all(
        connector: &'a Connector,
        lock: &'a LockName,
        deadline: Deadline,
    ) -> Result<Vec<Finding>> {
        let mut questions = Self {
            connector,
            lock,
            deadline,
            connection: Some(connector.open()?.connection),
            is_gone: false,
            info: String::new(),
            findings: Vec::new(),
        };
        questions.info = questions.ask(&redis::cmd("INFO")).unwrap_or_default();
        questions.add("server", NotTold, |it| it.server());
        questions.add("topology", NotTold, |it| Ok(it.topology()));
        if let Some(found) = questions.sentinels() {
            questions.add("sentinels", NotTold, |_| Ok(found));
        }
        questions.add("scripts", Fails, Self::scripts);
        questions.add("wake-ups", Limits, Self::wake_ups);
        questions.add("replicas", Limits, Self::replicas);
        questions.add("memory", NotTold, |it| it.memory());
        questions.add("persistence", NotTold, |it| it.persistence());
        questions.add("clock", NotTold, Self::clock);
        // It leaves the connection in a transaction.
        questions.add("commands", NotTold, Self::commands);
        Ok(questions.findings)
    }

    /// Adds the answer to a question, or without one this severity.
    fn add(
        &mut self,
        topic: &'static str,
        otherwise: Severity,
        question: impl FnOnce(&mut Self) -> Result<Judged>,
    ) {
        let (severity, found) = question(self).unwrap_or_else(|error| {
            self.connection = self.take().ok();
            let severity = if self.is_gone { Fails } else { otherwise };
            (severity, reason(&error))
        });
        self.findings.push(Finding::new(topic, severity, found));
    }

    /// Takes the open connection, or opens another. A reply has until the deadline at most.
    fn take(&mut self) -> Result<Connection> {
        if self.is_gone || self.deadline.has_passed() {
            return Err(no_answer().into());
        }
        let connection = if let Some(connection) = self.connection.take() {
            connection
        } else {
            let opened = self.connector.open();
            opened.inspect_err(|_| self.is_gone = true)?.connection
        };
        self.limit(&connection)?;
        Ok(connection)
    }

    fn limit(&self, connection: &Connection) -> RedisResult<()> {
        let limit = self.connector.limits().answer;
        connection.set_read_timeout(Some(self.deadline.remaining_up_to(limit)))
    }

    fn use_for<T>(&mut self, work: impl FnOnce(&mut Connection) -> RedisResult<T>) -> Result<T> {
        let mut connection = self.take()?;
        let done = work(&mut connection);
        let is_finished = |error| Finished::by_error(error).is_some();
        self.connection = Some(connection).filter(|_| !done.as_ref().is_err_and(is_finished));
        Ok(done?)
    }

    fn ask<T: FromRedisValue>(&mut self, command: &Cmd) -> Result<T> {
        self.use_for(|connection| command.query(connection))
    }

    /// Returns what `INFO` says of this field.
    fn field(&self, name: &str) -> Result<&str> {
        let mut lines = self.info.lines();
        let found = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        found.ok_or_else(|| Error::other(anyhow::anyhow!("not reported by INFO")))
    }

    fn server(&self) -> Result<Judged> {
        let version = match self.field("valkey_version") {
            Ok(version) => format!("Valkey {version}"),
            Err(_) => format!("Redis {}", self.field("redis_version")?),
        };
        Ok((
            Good,
            format!("{version}, {}", self.connector.address(self.deadline)?),
        ))
    }

    fn topology(&self) -> Judged {
        let (severity, found) = if self.field("cluster_enabled").is_ok_and(|is| is == "1") {
            (
                Fails,
                "one node of a cluster: the URL must begin with redis+cluster://",
            )
        } else if self.field("role").is_ok_and(|role| role != "master") {
            (Fails, "a replica: the URL must lead to the master")
        } else if self.connector.has_locator() {
            return (Good, format!("{}, by sentinels", self.connector.server()));
        } else {
            (Good, "one server, whose failover is not followed")
        };
        (severity, found.to_owned())
    }

    /// Asks each sentinel of the URL.
    fn sentinels(&self) -> Option<Judged> {
        let survey = self.connector.survey(self.deadline)?;
        let (asked, answered, agreed) = (survey.asked, survey.answered, survey.agreed);
        let is_good = survey.differing.is_none() && asked > 1 && agreed == asked;
        let mut found = format!("{answered} of {asked} answer, {agreed} name this master");
        found.extend(survey.differing.map(|differing| format!(": {differing}")));
        Some((good_if(is_good), found))
    }

    /// Writes the key and deletes it, in a script that reads the clock as those of the locks do.
    fn write(&mut self) -> Result<Value> {
        let call = WRITES_AFTER_TIME.on([self.lock.key(), &self.lock.companion()]);
        self.use_for(|connection| call.send(connection))
    }

    fn scripts(&mut self) -> Result<Judged> {
        self.write()?;
        Ok((Good, "executed; they may write after TIME".to_owned()))
    }

    /// Writes the key, which a listener has to hear of.
    fn wake_ups(&mut self) -> Result<Judged> {
        self.connection = Some(self.take()?);
        let mut listener = self.connector.open_to_listen()?.connection;
        let id = redis::cmd("CLIENT").arg("ID").query(&mut listener)?;
        subscribe().exec(&mut listener)?;
        let mut reader = self.connector.open()?.connection;
        redirect_to(id).exec(&mut reader)?;
        let key = self.lock.key();
        redis::cmd("PTTL").arg(key).exec(&mut reader)?;
        self.write()?;
        self.limit(&listener)?;
        let message = listener.recv_response();
        let message = message.map(redis::from_redis_value::<(String, String, [String; 1])>);
        let is_heard = matches!(message, Ok(Ok((_, _, [heard]))) if heard == key);
        let a = if is_heard { "a" } else { "no" };
        Ok((good_if(is_heard), format!("{a} message arrived")))
    }

    /// Waits for the replicas to have what the questions before have written.
    fn replicas(&mut self) -> Result<Judged> {
        let connected = self.field("connected_slaves")?.parse().unwrap_or(0).max(1);
        let mut wait = redis::cmd("WAIT");
        wait.arg(connected).arg(REPLICAS_WAIT);
        let confirmed: usize = self.ask(&wait)?;
        let found = format!("{confirmed} confirmed a write within {REPLICAS_WAIT} ms");
        Ok((good_if(confirmed >= connected), found))
    }

    fn memory(&self) -> Result<Judged> {
        let (policy, most) = (self.field("maxmemory_policy")?, self.field("maxmemory")?);
        let is_good = policy == "noeviction" || most == "0";
        Ok((good_if(is_good), format!("{policy}, maxmemory {most}")))
    }

    fn persistence(&self) -> Result<Judged> {
        let has_file = self.field("aof_enabled")? == "1";
        let no = if has_file { "" } else { "no " };
        Ok((good_if(has_file), format!("{no}append-only file")))
    }

    /// Compares the clocks by the fastest of several round trips.
    fn clock(&mut self) -> Result<Judged> {
        let mut fastest = None;
        for _ in 0..SAMPLES {
            let (sent, local) = (time::now(), SystemTime::now());
            let (seconds, micros) = self.ask::<(u64, u64)>(&redis::cmd("TIME"))?;
            let took = sent.elapsed();
            let server = Duration::from_secs(seconds) + Duration::from_micros(micros);
            let local = local.duration_since(SystemTime::UNIX_EPOCH);
            let local = local.unwrap_or_default();
            let sample = (took, server, local + took / 2);
            fastest = fastest.into_iter().chain([sample]).min();
        }
        let (took, server, local) = fastest.ok_or_else(no_answer)?;
        let side = if server < local { "behind" } else { "ahead of" };
        let apart = server.abs_diff(local);
        let is_good = apart < APART + took / 2 && took < SLOW;
        let found = format!("{apart:.2?} {side} this machine's; a round trip takes {took:.2?}");
        Ok((good_if(is_good), found))
    }

    fn commands(&mut self) -> Result<Judged> {
        let mut all = Pipeline::new();
        for form in COMMANDS.split(", ") {
            let words = form.split_whitespace();
            let key = |word| if word == "KEY" { self.lock.key() } else { word };
            let words: Vec<&str> = words.map(key).collect();
            all.add_command(command(&words));
        }
        let (packed, limit) = (all.get_packed_pipeline(), self.connector.limits().answer);
        let mut answers: Vec<RedisResult<Value>> = Vec::new();
        let pass_on = |it: RedisResult<Value>| answers.push(it.and_then(Value::extract_error));
        self.use_for(|conn| exchange_each(conn, &packed, all.len(), limit, pass_on))?;
        let names = COMMANDS.split(", ").map(|form| form.split(' ').next());
        let refused = answers
            .iter()
            .map(|answer| answer.as_ref().is_err_and(is_missing));
        let missing = names
            .zip(refused)
            .filter_map(|(name, refused)| name.filter(|_| refused));
        let missing: Vec<_> = missing.collect();
        let is_of_mutex = |name: &&str| OF_MUTEX.split(' ').any(|it| it == *name);
        let found = format!("missing: {}", missing.join(", "));
        Ok(match missing.as_slice() {
            [] => (Good, "none missing".to_owned()),
            missing if missing.iter().any(is_of_mutex) => (Fails, found),
            _ => (Limits, found),
        })
    }
}

fn good_if(is_good: bool) -> Severity {
    if is_good { Good } else { Limits }
}

/// Returns true if the server does not know the command, or the access list forbids it for any key.
/// A refused key has another text.
fn is_missing(error: &RedisError) -> bool {
    let words = error.detail().unwrap_or_default();
    words.contains("to run the") || is_unknown_command(error)
}

/// Describes a failure without the user's name.
pub(super) fn reason(error: &Error) -> String {
    let source = match error {
        Error::Redis { source, .. } | Error::Unknown { source, .. } => source,
        error => return error.to_string(),
    };
    if source.is_io_error() {
        return "no answer".to_owned();
    }
    let words = source.detail().unwrap_or_default();
    let of_user = words.find("has no permissions").unwrap_or(0);
    format!("{}: {}", refusal(source), &words[of_user..])
}
