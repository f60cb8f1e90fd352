//! Scripts with the same effect as those of the documents, in our own words: a file's name, and its
//! Lua.

pub(crate) type Lua = (&'static str, &'static str);

/// The notes' reentrant lock: a hash of one owner and a count.
pub(crate) const ENTER: Lua = (
    "enter.lua",
    "if redis.call('EXISTS', KEYS[1]) == 1 and redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
     redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
     redis.call('EXPIRE', KEYS[1], ARGV[2])
     return 1",
);

/// The notes' release: nil, 0 or 1.
pub(crate) const LEAVE: Lua = (
    "leave.lua",
    "if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return nil end
     if redis.call('HINCRBY', KEYS[1], ARGV[1], -1) > 0 then return 0 end
     redis.call('DEL', KEYS[1])
     return 1",
);

/// The article's single-instance edition: one key for the readers, one for the writer.
pub(crate) const READ_TWO_KEY: Lua = (
    "read.lua",
    "if redis.call('EXISTS', KEYS[2]) == 1 then return 0 end
     redis.call('SETEX', KEYS[1], ARGV[1], '1')
     return 1",
);

pub(crate) const WRITE_TWO_KEY: Lua = (
    "write.lua",
    "if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
     if redis.call('SET', KEYS[2], '1', 'NX', 'EX', ARGV[1]) then return 1 end
     return 0",
);

/// The article's cluster edition: a hash of two times, by the caller's clock. A reader holds for
/// 1 s, a writer for 3 s.
pub(crate) const ACQUIRE_ONE_HASH: Lua = (
    "acquire.lua",
    "local function is_over(field, length)
       local since = redis.call('HGET', KEYS[1], field)
       return not since or ARGV[2] - since > length
     end
     if not is_over('write', 3000) then return 0 end
     if ARGV[1] == 'write' and not is_over('read', 1000) then return 0 end
     redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
     redis.call('PEXPIRE', KEYS[1], 10000)
     return 1",
);

pub(crate) const RELEASE_ONE_HASH: Lua = (
    "release.lua",
    "if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then redis.call('HDEL', KEYS[1], ARGV[1]) end",
);
