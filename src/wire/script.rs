//! A Lua script as a typed call: sent by its hash, or in full if the server does not know it.

#[cfg(feature = "testing")]
use std::collections::BTreeMap;
use std::fmt;

#[cfg(feature = "testing")]
use parking_lot::Mutex;
use redis::{
    Cmd, Connection, ErrorKind, FromRedisValue, RedisError, RedisResult, ServerErrorKind,
    ToRedisArgs, Value,
};

use super::{
    exchange::words,
    replicas::Replicas,
    within::{note, request},
};
use crate::{
    error::{Operation, Result, makes_no_sense, saying},
    token::{FencingToken, Token},
};

/// Declares scripts, by paths relative to the declaring file. Several files make one script, so
/// that scripts can share a beginning.
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

scripts! {
    RELEASE_MUTEX = "release.lua";
}

/// The form of the reply if another holder has the lock.
#[derive(Clone, Copy)]
pub(crate) enum BusyReply {
    /// 0 or nil.
    No,
    /// A list of one: an upper bound in milliseconds until the lock is free, or -1 if the lock has
    /// no end.
    NoWithTimeLeft,
}

impl BusyReply {
    pub(crate) fn flag(self) -> u8 {
        u8::from(matches!(self, Self::NoWithTimeLeft))
    }
}

/// The code before and after each script.
const REFUSAL: &str = include_str!("refusal.lua");
const PLACE: &str = "-- the script\n";

/// The source of a script without its comments, and its hash.
pub(crate) struct Script {
    name: &'static str,
    source: String,
    sha1: String,
}

impl Script {
    /// Drops the comments: the watchdog sends the full script on each new connection.
    pub(crate) fn new(name: &'static str, file: &'static str) -> Self {
        let is_code = |line: &&str| !line.trim_start().starts_with("--");
        let whole = REFUSAL.replace(PLACE, file);
        let source: String = whole.split_inclusive('\n').filter(is_code).collect();
        let sha1 = redis::Script::new(&source).get_hash().to_owned();
        #[cfg(feature = "testing")]
        NAMES.lock().insert(sha1.clone(), name);
        Self { name, source, sha1 }
    }

    pub(crate) fn on<const KEYS: usize>(&'static self, keys: [&str; KEYS]) -> Call {
        let mut by_hash = Cmd::with_capacity(USUAL_WORDS, USUAL_BYTES);
        by_hash.arg("EVALSHA").arg(&self.sha1).arg(KEYS).arg(&keys);
        Call {
            script: self,
            keys: KEYS,
            by_hash,
            first_as: None,
            asks_for_a_lock: false,
            replicas: None,
        }
    }
}

/// The names of the scripts in use, by their hashes.
#[cfg(feature = "testing")]
static NAMES: Mutex<BTreeMap<String, &str>> = Mutex::new(BTreeMap::new());

/// The script that has this hash.
#[cfg(feature = "testing")]
pub(crate) fn script_named(sha1: &str) -> Option<&'static str> {
    NAMES.lock().get(sha1).copied()
}

/// The capacity in words that fits most calls.
const USUAL_WORDS: usize = 12;
/// The capacity in bytes that fits most calls.
const USUAL_BYTES: usize = 256;
/// The number of words before the keys of an `EVAL` or `EVALSHA`.
const BEFORE_KEYS: usize = 3;

/// A script with its keys and arguments, ready to send, alone or in a pipeline.
#[derive(Clone)]
pub(crate) struct Call {
    script: &'static Script,
    keys: usize,
    /// `EVALSHA`, the hash, the number of keys, the keys, the arguments.
    by_hash: Cmd,
    /// A cheaper plain command with the same effect, for the first attempt.
    first_as: Option<Cmd>,
    asks_for_a_lock: bool,
    replicas: Option<Replicas>,
}

impl Call {
    pub(crate) fn arg(mut self, arg: impl ToRedisArgs) -> Self {
        self.by_hash.arg(arg);
        self
    }

    /// Sends this plain command on the first attempt. It need not be safe to send twice.
    pub(crate) fn first_as(mut self, command: Cmd) -> Self {
        self.first_as = Some(command);
        self
    }

    /// The call for every later attempt: always the script.
    pub(crate) fn again(mut self) -> Self {
        self.first_as = None;
        self
    }

    /// Marks the call as one that may acquire a lock.
    pub(crate) fn asking_for_a_lock(mut self) -> Self {
        self.asks_for_a_lock = true;
        self
    }

    /// False: it acquires nothing, and may be sent to a master that grants no locks yet.
    pub(crate) fn asks_for_a_lock(&self) -> bool {
        self.asks_for_a_lock
    }

    /// Succeeds only if this many replicas have the write.
    pub(crate) fn confirmed_by(mut self, replicas: Option<Replicas>) -> Self {
        self.replicas = replicas;
        self
    }

    /// The replicas that must have the write, if any.
    pub(crate) fn replicas(&self) -> Option<Replicas> {
        self.replicas
    }

    /// The command to send first: the plain command if there is one, or the script by its hash.
    pub(crate) fn command(&self) -> &Cmd {
        self.first_as.as_ref().unwrap_or(&self.by_hash)
    }

    /// The command with the full script, for a server that does not know the hash.
    pub(crate) fn whole(&self) -> Cmd {
        let room = self.script.source.len() + USUAL_BYTES;
        let mut whole = Cmd::with_capacity(USUAL_WORDS, room);
        whole.arg("EVAL").arg(&self.script.source).arg(self.keys);
        for word in words(&self.by_hash).skip(BEFORE_KEYS) {
            whole.arg(word);
        }
        whole
    }

    /// The hash of the script: equal only for calls of the same script.
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

    /// The name of the script or plain command, and all other words.
    #[cfg(feature = "testing")]
    pub(crate) fn parts(&self) -> (&str, Vec<&str>) {
        let Some(command) = &self.first_as else {
            let words = words(&self.by_hash).skip(BEFORE_KEYS);
            return (self.script.name, words.map(text).collect());
        };
        let mut words = words(command).map(text);
        (words.next().unwrap_or_default(), words.collect())
    }

    /// Sends the call, with a `WAIT` in the same write if replicas must confirm it. Too few
    /// replicas are an error, although the call was executed.
    pub(crate) fn ask(&self, conn: &mut Connection) -> RedisResult<Value> {
        match self.replicas {
            None => self.send(conn),
            Some(replicas) => self.by_hash_or_whole(|command| replicas.ask(conn, command)),
        }
    }

    /// Sends the call in one round trip, or in two if the server has lost the script: `EVAL` then
    /// loads it again.
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

    /// Adds the keys to a refusal by an access list (ACL): the server does not name them, and the
    /// caller may not know all of them.
    fn naming_its_keys(&self, error: RedisError) -> RedisError {
        let refusal = error.detail().unwrap_or_default();
        if error.kind() != ErrorKind::Server(ServerErrorKind::NoPerm) || !refusal.contains("key") {
            return error;
        }
        let keys: Vec<_> = (self.keys()).map(|key| format!("`{key}`")).collect();
        let detail = format!("{refusal}; the keys are {}", keys.join(", "));
        saying(&error, &detail)
    }

    /// Sends the call and reads 1 as true and 0 as false.
    ///
    /// # Errors
    /// Any other reply is an error too, here and below: no script returns one.
    pub(crate) fn asks(&self, conn: &mut Connection) -> RedisResult<bool> {
        yes_or_no(&self.send(conn)?)
    }

    /// Like [`asks`](Self::asks), for an operation that takes no lock: its errors carry no token.
    pub(crate) fn asks_for(&self, operation: Operation<'_>, conn: &mut Connection) -> Result<bool> {
        self.asks(conn)
            .map_err(|error| operation.unanswered(None, error))
    }

    /// Sends the call and reads a non-negative number.
    pub(crate) fn counts(&self, conn: &mut Connection) -> RedisResult<u64> {
        count(&self.send(conn)?)
    }
}

/// Leaves out the arguments, because one of them is a token.
impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("script", &self.script.name)
            .finish_non_exhaustive()
    }
}

/// Releases a lock whose value is its holder's token: the reply is 1 if the lock was ours, 0 if
/// not.
pub(crate) fn releasing(key: &str, token: &Token) -> Call {
    RELEASE_MUTEX.on([key]).arg(token.as_str())
}

/// Sends a command in one round trip. [Notes](note) an error for the pool that lent the connection.
pub(crate) fn ask<T: FromRedisValue>(command: &Cmd, conn: &mut Connection) -> RedisResult<T> {
    let reply = request(conn, &command.get_packed_command())?;
    let converted = redis::from_redis_value(reply).map_err(RedisError::from);
    converted.inspect_err(note)
}

fn text(word: &[u8]) -> &str {
    std::str::from_utf8(word).unwrap_or_default()
}

/// True if the server does not know the script's hash: send the full script.
pub(crate) fn is_unknown_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

/// Reads 1 as true and 0 as false.
pub(crate) fn yes_or_no(answer: &Value) -> RedisResult<bool> {
    match answer {
        Value::Int(1) => Ok(true),
        Value::Int(0) => Ok(false),
        _ => Err(makes_no_sense()),
    }
}

/// Reads a non-negative number.
pub(crate) fn count(answer: &Value) -> RedisResult<u64> {
    match answer {
        Value::Int(count) => u64::try_from(*count).map_err(|_| makes_no_sense()),
        _ => Err(makes_no_sense()),
    }
}

/// Reads a fencing token: a bulk string of digits.
pub(crate) fn fencing_token(answer: &Value) -> RedisResult<FencingToken> {
    let Value::BulkString(digits) = answer else {
        return Err(makes_no_sense());
    };
    text(digits)
        .parse()
        .map(FencingToken::new)
        .map_err(|_| makes_no_sense())
}
