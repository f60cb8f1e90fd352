//! Each script in Rust, with the effect of its Lua, on an [`Entry`] in place of the server's keys.

use std::collections::BTreeMap;

use redis::{RedisError, RedisResult, Value};

use super::{Companion, Entered, Entry, LockValue, MILLI, Nanos, Now, Permit, RunMark, Stored};
use crate::error::makes_no_sense;

impl Entry {
    pub(super) fn run(&mut self, script: &str, words: &[&str], now: Now) -> RedisResult<Value> {
        match (script, words) {
            ("INSPECT", [_, _]) => Ok(self.inspected(now)),
            ("FORCE_RELEASE", [_, _]) => {
                let found = self.inspected(now);
                let was_a_job = self
                    .written_by_a_job()
                    .is_some_and(|(_, told)| !told.is_empty());
                self.data.take_if(|_| was_a_job);
                let was_held = self.lock.take().is_some() || was_a_job;
                Ok(Value::Array(vec![yes(was_held), found]))
            }
            // The plain command does not check the key's type.
            ("SET", [_, _, "NX", ..]) if self.is_there() => Ok(Value::Nil),
            ("SET", [_, token, "NX", "PX", lease]) => {
                self.hold(now.after(number(lease)?), LockValue::Mutex((*token).into()));
                Ok(Value::Okay)
            }
            ("ACQUIRE_SIMPLE", [_, token, lease]) => {
                let is_ours = self.text()?.is_none_or(|holder| holder == token.as_bytes());
                if is_ours {
                    self.hold(now.after(number(lease)?), LockValue::Mutex((*token).into()));
                }
                Ok(yes(is_ours))
            }
            ("FINISH_RUN", [_, mark, token, who, kept]) => {
                Ok(self.finish_run(mark, token, who, number(kept)?, now))
            }
            ("ACQUIRE_MUTEX_UNLESS_RUN", [key, beside, _, rest @ .., period]) => {
                let words = [&[*key, *beside], rest].concat();
                self.unless_run("ACQUIRE_MUTEX", &words, number(period)?, now)
            }
            ("ACQUIRE_UNFENCED_MUTEX_UNLESS_RUN", [key, _, rest @ .., period]) => {
                let words = [&[*key], rest].concat();
                self.unless_run("ACQUIRE_UNFENCED_MUTEX", &words, number(period)?, now)
            }
            (script, words) if script.ends_with("_MUTEX") => self.mutex(script, words, now),
            (script, words) if script.ends_with("_REENTRANT") => self.reentrant(script, words, now),
            (script, words) if script.ends_with("_SEMAPHORE") => self.semaphore(script, words, now),
            (script, words) => self.read_write(script, words, now),
        }
    }

    fn inspected(&self, now: Now) -> Value {
        let pair = |field: &str, value: String| [text(field), text(&value)];
        let (kind, fields) = match self.value() {
            None => self.written_by_a_job().unwrap_or(("none", Vec::new())),
            Some(LockValue::Mutex(token)) => ("string", vec![text(token)]),
            Some(LockValue::Reentrant(entered)) => {
                let count = entered.count().to_string();
                ("hash", pair(&entered.owner, count).to_vec())
            }
            Some(LockValue::ReadWrite(ends)) => {
                let millis = |end: &Nanos| (end / MILLI).to_string();
                let fields = ends.iter().map(|(field, end)| pair(field, millis(end)));
                let kind = pair("kind", "rw".to_owned());
                ("hash", [kind].into_iter().chain(fields).flatten().collect())
            }
            Some(LockValue::Semaphore(permits)) => ("zset", Permit::told(permits)),
        };
        let left = self.millis_left(now).unwrap_or_else(|none| none);
        let Companion { token, owner, .. } = &self.companion;
        let companion = vec![
            digits(self.companion.fence),
            text(token),
            text(owner),
            digits(self.companion.since),
            digits(self.companion.reserved),
        ];
        let has_one = self.companion.fence > 0;
        Value::Array(vec![
            Value::SimpleString(kind.to_owned()),
            Value::Int(left),
            Value::Array(fields),
            Value::Array(if has_one { companion } else { Vec::new() }),
            digits(now.millis()),
        ])
    }

    fn finish_run(&mut self, mark: &str, token: &str, who: &str, kept: u64, now: Now) -> Value {
        if !matches!(self.value(), Some(LockValue::Mutex(holder)) if holder == token) {
            let is_ours = self.run.as_ref().is_some_and(|run| run.token == token);
            return yes(is_ours);
        }
        self.run = Some(RunMark {
            key: mark.to_owned(),
            at: now.millis(),
            by: who.to_owned(),
            token: token.to_owned(),
            end: now.after(kept),
        });
        self.lock = None;
        yes(true)
    }

    fn unless_run(
        &mut self,
        script: &str,
        words: &[&str],
        period: u64,
        now: Now,
    ) -> RedisResult<Value> {
        let is_within = |run: &&RunMark| now.millis().abs_diff(run.at) <= period;
        let run = self.run.as_ref().filter(is_within);
        match run.and_then(|run| run.told(now)) {
            Some(told) => Ok(told),
            None => self.mutex(script, words, now),
        }
    }

    fn mutex(&mut self, script: &str, words: &[&str], now: Now) -> RedisResult<Value> {
        let holder = self.text()?;
        let holder = holder.as_deref().map(String::from_utf8_lossy);
        let holder = holder.as_deref();
        match (script, words) {
            ("ACQUIRE_MUTEX", [_, _, token, lease, who, more @ ..]) if more.len() <= 2 => {
                let reserved = number(more.get(1).unwrap_or(&"0"))?;
                if holder.is_some_and(|holder| holder != *token) {
                    return Ok(self.refusal(more.first().unwrap_or(&"0"), Value::Nil, now));
                }
                if holder.is_none() || self.companion.token != *token {
                    self.grant(token, who, reserved, now);
                }
                self.hold(now.after(number(lease)?), LockValue::Mutex((*token).into()));
                let Companion {
                    fence,
                    reserved: following,
                    ..
                } = self.companion;
                if reserved == 0 {
                    return Ok(digits(fence));
                }
                let first = digits(fence.saturating_sub(following));
                Ok(Value::Array(vec![first, Value::Int(int(following))]))
            }
            ("ACQUIRE_UNFENCED_MUTEX", [_, token, lease, tell]) => {
                if holder.is_some_and(|holder| holder != *token) {
                    return Ok(self.refusal(tell, Value::Nil, now));
                }
                self.hold(now.after(number(lease)?), LockValue::Mutex((*token).into()));
                Ok(yes(true))
            }
            // With or without the companion.
            ("RENEW_MUTEX", [_, _, token, lease] | [_, token, lease]) => {
                let is_ours = holder == Some(token);
                if is_ours {
                    self.extend(now.after(number(lease)?));
                }
                Ok(yes(is_ours))
            }
            ("RELEASE_MUTEX", [_, token]) => {
                let is_ours = holder == Some(token);
                self.lock.take_if(|_| is_ours);
                // A job's string, such as a lock without an end.
                self.data.take_if(|_| is_ours);
                Ok(yes(is_ours))
            }
            _ => Err(makes_no_sense()),
        }
    }

    fn reentrant(&mut self, script: &str, words: &[&str], now: Now) -> RedisResult<Value> {
        let is_a_jobs = self.is_a_count_of_a_job()?;
        match self.value() {
            None | Some(LockValue::Reentrant(_)) => {}
            Some(LockValue::Mutex(_) | LockValue::Semaphore(_)) => return Err(wrong_type()),
            Some(LockValue::ReadWrite(_)) => {
                return Err(refused(
                    "WRONGKIND",
                    "a hash that is not one owner and a count",
                ));
            }
        }
        match (script, words) {
            ("ACQUIRE_REENTRANT", [.., tell, _]) if is_a_jobs => {
                Ok(self.refusal(tell, Value::Nil, now))
            }
            ("ACQUIRE_REENTRANT", [_, _, owner, token, lease, tell, ended]) => {
                if self.companion.fence <= number(ended)? && self.entered_by(owner, now).is_some() {
                    // The remains of a hold after a failover.
                    self.lock = None;
                }
                if self.lock.is_none() {
                    self.companion.fence = self.companion.fence.max(number(ended)?);
                }
                self.enter(owner, token, now.after(number(lease)?), tell, now)
            }
            ("RENEW_REENTRANT", [_, _, owner, token, lease, _]) => {
                let end = now.after(number(lease)?);
                Ok(yes(self.renew_level(owner, token, end, now)))
            }
            ("RELEASE_REENTRANT", [_, _, owner, token, _]) => {
                Ok(Value::Int(self.leave(owner, token, now)))
            }
            _ => Err(makes_no_sense()),
        }
    }

    /// Returns the holder of a reentrant lock, if it is this owner. Removes expired levels, 100 ms
    /// late like a server.
    fn entered_by(&mut self, owner: &str, now: Now) -> Option<&mut Entered> {
        match self.value_mut()? {
            LockValue::Reentrant(entered) if entered.owner == owner => {
                entered
                    .acquisitions
                    .retain(|_, end| *end + 100 * MILLI >= now.0);
                Some(entered)
            }
            _ => None,
        }
    }

    fn enter(
        &mut self,
        owner: &str,
        token: &str,
        end: Nanos,
        tell: &str,
        now: Now,
    ) -> RedisResult<Value> {
        if self.lock.is_none() {
            self.grant(token, owner, 0, now);
            let nobody_yet = Entered {
                owner: owner.to_owned(),
                ..Entered::default()
            };
            self.hold(end, LockValue::Reentrant(nobody_yet));
        }
        let Some(entered) = self.entered_by(owner, now) else {
            return Ok(self.refusal(tell, Value::Nil, now));
        };
        if entered.released.as_deref() == Some(token) {
            let reason = "its acquisition has already been released";
            return Err(refused("INVALIDTOKEN", reason));
        }
        let own_end = entered.acquisitions.entry(token.to_owned()).or_default();
        *own_end = end.max(*own_end);
        let count = entered.count();
        self.extend(end);
        let fence = digits(self.companion.fence);
        Ok(Value::Array(vec![fence, Value::Int(count)]))
    }

    /// Returns false if this acquisition is unknown or has expired.
    fn renew_level(&mut self, owner: &str, token: &str, end: Nanos, now: Now) -> bool {
        let entered = self.entered_by(owner, now);
        let own_end = entered.and_then(|entered| entered.acquisitions.get_mut(token));
        let Some(own_end) = own_end.filter(|own_end| **own_end >= now.0) else {
            return false;
        };
        *own_end = end.max(*own_end);
        self.extend(end);
        true
    }

    /// Returns the number of levels before this call; 0 if this acquisition is unknown.
    fn leave(&mut self, owner: &str, token: &str, now: Now) -> i64 {
        let Some(entered) = self.entered_by(owner, now) else {
            return 0;
        };
        let count = entered.count();
        if entered.acquisitions.remove(token).is_none() {
            return 0;
        }
        entered.released = Some(token.to_owned());
        let last = entered.acquisitions.values().copied().max().unwrap_or(0);
        if last <= now.0 {
            self.lock = None;
            return 1;
        }
        if let Some(lock) = &mut self.lock {
            lock.end = lock.end.min(last);
        }
        count
    }

    fn read_write(&mut self, script: &str, words: &[&str], now: Now) -> RedisResult<Value> {
        let ends = match self.value() {
            None if self.is_there() => {
                self.hash()?;
                return Err(refused("WRONGKIND", "a hash that is not a read-write lock"));
            }
            None => BTreeMap::new(),
            Some(LockValue::ReadWrite(ends)) => ends.clone(),
            Some(LockValue::Mutex(_) | LockValue::Semaphore(_)) => return Err(wrong_type()),
            Some(LockValue::Reentrant(_)) => {
                return Err(refused("WRONGKIND", "a hash that is not a read-write lock"));
            }
        };
        match (script, words) {
            ("ACQUIRE_READ", [_, token, lease, tell]) => {
                if ends.contains_key(&format!("w:{token}")) {
                    return Err(refused("INVALIDTOKEN", "it holds this lock for writing"));
                }
                let ours = format!("r:{token}");
                if !ends.contains_key(&ours)
                    && let Some(last) = last_end(&ends, ["w:", "i:"])
                {
                    return Ok(refusal(last, tell, yes(false), now));
                }
                self.store(ends, &ours, now.after(number(lease)?));
                Ok(yes(true))
            }
            ("ACQUIRE_WRITE", [_, _, token, lease, waits, who, tell]) => {
                let end = now.after(number(lease)?);
                self.write(ends, (token, who, end), *waits == "1", tell, now)
            }
            ("RENEW_READ_WRITE", [_, field, lease] | [_, _, field, lease]) => {
                let is_ours = ends.contains_key(*field);
                if is_ours {
                    self.store(ends, field, now.after(number(lease)?));
                }
                Ok(yes(is_ours))
            }
            ("RELEASE_READ_WRITE", [_, field]) => {
                let mut ends = ends;
                let was_ours = ends.remove(*field).is_some();
                self.store_all(ends);
                Ok(yes(was_ours))
            }
            _ => Err(makes_no_sense()),
        }
    }

    fn write(
        &mut self,
        mut ends: BTreeMap<String, Nanos>,
        (token, who, end): (&str, &str, Nanos),
        waits: bool,
        tell: &str,
        now: Now,
    ) -> RedisResult<Value> {
        let (ours, intent) = (format!("w:{token}"), format!("i:{token}"));
        if ends.contains_key(&format!("r:{token}")) {
            return Err(refused("INVALIDTOKEN", "it holds this lock for reading"));
        }
        let is_ours = ends.contains_key(&ours);
        if !is_ours && let Some(last) = last_end(&ends, ["r:", "w:"]) {
            let stands_until = ends.get(&intent).copied().unwrap_or(0);
            if waits && stands_until < now.after(500) {
                self.store(ends, &intent, now.after(1_000));
            }
            return Ok(refusal(last, tell, Value::Nil, now));
        }
        if !is_ours || self.companion.token != token {
            self.grant(token, who, 0, now);
        }
        ends.remove(&intent);
        self.store(ends, &ours, end);
        Ok(digits(self.companion.fence))
    }

    /// Sets or extends a holder of a read-write lock. Its end never moves back.
    fn store(&mut self, mut ends: BTreeMap<String, Nanos>, field: &str, end: Nanos) {
        let stored = ends.entry(field.to_owned()).or_default();
        *stored = end.max(*stored);
        self.store_all(ends);
    }

    fn store_all(&mut self, ends: BTreeMap<String, Nanos>) {
        let last = ends.values().max().copied();
        self.lock = last.map(|end| Stored {
            value: LockValue::ReadWrite(ends),
            end,
        });
    }

    fn extend(&mut self, end: Nanos) {
        if let Some(lock) = &mut self.lock {
            lock.end = lock.end.max(end);
        }
    }

    fn refusal(&self, tell: &str, bare: Value, now: Now) -> Value {
        match tell {
            "1" => Value::Array(vec![Value::Int(self.millis_left(now).unwrap_or(0))]),
            _ => bare,
        }
    }
}

impl Entered {
    fn count(&self) -> i64 {
        self.acquisitions.len().try_into().unwrap_or(i64::MAX)
    }
}

impl RunMark {
    /// Returns the mark as a script returns it; `None` once it has expired.
    pub(super) fn told(&self, now: Now) -> Option<Value> {
        let parts = vec![
            text("ran"),
            digits(self.at),
            text(&self.by),
            digits(now.millis()),
        ];
        (self.end > now.0).then_some(Value::Array(parts))
    }
}

fn last_end(ends: &BTreeMap<String, Nanos>, sides: [&str; 2]) -> Option<Nanos> {
    let in_the_way =
        |(field, _): &(&String, &Nanos)| sides.iter().any(|side| field.starts_with(side));
    ends.iter().filter(in_the_way).map(|(_, end)| *end).max()
}

/// Returns a refusal, with the end of the lease that blocks it if the caller asks for that.
pub(super) fn refusal(end: Nanos, tell: &str, bare: Value, now: Now) -> Value {
    match tell {
        "1" => Value::Array(vec![Value::Int(millis_until(end, now))]),
        _ => bare,
    }
}

pub(super) fn millis_until(end: Nanos, Now(now): Now) -> i64 {
    int(end.saturating_sub(now) / MILLI)
}

pub(super) fn text(text: &str) -> Value {
    Value::BulkString(text.into())
}

fn digits(number: u64) -> Value {
    text(&number.to_string())
}

pub(super) fn yes(is_so: bool) -> Value {
    Value::Int(is_so.into())
}

pub(super) fn int(number: u64) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

pub(super) fn number(text: &str) -> RedisResult<u64> {
    text.parse().map_err(|_| makes_no_sense())
}

pub(super) fn wrong_type() -> RedisError {
    refused(
        "WRONGTYPE",
        "Operation against a key holding the wrong kind of value",
    )
}

/// Returns an error like the server's, with this code.
pub(super) fn refused(code: &str, text: &str) -> RedisError {
    redis::make_extension_error(code.to_owned(), Some(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Execution, Store},
        *,
    };

    #[test]
    fn a_call_with_wrong_arguments_is_an_error() {
        // The maximum: the last two of a mutex are optional.
        let calls: [(&str, usize); 13] = [
            ("ACQUIRE_MUTEX", 7),
            ("ACQUIRE_UNFENCED_MUTEX", 4),
            ("RENEW_MUTEX", 4),
            ("RELEASE_MUTEX", 2),
            ("ACQUIRE_REENTRANT", 7),
            ("RENEW_REENTRANT", 6),
            ("RELEASE_REENTRANT", 5),
            ("ACQUIRE_READ", 4),
            ("RENEW_READ_WRITE", 4),
            ("RELEASE_READ_WRITE", 2),
            ("ACQUIRE_SEMAPHORE", 7),
            ("RENEW_SEMAPHORE", 4),
            ("RELEASE_SEMAPHORE", 3),
        ];
        for (script, count) in calls {
            let words = |count| vec!["1"; count];
            let mut store = Store::default();
            let answer = |ran: Execution| ran.answer;
            let right = answer(store.run((script, words(count)), Now(0)));
            assert!(right.is_ok(), "{script}: {right:?}");
            let mut store = Store::default();
            let wrong = answer(store.run((script, words(count + 1)), Now(0)));
            assert!(wrong.is_err(), "{script}: {wrong:?}");
        }
        let unknown = Store::default().run(("NO_SUCH_SCRIPT", vec!["1"]), Now(0));
        assert!(unknown.answer.is_err(), "{unknown:?}");
    }
}
