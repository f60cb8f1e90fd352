-- Prepended to each script of a semaphore.
--
-- KEYS[1]  the semaphore: a ZSET of the holders' tokens; the score is the permit's end in
--          milliseconds since 1970 by the server's clock
-- KEYS[2]  the companion: a HASH with a field p:<token> for each permit, for humans to read: the
--          start of its hold, the number of permits that its holder passed, and the owner; and the
--          fencing token of locks of other kinds, 0 if none
-- ARGV[1]  our token
--
-- A permit whose end has passed counts as absent, and the next acquire or release that writes
-- removes it. Both keys end with the last permit, unless the companion has the fencing token of a
-- lock of another kind that had this name before. With the 0 such a lock does not take the
-- companion for a foreign hash. Everything is checked before the first write.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- The earliest and the latest end of a permit, including ends that have passed.
local earliest, latest

-- Returns an error unless the key is a semaphore or absent. A score below 10^12 (in 2001) is not an
-- end in milliseconds: the book's semaphores have seconds there, and all their permits would seem
-- expired.
local function read_ends()
  local kind = redis.call('TYPE', KEYS[1]).ok
  if kind == 'none' then
    return
  elseif kind ~= 'zset' then
    return redis.error_reply('WRONGKIND a ' .. kind .. ' in place of a sorted set')
  end
  earliest = tonumber(redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2])
  latest = tonumber(redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')[2])
  if earliest < 1e12 or latest >= 9007199254740992 then
    return redis.error_reply('WRONGKIND a sorted set whose scores are not ends in milliseconds')
  end
end

-- Returns the end of our permit, or nil if we hold none.
local function our_end()
  local ends = tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or nil)
  return ends and ends >= now and ends or nil
end

-- Removes the permits whose end has passed.
local function sweep()
  if earliest and earliest < now then
    local before_now = string.format('(%.0f', now)
    for _, token in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', before_now)) do
      redis.call('HDEL', KEYS[2], 'p:' .. token)
    end
    redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', before_now)
  end
end

-- Sets the semaphore's end, a millisecond after the end of the last permit. Not by `PEXPIRE`: since
-- Redis 7.2 that counts from the start of the script. `TIME` may be later if the server stood
-- still, and the key would end before a permit that was granted earlier.
local function stay(last)
  redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', last + 1))
end

-- Makes the companion stay at least this long.
local function companion_stays(last)
  if redis.call('PTTL', KEYS[2]) <= last - now then
    redis.call('PEXPIREAT', KEYS[2], string.format('%.0f', last + 1))
  end
end
