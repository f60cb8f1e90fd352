//! A client that uses the article's read-write locks: our own scripts with the same effect on the
//! same keys.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use redis::{Connection, Script};

/// The single-instance edition. The article gives no release script, so both locks are released by
/// `DEL`.
pub mod two_key {
    use super::{Connection, Script};

    const READ: &str = "
        if redis.call('EXISTS', KEYS[2]) ~= 0 then return 0 end
        redis.call('SETEX', KEYS[1], ARGV[1], '1')
        return 1";
    const WRITE: &str = "
        if redis.call('EXISTS', KEYS[1]) ~= 0 then return 0 end
        local set = redis.call('SET', KEYS[2], '1', 'NX', 'EX', ARGV[1])
        return set and 1 or 0";

    pub fn read(conn: &mut Connection, keys: [&str; 2], seconds: u32) -> bool {
        run(conn, READ, keys, seconds)
    }

    pub fn write(conn: &mut Connection, keys: [&str; 2], seconds: u32) -> bool {
        run(conn, WRITE, keys, seconds)
    }

    fn run(conn: &mut Connection, script: &str, keys: [&str; 2], seconds: u32) -> bool {
        let script = Script::new(script);
        script
            .key(keys[0])
            .key(keys[1])
            .arg(seconds)
            .invoke(conn)
            .unwrap()
    }
}

/// The cluster edition.
pub mod one_hash {
    use redis::Value;

    use super::{Connection, Script};

    const ACQUIRE: &str = "
        local function is_free(field, longest)
          local since = redis.call('HGET', KEYS[1], field)
          return not since or tonumber(ARGV[4]) - tonumber(since) > tonumber(longest)
        end
        if not is_free('write', ARGV[3]) then return 0 end
        if ARGV[5] == 'write' and not is_free('read', ARGV[2]) then return 0 end
        redis.call('HSET', KEYS[1], ARGV[5], tonumber(ARGV[4]))
        redis.call('PEXPIRE', KEYS[1], ARGV[1])
        return 1";
    const RELEASE: &str = "
        if redis.call('HGET', KEYS[1], ARGV[2]) ~= ARGV[1] then return end
        redis.call('HDEL', KEYS[1], ARGV[2])";

    /// The lifetimes of the key, a reader and a writer in milliseconds. The article has 10 s, 1 s
    /// and 3 s; these are long enough for a slow test.
    pub const LENGTHS: [i64; 3] = [90_000, 20_000, 30_000];

    /// `now` is this client's clock, and also its identifier. `side` is `read` or `write`.
    pub fn acquire(conn: &mut Connection, side: &str, key: &str, now: i64) -> bool {
        acquire_for(conn, side, key, &now.to_string(), LENGTHS)
    }

    /// Like `acquire`, with other lifetimes and any text as the time.
    pub fn acquire_for(
        conn: &mut Connection,
        side: &str,
        key: &str,
        now: &str,
        lengths: [i64; 3],
    ) -> bool {
        let script = Script::new(ACQUIRE);
        let mut call = script.key(key);
        call.arg(&lengths[..]).arg(now).arg(side);
        call.invoke(conn).unwrap()
    }

    pub fn release(conn: &mut Connection, side: &str, key: &str, now: &str) -> Value {
        let script = Script::new(RELEASE);
        script.key(key).arg(now).arg(side).invoke(conn).unwrap()
    }
}
