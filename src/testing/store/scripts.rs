//! The scripts of the locks in Rust.

use std::str::FromStr;

use redis::{RedisError, RedisResult, Value};

use super::{
    Companion, Content, Entry, Holds, Kind, MILLI, Nanos, Now, RunMark, Stored, StoredHold,
};

impl Entry {
    pub(super) fn run(&mut self, script: &str, words: &[&str], now: Now) -> RedisResult<Value> {
        match (script, words) {
            ("INSPECT", _) => Ok(self.inspected(now)),
            ("FORCE_RELEASE", _) => {
                let found = self.inspected(now);
                let is_lock = |stored: &mut Stored| !matches!(stored.content, Content::Hash(_));
                let was_held = self.stored.take_if(is_lock).is_some();
                Ok(Value::Array(vec![yes(was_held), found]))
            }
            ("LAST_RUN", _) => Ok(self.last_run(now).unwrap_or(Value::Nil)),
            ("FINISH_RUN", [_, _, token, who, kept]) => {
                Ok(self.finish_run(token, who, number(kept)?, now))
            }
            ("SET", [_, arguments @ ..]) => {
                let arguments: Vec<_> = arguments.iter().map(|word| word.as_bytes()).collect();
                self.command("SET", &arguments, now)
            }
            ("ACQUIRE_MUTEX_UNLESS_RUN", [key, beside, _, rest @ .., period]) => {
                let words = [&[*key, *beside], rest].concat();
                self.unless_run("ACQUIRE_MUTEX", &words, number(period)?, now)
            }
            ("ACQUIRE_UNFENCED_MUTEX_UNLESS_RUN", [key, _, rest @ .., period]) => {
                let words = [&[*key], rest].concat();
                self.unless_run("ACQUIRE_UNFENCED_MUTEX", &words, number(period)?, now)
            }
            ("ACQUIRE_REENTRANT", [_, _, owner, token, lease, tell, _]) => {
                let end = now.after(number(lease)?);
                self.enter((owner, token, end), tell, now)
            }
            ("RENEW_REENTRANT" | "RELEASE_REENTRANT", [_, _, owner, ..])
                if self.companion.owner != **owner =>
            {
                self.holds(Kind::Reentrant).map(|_| yes(false))
            }
            ("RENEW_REENTRANT", [_, _, _, token, lease, _]) => {
                self.renew(Kind::Reentrant, &format!("t:{token}"), lease, now)
            }
            ("RELEASE_REENTRANT", [_, _, _, token, _]) => {
                let count = self.release(Kind::Reentrant, &format!("t:{token}"), now)?;
                Ok(Value::Int(int(count)))
            }
            ("ACQUIRE_READ", [_, token, lease, tell]) => {
                let end = now.after(number(lease)?);
                self.read((token, end), tell, now)
            }
            ("ACQUIRE_WRITE", [_, _, token, lease, waits, who, tell]) => {
                let end = now.after(number(lease)?);
                self.write((token, who, end), *waits == "1", tell, now)
            }
            ("RENEW_READ_WRITE", [.., field, lease]) => {
                self.renew(Kind::ReadWrite, field, lease, now)
            }
            ("RELEASE_READ_WRITE", [_, field]) => {
                Ok(yes(self.release(Kind::ReadWrite, field, now)? > 0))
            }
            ("ACQUIRE_SEMAPHORE", [_, _, token, lease, count, who, tell]) => {
                let described = format!("{} {count} {who}", now.millis());
                let end = now.after(number(lease)?);
                self.take(
                    (token, StoredHold { end, described }),
                    number(count)?,
                    tell,
                    now,
                )
            }
            ("RENEW_SEMAPHORE", [.., token, lease]) => {
                self.renew(Kind::Semaphore, token, lease, now)
            }
            ("RELEASE_SEMAPHORE", [.., token]) => {
                Ok(yes(self.release(Kind::Semaphore, token, now)? > 0))
            }
            (script, words) => self.mutex(script, words, now),
        }
    }

    fn inspected(&self, now: Now) -> Value {
        let (kind, fields) = match self.content() {
            None => ("none", Vec::new()),
            Some(Content::Text(token)) => ("string", vec![Value::BulkString(token.clone())]),
            Some(Content::Hash(_)) => ("hash", Vec::new()),
            Some(Content::Holds(Kind::Reentrant, levels)) => {
                let count = digits(levels.len() as u64);
                ("hash", vec![text(&self.companion.owner), count])
            }
            Some(Content::Holds(Kind::ReadWrite, holds)) => {
                let ends = holds.iter().map(|(field, hold)| (field, hold.end));
                let fields = ends.flat_map(|(field, end)| [text(field), digits(end / MILLI)]);
                (
                    "hash",
                    [text("kind"), text("rw")]
                        .into_iter()
                        .chain(fields)
                        .collect(),
                )
            }
            Some(Content::Holds(Kind::Semaphore, permits)) => {
                let mut permits: Vec<_> = permits.iter().collect();
                permits.sort_by_key(|(_, permit)| permit.end);
                let told = permits.into_iter().flat_map(|(token, permit)| {
                    [
                        text(token),
                        digits(permit.end / MILLI),
                        text(&permit.described),
                    ]
                });
                ("zset", told.collect())
            }
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

    fn finish_run(&mut self, token: &str, who: &str, kept: u64, now: Now) -> Value {
        if !matches!(self.content(), Some(Content::Text(holder)) if holder == token.as_bytes()) {
            let is_ours = self.run.as_ref().is_some_and(|run| run.token == token);
            return yes(is_ours);
        }
        self.run = Some(RunMark {
            at: now.millis(),
            by: who.to_owned(),
            token: token.to_owned(),
            end: now.after(kept),
        });
        self.stored = None;
        yes(true)
    }

    /// Returns the mark as a script returns it; `None` once it has expired.
    fn last_run(&self, now: Now) -> Option<Value> {
        let run = self.run.as_ref().filter(|run| run.end > now.0)?;
        let parts = [
            text("ran"),
            digits(run.at),
            text(&run.by),
            digits(now.millis()),
        ];
        Some(Value::Array(parts.into()))
    }

    fn unless_run(
        &mut self,
        script: &str,
        words: &[&str],
        period: u64,
        now: Now,
    ) -> RedisResult<Value> {
        let is_within = |run: &RunMark| now.millis().abs_diff(run.at) <= period;
        match self.last_run(now) {
            Some(told) if self.run.as_ref().is_some_and(is_within) => Ok(told),
            _ => self.mutex(script, words, now),
        }
    }

    fn mutex(&mut self, script: &str, words: &[&str], now: Now) -> RedisResult<Value> {
        let holder = self.text()?;
        let is_free = holder.is_none();
        let is_held_by = |token: &str| holder.is_some_and(|holder| holder == token.as_bytes());
        match (script, words) {
            ("ACQUIRE_MUTEX", [_, _, token, lease, who, more @ ..]) if more.len() <= 2 => {
                let reserved = number(more.get(1).unwrap_or(&"0"))?;
                if !is_free && !is_held_by(token) {
                    return Ok(self.refusal(more.first().unwrap_or(&"0"), now));
                }
                if is_free || self.companion.token != *token {
                    self.grant(token, who, reserved, now);
                }
                self.hold(token, number(lease)?, now);
                let (fence, following) = (self.companion.fence, self.companion.reserved);
                if reserved == 0 {
                    return Ok(digits(fence));
                }
                let first = digits(fence.saturating_sub(following));
                Ok(Value::Array(vec![first, Value::Int(int(following))]))
            }
            ("ACQUIRE_UNFENCED_MUTEX", [_, token, lease, tell]) => {
                if !is_free && !is_held_by(token) {
                    return Ok(self.refusal(tell, now));
                }
                self.hold(token, number(lease)?, now);
                Ok(yes(true))
            }
            ("ACQUIRE_SIMPLE", [_, token, lease]) => {
                let is_ours = is_held_by(token);
                let end = Some(number(lease)?).filter(|lease| *lease > 0);
                let end = end.map(|lease| now.after(lease));
                match &mut self.stored {
                    None => {
                        let content = Content::Text((*token).into());
                        self.stored = Some(Stored { content, end });
                    }
                    Some(stored) if is_ours => stored.end = end.or(stored.end),
                    Some(stored) => stored.end = stored.end.or(end),
                }
                Ok(yes(is_free || is_ours))
            }
            ("RENEW_MUTEX", [.., token, lease]) => {
                let (end, is_ours) = (now.after(number(lease)?), is_held_by(token));
                if let Some(stored) = self.stored.as_mut().filter(|_| is_ours) {
                    // A key without an end stays without one.
                    stored.end = stored.end.map(|before| before.max(end));
                }
                Ok(yes(is_ours))
            }
            ("RELEASE_MUTEX", [_, token]) => {
                let is_ours = is_held_by(token);
                self.stored.take_if(|_| is_ours);
                Ok(yes(is_ours))
            }
            _ => {
                let arguments = words.len();
                let text = format!("the stand-in has no {script} with {arguments} arguments");
                Err(refused("ERR", &text))
            }
        }
    }

    /// Sets a mutex, or extends it. Its end never moves back. One without an end stays without.
    fn hold(&mut self, token: &str, lease: u64, now: Now) {
        let end = now.after(lease);
        let content = Content::Text(token.into());
        let stored = self.stored.get_or_insert(Stored {
            content,
            end: Some(end),
        });
        stored.end = stored.end.map(|before| before.max(end));
    }

    /// Returns the holds of a lock of this kind; `None` if it is free.
    ///
    /// # Errors
    /// The key holds something else.
    fn holds(&mut self, kind: Kind) -> RedisResult<Option<&mut Holds>> {
        match self.content_mut() {
            None => Ok(None),
            Some(Content::Holds(found, holds)) if *found == kind => Ok(Some(holds)),
            _ => Err(refused("WRONGKIND", "a key of another kind")),
        }
    }

    /// Sets or extends a hold. Its end never moves back.
    fn put(&mut self, kind: Kind, field: &str, wanted: StoredHold) -> RedisResult<()> {
        let end = wanted.end;
        if self.holds(kind)?.is_none() {
            let content = Content::Holds(kind, Holds::new());
            self.stored = Some(Stored { content, end: None });
        }
        if let Some(holds) = self.holds(kind)? {
            let hold = holds.entry(field.to_owned()).or_insert(wanted);
            hold.end = hold.end.max(end);
        }
        self.end_with_the_last_hold();
        Ok(())
    }

    fn renew(&mut self, kind: Kind, field: &str, lease: &str, now: Now) -> RedisResult<Value> {
        let end = now.after(number(lease)?);
        let holds = self.holds(kind)?;
        let ours = holds.and_then(|holds| holds.get_mut(field).filter(|hold| hold.end >= now.0));
        let is_ours = ours.map(|hold| hold.end = hold.end.max(end)).is_some();
        self.end_with_the_last_hold();
        Ok(yes(is_ours))
    }

    /// Returns the number of holds before the release; 0 if this one is unknown.
    fn release(&mut self, kind: Kind, field: &str, now: Now) -> RedisResult<u64> {
        let holds = self.holds(kind)?;
        let is_known = |holds: &&mut Holds| holds.get(field).is_some_and(|hold| counts(hold, now));
        let Some(holds) = holds.filter(is_known) else {
            return Ok(0);
        };
        let count = remove_over(holds, now);
        holds.remove(field);
        self.end_with_the_last_hold();
        self.remove_expired(now);
        Ok(if self.stored.is_none() { 1 } else { count })
    }

    fn end_with_the_last_hold(&mut self) {
        if let Some(Stored {
            content: Content::Holds(_, holds),
            end,
        }) = &mut self.stored
        {
            *end = Some(holds.values().map(|hold| hold.end).max().unwrap_or(0));
        }
    }

    fn enter(
        &mut self,
        (owner, token, end): (&str, &str, Nanos),
        tell: &str,
        now: Now,
    ) -> RedisResult<Value> {
        let is_free = self.holds(Kind::Reentrant)?.is_none();
        let is_ours = self.companion.owner == owner;
        if is_free {
            self.grant(token, owner, 0, now);
        } else if !is_ours {
            return Ok(self.refusal(tell, now));
        }
        let described = String::new();
        self.put(
            Kind::Reentrant,
            &format!("t:{token}"),
            StoredHold { end, described },
        )?;
        let levels = self.holds(Kind::Reentrant)?;
        let count = levels.map_or(0, |levels| remove_over(levels, now));
        let fence = digits(self.companion.fence);
        Ok(Value::Array(vec![fence, Value::Int(int(count))]))
    }

    fn read(&mut self, (token, end): (&str, Nanos), tell: &str, now: Now) -> RedisResult<Value> {
        let ours = format!("r:{token}");
        if let Some(holds) = self.holds(Kind::ReadWrite)?
            && !holds.contains_key(&ours)
            && let Some(last) = last_end(holds, ["w:", "i:"])
        {
            return Ok(refusal(millis_until(last, now), tell, yes(false)));
        }
        let described = String::new();
        self.put(Kind::ReadWrite, &ours, StoredHold { end, described })?;
        Ok(yes(true))
    }

    fn write(
        &mut self,
        (token, who, end): (&str, &str, Nanos),
        waits: bool,
        tell: &str,
        now: Now,
    ) -> RedisResult<Value> {
        let (ours, intent) = (format!("w:{token}"), format!("i:{token}"));
        let hold = |end| StoredHold {
            end,
            ..StoredHold::default()
        };
        let mut is_ours = false;
        if let Some(holds) = self.holds(Kind::ReadWrite)? {
            is_ours = holds.contains_key(&ours);
            let stands_until = holds.get(&intent).map_or(0, |intent| intent.end);
            let last = last_end(holds, ["r:", "w:"]);
            if let Some(last) = last.filter(|_| !is_ours) {
                if waits && stands_until < now.after(500) {
                    self.put(Kind::ReadWrite, &intent, hold(now.after(1_000)))?;
                }
                return Ok(refusal(millis_until(last, now), tell, Value::Nil));
            }
            holds.remove(&intent);
        }
        if !is_ours || self.companion.token != token {
            self.grant(token, who, 0, now);
        }
        self.put(Kind::ReadWrite, &ours, hold(end))?;
        Ok(digits(self.companion.fence))
    }

    /// Takes one of `count` permits.
    fn take(
        &mut self,
        (token, wanted): (&str, StoredHold),
        count: u64,
        tell: &str,
        now: Now,
    ) -> RedisResult<Value> {
        // The end of the permit that must end before one of `count` is free.
        let awaited = |permits: &Holds| {
            let mut ends: Vec<Nanos> = permits.values().map(|permit| permit.end).collect();
            ends.sort_unstable();
            let more = (permits.len() as u64).saturating_sub(count);
            let place = usize::try_from(more).unwrap_or(usize::MAX);
            millis_until(ends.get(place).copied().unwrap_or(0), now)
        };
        if let Some(permits) = self.holds(Kind::Semaphore)?
            && !permits.contains_key(token)
            && permits.len() as u64 >= count
        {
            return Ok(refusal(awaited(permits), tell, Value::Nil));
        }
        self.put(Kind::Semaphore, token, wanted)?;
        let permits = self
            .holds(Kind::Semaphore)?
            .map_or_else(Holds::new, |permits| permits.clone());
        let with_ours = (count + 1).saturating_sub(permits.len() as u64).max(1);
        Ok(match (with_ours, tell) {
            (1, "1") => Value::Array(vec![Value::Int(1), Value::Int(awaited(&permits))]),
            (with_ours, _) => Value::Int(int(with_ours)),
        })
    }

    fn refusal(&self, tell: &str, now: Now) -> Value {
        let left = self.millis_left(now).unwrap_or_else(|none| none);
        refusal(left, tell, Value::Nil)
    }
}

/// Like a server, counts a level for 100 ms after its end.
fn counts(level: &StoredHold, now: Now) -> bool {
    level.end + 100 * MILLI >= now.0
}

/// Removes the levels that no longer count. Returns the number of the others.
fn remove_over(levels: &mut Holds, now: Now) -> u64 {
    levels.retain(|_, level| counts(level, now));
    levels.len() as u64
}

fn last_end(holds: &Holds, sides: [&str; 2]) -> Option<Nanos> {
    let in_the_way = |field: &str| sides.iter().any(|side| field.starts_with(side));
    let ends = holds.iter().filter(|(field, _)| in_the_way(field));
    ends.map(|(_, hold)| hold.end).max()
}

/// Returns a refusal, with the milliseconds until the end of the lease that blocks it if the caller
/// asks for them.
fn refusal(left: i64, tell: &str, bare: Value) -> Value {
    match tell {
        "1" => Value::Array(vec![Value::Int(left)]),
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

pub(super) fn number<T: FromStr>(word: impl AsRef<[u8]>) -> RedisResult<T> {
    let word = std::str::from_utf8(word.as_ref()).ok();
    let number = word.and_then(|word| word.parse().ok());
    number.ok_or_else(not_a_number)
}

pub(super) fn not_a_number() -> RedisError {
    refused("ERR", "value is not an integer or out of range")
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
