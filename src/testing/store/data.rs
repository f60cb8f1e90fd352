//! The data of jobs: strings and hashes, with their Redis commands.

use std::collections::BTreeMap;

use redis::{RedisError, RedisResult, Value, parse_redis_value};

use super::{
    Content, Entry, Kind, Nanos, Now, Store, Stored,
    scripts::{int, millis_until, not_a_number, number, refused, text, wrong_type, yes},
};
use crate::wire::script_named;

/// A command with its arguments.
pub(in crate::testing) type Words = Vec<Vec<u8>>;

/// A test's function that replies to commands.
pub(in crate::testing) type Answer = Box<dyn FnMut(&[&str]) -> Option<Value> + Send>;

pub(in crate::testing) type Hash = BTreeMap<Vec<u8>, Vec<u8>>;

impl Store {
    /// Executes one command. A test may reply first, except to commands on the key of a lock.
    pub(in crate::testing) fn command(&mut self, words: &Words, now: Now) -> Value {
        let texts = texts(words);
        let texts: Vec<&str> = texts.iter().map(|text| &**text).collect();
        let executed = match self.answered(&texts) {
            Some(answer) => Ok(answer),
            None => self.executed(words, &texts, now),
        };
        let refusal = |error: RedisError| {
            let code = error.code().unwrap_or("ERR");
            server_error(&format!("{code} {}", error.detail().unwrap_or_default()))
        };
        executed.unwrap_or_else(refusal)
    }

    fn answered(&mut self, words: &[&str]) -> Option<Value> {
        let is_of_a_lock = self.is_lock(lock_key(first_key(words)?));
        self.answer.as_mut().filter(|_| !is_of_a_lock)?(words)
    }

    fn executed(&mut self, words: &Words, texts: &[&str], now: Now) -> RedisResult<Value> {
        let name = texts.first().unwrap_or(&"").to_uppercase();
        match (&*name, texts.get(1..).unwrap_or_default()) {
            ("PING", []) => Ok(Value::SimpleString("PONG".to_owned())),
            ("TIME", []) => {
                let (seconds, micros) = (now.micros() / 1_000_000, now.micros() % 1_000_000);
                let parts = [seconds, micros].map(|number| text(&number.to_string()));
                Ok(Value::Array(parts.to_vec()))
            }
            ("EVAL", [source, _, words @ ..]) => {
                let hash = redis::Script::new(source).get_hash().to_owned();
                self.script(&hash, words, now)
            }
            ("EVALSHA", [hash, _, words @ ..]) => self.script(hash, words, now),
            ("DEL" | "UNLINK" | "EXISTS", keys) if !keys.is_empty() => {
                let is_read = name == "EXISTS";
                let there = keys.iter().filter(|key| {
                    self.change(key, now, |entry| {
                        let was_there = entry.stored.is_some();
                        entry.stored.take_if(|_| !is_read);
                        was_there
                    })
                });
                Ok(Value::Int(int(there.count() as u64)))
            }
            ("MGET", keys) if !keys.is_empty() => {
                let values = keys.iter().map(|key| {
                    let read = |entry: &mut Entry| entry.text().ok().flatten();
                    self.change(key, now, read)
                        .map_or(Value::Nil, Value::BulkString)
                });
                Ok(Value::Array(values.collect()))
            }
            // Returns all keys at once, for a pattern whose only `*` is at its end.
            ("SCAN", [_, "MATCH", pattern, ..]) => {
                let start = pattern
                    .strip_suffix('*')
                    .unwrap_or(pattern)
                    .replace('\\', "");
                let mut keys: Vec<_> = self.entries.keys().cloned().collect();
                let mut is_there =
                    |key: &str| self.change(key, now, |entry| entry.stored.is_some());
                keys.retain(|key| key.starts_with(&start) && is_there(key));
                let keys = keys.iter().map(|key| text(key)).collect();
                Ok(Value::Array(vec![text("0"), Value::Array(keys)]))
            }
            (_, [key, ..]) => {
                let arguments: Vec<&[u8]> = words.iter().skip(2).map(|word| &**word).collect();
                self.change(key, now, |entry| entry.command(&name, &arguments, now))
            }
            _ => Err(unknown(&name)),
        }
    }

    fn script(&mut self, hash: &str, words: &[&str], now: Now) -> RedisResult<Value> {
        let script = script_named(hash).ok_or_else(|| unknown("EVAL"))?;
        if let ("PROVE", [key, proof, _, field]) = (script, words) {
            return Ok(self.prove(lock_key(key), proof, field, now));
        }
        self.run(script, words, now)
    }

    /// Sets the proof to end with this hold.
    fn prove(&mut self, lock: &str, proof: &str, field: &str, now: Now) -> Value {
        let end = self.change(lock, now, |entry| entry.hold_end(field));
        let proven = end.map(|end| Stored {
            content: Content::Text(b"1".into()),
            end: Some(end),
        });
        self.change(proof, now, |entry| entry.stored = proven);
        yes(true)
    }
}

impl Entry {
    pub(super) fn command(
        &mut self,
        name: &str,
        arguments: &[&[u8]],
        now: Now,
    ) -> RedisResult<Value> {
        let bulk = |value: Option<&Vec<u8>>| value.cloned().map_or(Value::Nil, Value::BulkString);
        match (name, arguments) {
            ("GET", []) => Ok(bulk(self.text()?.as_ref())),
            ("SET", [value, options @ ..]) => self.set(value, options, now),
            ("SETNX", [value]) => Ok(yes(self.set(value, &[b"NX"], now)? == Value::Okay)),
            ("SETEX", [time, value]) => self.set(value, &[b"EX", time], now),
            ("PSETEX", [time, value]) => self.set(value, &[b"PX", time], now),
            ("INCR", []) => self.add(1),
            ("DECR", []) => self.add(-1),
            ("INCRBY", [by]) => self.add(number(by)?),
            ("DECRBY", [by]) => self.add(-number::<i64>(by)?),
            ("EXPIRE", [time]) => Ok(self.expire(number::<i64>(time)?.saturating_mul(1_000), now)),
            ("PEXPIRE", [time]) => Ok(self.expire(number(time)?, now)),
            ("TTL", []) => Ok(Value::Int(
                self.millis_left(now)
                    .map_or_else(|none| none, |left| (left + 500) / 1_000),
            )),
            ("PTTL", []) => Ok(Value::Int(
                self.millis_left(now).unwrap_or_else(|none| none),
            )),
            ("HGET", [owner]) if self.is_reentrant() => Ok(self.count_of(owner)),
            ("HGET", [field]) => Ok(bulk(self.hash()?.get(*field))),
            ("HMGET", fields) if !fields.is_empty() => {
                let hash = self.hash()?;
                Ok(Value::Array(
                    fields.iter().map(|field| bulk(hash.get(*field))).collect(),
                ))
            }
            ("HGETALL", []) => {
                let pairs = self
                    .hash()?
                    .into_iter()
                    .flat_map(|(field, value)| [field, value]);
                Ok(Value::Array(pairs.map(Value::BulkString).collect()))
            }
            ("HEXISTS", [field]) => Ok(yes(self.hash()?.contains_key(*field))),
            ("HLEN", []) => Ok(Value::Int(int(self.hash()?.len() as u64))),
            ("HSET" | "HMSET", pairs) if !pairs.is_empty() && pairs.len() % 2 == 0 => {
                let mut hash = self.hash()?;
                let had = hash.len();
                let pairs = pairs
                    .chunks(2)
                    .map(|pair| (pair[0].to_vec(), pair[1].to_vec()));
                hash.extend(pairs);
                let added = hash.len() - had;
                self.keep(Content::Hash(hash));
                Ok(if name == "HSET" {
                    Value::Int(int(added as u64))
                } else {
                    Value::Okay
                })
            }
            ("HINCRBY", [field, by]) => {
                let mut hash = self.hash()?;
                let sum = sum(hash.get(*field), number(by)?)?;
                hash.insert(field.to_vec(), sum.to_string().into());
                self.keep(Content::Hash(hash));
                Ok(Value::Int(sum))
            }
            ("HDEL", fields) if !fields.is_empty() => {
                let mut hash = self.hash()?;
                let had = hash.len();
                hash.retain(|field, _| !fields.contains(&&**field));
                let removed = had - hash.len();
                if hash.is_empty() {
                    self.stored = None;
                } else {
                    self.keep(Content::Hash(hash));
                }
                Ok(Value::Int(int(removed as u64)))
            }
            _ => Err(unknown(name)),
        }
    }

    /// Returns the string at this key. A held mutex is a string: its holder's token.
    pub(super) fn text(&self) -> RedisResult<Option<Vec<u8>>> {
        match self.content() {
            Some(Content::Text(text)) => Ok(Some(text.clone())),
            None => Ok(None),
            _ => Err(wrong_type()),
        }
    }

    fn hash(&self) -> RedisResult<Hash> {
        match self.content() {
            Some(Content::Hash(hash)) => Ok(hash.clone()),
            None => Ok(Hash::new()),
            _ => Err(wrong_type()),
        }
    }

    /// Stores a value. The key keeps its end.
    fn keep(&mut self, content: Content) {
        let end = self.stored.as_ref().and_then(|stored| stored.end);
        self.stored = Some(Stored { content, end });
    }

    fn set(&mut self, value: &[u8], options: &[&[u8]], now: Now) -> RedisResult<Value> {
        let is_there = self.stored.is_some();
        let (mut end, mut rest) = (None, options);
        loop {
            rest = match rest {
                [] => break,
                [b"NX", ..] if is_there => return Ok(Value::Nil),
                [b"XX", ..] if !is_there => return Ok(Value::Nil),
                [b"NX" | b"XX", rest @ ..] => rest,
                [unit @ (b"EX" | b"PX"), time, rest @ ..] => {
                    let factor = if *unit == b"EX" { 1_000 } else { 1 };
                    end = Some(now.after(number::<u64>(time)?.saturating_mul(factor)));
                    rest
                }
                _ => return Err(unknown("SET with other options than EX, PX, NX and XX")),
            };
        }
        let content = Content::Text(value.to_vec());
        self.stored = Some(Stored { content, end });
        Ok(Value::Okay)
    }

    fn add(&mut self, by: i64) -> RedisResult<Value> {
        let sum = sum(self.text()?.as_ref(), by)?;
        self.keep(Content::Text(sum.to_string().into()));
        Ok(Value::Int(sum))
    }

    fn expire(&mut self, millis: i64, now: Now) -> Value {
        let end = now.after(u64::try_from(millis).unwrap_or(0));
        let stored = self.stored.as_mut();
        yes(stored.map(|stored| stored.end = Some(end)).is_some())
    }

    /// Returns the milliseconds left. The error is the reply for a key that is missing or has no
    /// end.
    pub(super) fn millis_left(&self, now: Now) -> Result<i64, i64> {
        let stored = self.stored.as_ref().ok_or(-2)?;
        stored.end.map(|end| millis_until(end, now)).ok_or(-1)
    }

    fn is_reentrant(&self) -> bool {
        matches!(self.content(), Some(Content::Holds(Kind::Reentrant, _)))
    }

    /// Returns the number of times that this owner holds a reentrant lock.
    fn count_of(&self, owner: &[u8]) -> Value {
        match self.content() {
            Some(Content::Holds(_, levels)) if self.companion.owner.as_bytes() == owner => {
                text(&levels.len().to_string())
            }
            _ => Value::Nil,
        }
    }

    /// Returns the end of a hold, unless it is that of a mutex.
    fn hold_end(&self, field: &str) -> Option<Nanos> {
        match self.content()? {
            Content::Holds(_, holds) => Some(holds.get(field)?.end),
            _ => None,
        }
    }
}

/// Returns the first key of a command.
pub(super) fn first_key<'a>(words: &[&'a str]) -> Option<&'a str> {
    let at = if words.first()?.starts_with("EVAL") {
        3
    } else {
        1
    };
    words.get(at).copied()
}

/// Returns the key of the lock to which this key belongs, or the key itself.
pub(in crate::testing) fn lock_key(key: &str) -> &str {
    let beside = [":lease", ":lease:ran", ":done{", ":proof{"]
        .iter()
        .find_map(|suffix| {
            let (lock, rest) = key.split_once(suffix)?;
            (rest.is_empty() || suffix.ends_with('{')).then_some(lock)
        });
    match beside {
        Some(lock) => lock
            .strip_prefix('{')
            .and_then(|lock| lock.strip_suffix('}'))
            .unwrap_or(lock),
        None => key,
    }
}

pub(in crate::testing) fn texts(words: &Words) -> Vec<String> {
    let text = |word: &Vec<u8>| String::from_utf8_lossy(word).into_owned();
    words.iter().map(text).collect()
}

/// Returns an error reply: its code, then its text.
pub(in crate::testing) fn server_error(text: &str) -> Value {
    let line = text.replace(['\r', '\n'], " ");
    parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap_or(Value::Nil)
}

fn sum(before: Option<&Vec<u8>>, by: i64) -> RedisResult<i64> {
    let before: i64 = before.map_or(Ok(0), number)?;
    before.checked_add(by).ok_or_else(not_a_number)
}

fn unknown(name: &str) -> RedisError {
    let reason =
        format!("the stand-in does not execute `{name}` in this form: see StandIn::answer");
    refused("ERR", &reason)
}
