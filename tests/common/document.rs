//! A client that uses the document's reentrant lock: our own versions of its three scripts, with
//! the same effect.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use redis::{Connection, Script};

/// A client that uses the document's lock.
pub struct Document {
    pub conn: Connection,
    key: String,
}

impl Document {
    pub fn new(conn: Connection, key: &str) -> Self {
        let key = key.to_owned();
        Self { conn, key }
    }

    /// 1: acquired or re-entered, 0: held by another owner.
    pub fn acquire(&mut self, owner: &str, seconds: &str) -> redis::RedisResult<i64> {
        let script = "local free = redis.call('EXISTS', KEYS[1]) == 0 \
            if not free and redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end \
            redis.call('HINCRBY', KEYS[1], ARGV[1], '1') \
            redis.call('EXPIRE', KEYS[1], ARGV[2]) \
            return 1";
        let call = Script::new(script);
        call.key(&self.key)
            .arg(owner)
            .arg(seconds)
            .invoke(&mut self.conn)
    }

    /// nil: not this owner's, 0: still held, 1: free.
    pub fn release(&mut self, owner: &str) -> Option<i64> {
        let script = "if redis.call('HEXISTS', KEYS[1], ARGV[1]) ~= 1 then return nil end \
            local count = redis.call('HINCRBY', KEYS[1], ARGV[1], '-1') \
            if count ~= 0 then return 0 end \
            redis.call('DEL', KEYS[1]) \
            return 1";
        let script = Script::new(script);
        script
            .key(&self.key)
            .arg(owner)
            .invoke(&mut self.conn)
            .unwrap()
    }

    /// 1: renewed, 0: not this owner's.
    pub fn renew(&mut self, owner: &str, seconds: u64) -> i64 {
        let script = "if redis.call('HEXISTS', KEYS[1], ARGV[1]) ~= 1 then return 0 end \
            return redis.call('EXPIRE', KEYS[1], ARGV[2])";
        let script = Script::new(script);
        script
            .key(&self.key)
            .arg(owner)
            .arg(seconds)
            .invoke(&mut self.conn)
            .unwrap()
    }
}
