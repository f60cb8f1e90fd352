//! A script, sent by its hash and, where the server does not know it, whole.

use std::fmt;

use redis::{
    Connection, ConnectionLike, ErrorKind, FromRedisValue, RedisError, RedisResult,
    ServerErrorKind, Value,
};

use super::{
    packed::{Packed, USUAL, Word, answer_to},
    replicas::Replicas,
};
use crate::{
    error::{Operation, Result, makes_no_sense},
    exchange::leave,
    token::FencingToken,
};

pub(crate) struct Script {
    name: &'static str,
    source: String,
    sha1: String,
}

impl Script {
    /// The comments stay here: a script is sent whole to each new connection of the watchdog.
    pub(crate) fn new(name: &'static str, file: &'static str) -> Self {
        let is_code = |line: &&str| !line.trim_start().starts_with("--");
        let source: String = file.split_inclusive('\n').filter(is_code).collect();
        Self {
            name,
            sha1: redis::Script::new(&source).get_hash().to_owned(),
            source,
        }
    }

    pub(crate) fn on<const KEYS: usize>(&'static self, keys: [&str; KEYS]) -> Call {
        let by_hash = Packed::command("EVALSHA").arg(&*self.sha1);
        let by_hash = by_hash.arg(KEYS as u64).arg(keys);
        Call {
            script: self,
            by_hash,
            first_as: None,
            replicas: None,
        }
    }
}

/// A script with its keys and arguments, ready to be sent, alone or among others.
#[derive(Clone)]
pub(crate) struct Call {
    script: &'static Script,
    /// `EVALSHA`, the hash, how many keys, then these and the arguments.
    by_hash: Packed,
    /// A plain command to the same effect, for the first time that it is sent.
    first_as: Option<Packed>,
    /// How many replicas have to have what it writes, if any.
    replicas: Option<Replicas>,
}

impl Call {
    pub(crate) fn arg(mut self, arg: impl Word) -> Self {
        self.by_hash = self.by_hash.arg(arg);
        self
    }

    /// The first time that it is sent, this plain command does the same, and is cheaper. It need
    /// not be safe to send twice.
    pub(crate) fn first_as(mut self, command: Packed) -> Self {
        self.first_as = Some(command);
        self
    }

    /// It has been sent before.
    pub(crate) fn again(mut self) -> Self {
        self.first_as = None;
        self
    }

    /// What it writes counts only once so many replicas have it.
    pub(crate) fn confirmed_by(mut self, replicas: Option<Replicas>) -> Self {
        self.replicas = replicas;
        self
    }

    /// How many replicas have to have what it writes, if any.
    pub(crate) fn replicas(&self) -> Option<Replicas> {
        self.replicas
    }

    /// Sends it, for the first time or again, and in the same write asks how many replicas have it,
    /// if that counts: then too few are an error, though it was done.
    pub(crate) fn ask(&self, conn: &mut Connection, is_first: bool) -> RedisResult<Value> {
        let Some(replicas) = self.replicas else {
            return if is_first {
                self.send_first(conn)
            } else {
                self.send(conn)
            };
        };
        let answer = self.ask_with(replicas, conn, is_first);
        answer.map_err(|error| self.naming_its_keys(error))
    }

    fn ask_with(
        &self,
        replicas: Replicas,
        conn: &mut Connection,
        is_first: bool,
    ) -> RedisResult<Value> {
        if let Some(command) = self.first_as.as_ref().filter(|_| is_first) {
            return replicas.ask(conn, command.as_bytes(), 1);
        }
        match replicas.ask(conn, self.by_hash(), 1) {
            Err(error) if is_unknown_script(&error) => {
                replicas.ask(conn, self.whole().as_bytes(), 1)
            }
            answer => answer,
        }
    }

    /// The first of its keys, which is in the same slot as all others.
    #[cfg(feature = "cluster")]
    pub(crate) fn key(&self) -> &str {
        let key = self.by_hash.words().nth(3).unwrap_or_default();
        std::str::from_utf8(key).unwrap_or_default()
    }

    /// Sends it for the first time.
    pub(crate) fn send_first(&self, conn: &mut dyn ConnectionLike) -> RedisResult<Value> {
        let Some(command) = &self.first_as else {
            return self.send(conn);
        };
        command.send(conn)
    }

    /// What is [sent first](Self::send_first).
    pub(crate) fn first(&self) -> &[u8] {
        self.first_as.as_ref().unwrap_or(&self.by_hash).as_bytes()
    }

    /// Sends it: one round trip; two when the server has forgotten the script, which `EVAL` then
    /// teaches it again.
    pub(crate) fn send<T: FromRedisValue>(&self, conn: &mut dyn ConnectionLike) -> RedisResult<T> {
        let answer = match answer_to(self.by_hash(), conn) {
            Err(error) if is_unknown_script(&error) => answer_to(self.whole().as_bytes(), conn),
            answer => answer,
        };
        answer
            .and_then(|answer| Ok(T::from_redis_value(answer)?))
            .inspect_err(|error| leave(conn, error))
            .map_err(|error| self.naming_its_keys(error))
    }

    /// The server does not say which keys a user may not use, and of some the caller knows nothing.
    fn naming_its_keys(&self, error: RedisError) -> RedisError {
        if error.kind() != ErrorKind::Server(ServerErrorKind::NoPerm)
            || !error.detail().is_some_and(|detail| detail.contains("key"))
        {
            return error;
        }
        let keys: Vec<_> = (self.keys()).map(|key| format!("`{key}`")).collect();
        let refusal = error.detail().unwrap_or_default();
        let detail = format!("{refusal}; they are {}", keys.join(", "));
        RedisError::from((error.kind(), "the access list is too small", detail))
    }

    fn keys(&self) -> impl Iterator<Item = &str> {
        let count = self.by_hash.words().nth(2).and_then(text);
        let count = count.and_then(|count| count.parse().ok()).unwrap_or(0);
        self.by_hash.words().skip(3).take(count).filter_map(text)
    }

    /// Sends it and takes 1 for yes and 0 for no. Any other answer is none that the script gives.
    pub(crate) fn asks(&self, conn: &mut dyn ConnectionLike) -> RedisResult<bool> {
        yes_or_no(&self.send(conn)?)
    }

    /// The same for an operation that takes no lock, so that an error names no token.
    pub(crate) fn asks_for(
        &self,
        operation: Operation<'_>,
        conn: &mut dyn ConnectionLike,
    ) -> Result<bool> {
        self.asks(conn)
            .map_err(|error| operation.unanswered(None, error))
    }

    /// Sends it and takes a fencing token, or nil where none is granted. Any other answer is none
    /// that the script gives.
    pub(crate) fn grants(
        &self,
        conn: &mut dyn ConnectionLike,
    ) -> RedisResult<Option<FencingToken>> {
        match self.send(conn)? {
            Value::Nil => Ok(None),
            fence => fencing_token(&fence).map(Some),
        }
    }

    /// Sends it and takes a number that is not negative. Any other answer is none that the script
    /// gives.
    pub(crate) fn counts(&self, conn: &mut dyn ConnectionLike) -> RedisResult<u64> {
        count(&self.send(conn)?)
    }

    /// The command that names the script by its hash.
    pub(crate) fn by_hash(&self) -> &[u8] {
        self.by_hash.as_bytes()
    }

    /// The command that carries the script.
    pub(crate) fn whole(&self) -> Packed {
        let mut whole = Packed::with_capacity(self.script.source.len() + USUAL);
        whole.push(b"EVAL");
        whole.push(self.script.source.as_bytes());
        for word in self.by_hash.words().skip(2) {
            whole.push(word);
        }
        whole
    }

    /// The same for two calls exactly if they are of the same script.
    pub(crate) fn script(&self) -> &'static str {
        &self.script.sha1
    }

    /// The name of the script, and its keys and arguments.
    #[cfg(feature = "testing")]
    pub(crate) fn parts(&self) -> (&'static str, Vec<&str>) {
        (self.script.name, texts(self.by_hash.words().skip(3)))
    }

    /// The same of what is [sent first](Self::send_first).
    #[cfg(feature = "testing")]
    pub(crate) fn first_parts(&self) -> (&str, Vec<&str>) {
        let Some(command) = &self.first_as else {
            return self.parts();
        };
        let name = texts(command.words()).first().copied();
        (name.unwrap_or_default(), texts(command.words().skip(1)))
    }
}

#[cfg(feature = "testing")]
fn texts<'a>(words: impl Iterator<Item = &'a [u8]>) -> Vec<&'a str> {
    let text = |word| std::str::from_utf8(word).unwrap_or_default();
    words.map(text).collect()
}

fn text(word: &[u8]) -> Option<&str> {
    std::str::from_utf8(word).ok()
}

/// Without the arguments: one of them is a token.
impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("script", &self.script.name)
            .finish_non_exhaustive()
    }
}

/// The server does not know the script: send it whole.
pub(crate) fn is_unknown_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

/// 1 or 0.
pub(crate) fn yes_or_no(answer: &Value) -> RedisResult<bool> {
    match answer {
        Value::Int(1) => Ok(true),
        Value::Int(0) => Ok(false),
        _ => Err(makes_no_sense()),
    }
}

/// A number that is not negative.
pub(crate) fn count(answer: &Value) -> RedisResult<u64> {
    match answer {
        Value::Int(count) => u64::try_from(*count).map_err(|_| makes_no_sense()),
        _ => Err(makes_no_sense()),
    }
}

/// A fencing token as scripts answer it: digits.
pub(crate) fn fencing_token(answer: &Value) -> RedisResult<FencingToken> {
    let Value::BulkString(digits) = answer else {
        return Err(makes_no_sense());
    };
    String::from_utf8_lossy(digits)
        .parse()
        .map(FencingToken::new)
        .map_err(|_| makes_no_sense())
}
