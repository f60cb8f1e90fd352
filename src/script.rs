//! The Lua files, each sent by its hash and, where the server does not know it, whole.

use std::sync::LazyLock;

use redis::{Cmd, ConnectionLike, ErrorKind, FromRedisValue, RedisResult, ServerErrorKind, Value};

use crate::{error::makes_no_sense, exchange::close_if_reset, name::LockName, token::Token};

static ACQUIRE_SIMPLE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("recipes/lua/acquire_simple.lua")));

/// One more attempt at a book lock: takes it if it is free or ours already, gives it an end if it has none.
pub(crate) fn acquire_simple(
    conn: &mut dyn ConnectionLike,
    lock: &LockName,
    token: &Token,
    lease_millis: Option<u64>,
) -> RedisResult<bool> {
    let answer = ACQUIRE_SIMPLE.call(conn, &[lock.key()], |args| {
        args.arg(token.as_str()).arg(lease_millis.unwrap_or(0));
    })?;
    match answer {
        Value::Int(1) => Ok(true),
        Value::Int(0) => Ok(false),
        _ => Err(makes_no_sense()),
    }
}

struct Script {
    source: &'static str,
    sha1: String,
}

impl Script {
    fn new(source: &'static str) -> Self {
        Self {
            source,
            sha1: redis::Script::new(source).get_hash().to_owned(),
        }
    }

    /// One round trip; two when the server has forgotten the script, which `EVAL` then teaches it again.
    fn call<T: FromRedisValue>(
        &self,
        conn: &mut dyn ConnectionLike,
        keys: &[&str],
        add_args: impl Fn(&mut Cmd),
    ) -> RedisResult<T> {
        let invoke = |command: &str, script: &str, conn: &mut dyn ConnectionLike| {
            let mut cmd = redis::cmd(command);
            cmd.arg(script).arg(keys.len()).arg(keys);
            add_args(&mut cmd);
            cmd.query(conn)
        };
        match invoke("EVALSHA", &self.sha1, conn) {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                invoke("EVAL", self.source, conn)
            }
            answer => answer,
        }
        .inspect_err(|error| close_if_reset(conn, error))
    }
}
