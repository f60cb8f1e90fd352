//! A Lua file as a typed call: sent by its hash, and whole where the server does not know it.

use std::fmt;

use redis::{
    Cmd, Connection, ErrorKind, FromRedisValue, RedisError, RedisResult, ServerErrorKind,
    ToRedisArgs, Value,
};

use super::{exchange::words, finished::note, replicas::Replicas};
use crate::{
    error::{Operation, Result, makes_no_sense},
    token::FencingToken,
};

/// Declares scripts, by paths from the file that declares them: a script may begin with what
/// several have in common.
macro_rules! scripts {
    ($($name:ident = $first:literal $(then $more:literal)*;)+) => {
        $(pub(super) static $name: std::sync::LazyLock<$crate::wire::Script> = std::sync::LazyLock::new(|| {
            $crate::wire::Script::new(stringify!($name), concat!(
                include_str!($first),
                $(include_str!($more),)*
            ))
        });)+
    };
}
pub(crate) use scripts;

/// The answer of a script that refuses a lock.
#[derive(Clone, Copy)]
pub(crate) enum Refusal {
    /// 0 or nil.
    Bare,
    /// A list of one: the milliseconds until the lock may be free, as far as is known; -1 is for
    /// ever.
    WithItsEnd,
}

impl Refusal {
    pub(crate) fn flag(self) -> u8 {
        u8::from(matches!(self, Self::WithItsEnd))
    }
}

/// A script without its comments, and the hash that names it.
pub(crate) struct Script {
    name: &'static str,
    source: String,
    sha1: String,
}

impl Script {
    /// Drops the comments: the watchdog sends a script whole on each new connection.
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
        let mut by_hash = Cmd::with_capacity(USUAL_WORDS, USUAL_BYTES);
        by_hash.arg("EVALSHA").arg(&self.sha1).arg(KEYS).arg(&keys);
        Call {
            script: self,
            keys: KEYS,
            by_hash,
            first_as: None,
            replicas: None,
        }
    }
}

/// Room for the words of most calls.
const USUAL_WORDS: usize = 12;
/// Room for the bytes of most calls.
const USUAL_BYTES: usize = 256;
/// The words of an `EVAL` or `EVALSHA` before its keys.
const BEFORE_KEYS: usize = 3;

/// A script with its keys and arguments, ready to be sent, alone or among others.
#[derive(Clone)]
pub(crate) struct Call {
    script: &'static Script,
    keys: usize,
    /// `EVALSHA`, the hash, the number of keys, the keys, the arguments.
    by_hash: Cmd,
    /// A plain command to the same effect, which is cheaper, for the first attempt.
    first_as: Option<Cmd>,
    replicas: Option<Replicas>,
}

impl Call {
    pub(crate) fn arg(mut self, arg: impl ToRedisArgs) -> Self {
        self.by_hash.arg(arg);
        self
    }

    /// Sends this plain command the first time. It need not be safe to send twice.
    pub(crate) fn first_as(mut self, command: Cmd) -> Self {
        self.first_as = Some(command);
        self
    }

    /// The call for every attempt after the first: always the script.
    pub(crate) fn again(mut self) -> Self {
        self.first_as = None;
        self
    }

    /// Counts as done only once so many replicas have the write.
    pub(crate) fn confirmed_by(mut self, replicas: Option<Replicas>) -> Self {
        self.replicas = replicas;
        self
    }

    /// The replicas that have to have the write, if any.
    pub(crate) fn replicas(&self) -> Option<Replicas> {
        self.replicas
    }

    /// The command to send first: the script by its hash, or the plain one in its place.
    pub(crate) fn command(&self) -> &Cmd {
        self.first_as.as_ref().unwrap_or(&self.by_hash)
    }

    /// The command that carries the script, for a server that does not know it.
    pub(crate) fn whole(&self) -> Cmd {
        let room = self.script.source.len() + USUAL_BYTES;
        let mut whole = Cmd::with_capacity(USUAL_WORDS, room);
        whole.arg("EVAL").arg(&self.script.source).arg(self.keys);
        for word in words(&self.by_hash).skip(BEFORE_KEYS) {
            whole.arg(word);
        }
        whole
    }

    /// The hash of the script: equal for two calls of one script only.
    pub(crate) fn script(&self) -> &'static str {
        &self.script.sha1
    }

    /// The first key. All others are in the same slot.
    #[cfg(feature = "cluster")]
    pub(crate) fn key(&self) -> &str {
        self.keys().next().unwrap_or_default()
    }

    fn keys(&self) -> impl Iterator<Item = &str> {
        let keys = words(&self.by_hash).skip(BEFORE_KEYS).take(self.keys);
        keys.map(text)
    }

    /// The name of the script or of the plain command, and all other words.
    #[cfg(feature = "testing")]
    pub(crate) fn parts(&self) -> (&str, Vec<&str>) {
        let Some(command) = &self.first_as else {
            let words = words(&self.by_hash).skip(BEFORE_KEYS);
            return (self.script.name, words.map(text).collect());
        };
        let mut words = words(command).map(text);
        (words.next().unwrap_or_default(), words.collect())
    }

    /// Sends it, and in the same write a `WAIT` if replicas have to confirm it: too few are an
    /// error, though it was done.
    pub(crate) fn ask(&self, conn: &mut Connection) -> RedisResult<Value> {
        match self.replicas {
            None => self.send(conn),
            Some(replicas) => self.by_hash_or_whole(|command| replicas.ask(conn, command)),
        }
    }

    /// Sends it: one round trip; two when the server has forgotten the script, which `EVAL` then
    /// teaches it again.
    pub(crate) fn send<T: FromRedisValue>(&self, conn: &mut Connection) -> RedisResult<T> {
        self.by_hash_or_whole(|command| ask(command, conn))
    }

    fn by_hash_or_whole<T>(&self, mut send: impl FnMut(&Cmd) -> RedisResult<T>) -> RedisResult<T> {
        let answer = match send(self.command()) {
            Err(error) if is_unknown_script(&error) => send(&self.whole()),
            answer => answer,
        };
        answer.map_err(|error| self.naming_its_keys(error))
    }

    /// Adds the keys to the refusal of an access list: the server does not name them, and of some
    /// the caller knows nothing.
    fn naming_its_keys(&self, error: RedisError) -> RedisError {
        let refusal = error.detail().unwrap_or_default();
        if error.kind() != ErrorKind::Server(ServerErrorKind::NoPerm) || !refusal.contains("key") {
            return error;
        }
        let keys: Vec<_> = (self.keys()).map(|key| format!("`{key}`")).collect();
        let detail = format!("{refusal}; they are {}", keys.join(", "));
        RedisError::from((error.kind(), "the access list is too small", detail))
    }

    /// Sends it and takes 1 for yes and 0 for no.
    ///
    /// # Errors
    /// Any other answer as well, here and below: the script gives none.
    pub(crate) fn asks(&self, conn: &mut Connection) -> RedisResult<bool> {
        yes_or_no(&self.send(conn)?)
    }

    /// As [`asks`](Self::asks), for an operation that takes no lock: its errors name no token.
    pub(crate) fn asks_for(&self, operation: Operation<'_>, conn: &mut Connection) -> Result<bool> {
        self.asks(conn)
            .map_err(|error| operation.unanswered(None, error))
    }

    /// Sends it and takes a number that is not negative.
    pub(crate) fn counts(&self, conn: &mut Connection) -> RedisResult<u64> {
        count(&self.send(conn)?)
    }
}

/// Without the arguments: one of them is a token.
impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("script", &self.script.name)
            .finish_non_exhaustive()
    }
}

/// Sends a command: one round trip. [Notes](note) an error for the pool that lent the connection.
pub(crate) fn ask<T: FromRedisValue>(command: &Cmd, conn: &mut Connection) -> RedisResult<T> {
    command.query(conn).inspect_err(note)
}

fn text(word: &[u8]) -> &str {
    std::str::from_utf8(word).unwrap_or_default()
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
    text(digits)
        .parse()
        .map(FencingToken::new)
        .map_err(|_| makes_no_sense())
}
