-- Prepended, after companion.lua, to each script of a semaphore.
--
-- KEYS[1]  the semaphore: a ZSET of the holders' tokens; the score is the permit's end in
--          milliseconds since 1970 by the server's clock
-- KEYS[2]  the companion: a HASH with a field p:<token> for each permit, its mark, and for humans
--          to read: the start of its hold, the number of permits that its holder passed, and the
--          owner; and the fencing token of locks of other kinds, 0 if none
-- ARGV[1]  our token
--
-- A permit whose end has passed counts as absent, and the next acquire or release that writes
-- removes it. Both keys end with the last permit, unless the companion has the fencing token of a
-- lock of another kind that had this name before. With the 0 such a lock does not take the
-- companion for a foreign hash. Everything is checked before the first write.
--
-- A slot that is moving between two nodes of a cluster serves only keys that exist. So no script
-- uses a key again after it has emptied it.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- The earliest and the latest end of a permit, including ends that have passed; and ours.
local earliest, latest, ours

-- Returns an error unless the key is a semaphore or absent. Other programs have sorted sets too,
-- with times in them. Ours has our token, or its earliest member has a mark; nothing else is read.
-- If the companion is lost, holders renew and release their permits, and nobody gets a new one
-- until all have ended: how many are held is not known for certain.
local function read_ends()
  local kind = redis.call('TYPE', KEYS[1]).ok
  if kind == 'none' then
    return
  elseif kind ~= 'zset' then
    return redis.error_reply('WRONGKIND a ' .. kind .. ' in place of a sorted set')
  end
  local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
  local found = redis.call('ZSCORE', KEYS[1], ARGV[1])
  if not found and not redis.call('HMGET', KEYS[2], 'p:' .. first[1])[1] then
    return redis.error_reply('WRONGKIND a sorted set whose first member is no permit')
  end
  earliest = tonumber(first[2])
  latest = tonumber(redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')[2])
  if latest >= 9007199254740992 then
    return redis.error_reply('WRONGKIND a sorted set with a score that is not an end in milliseconds')
  end
  found = tonumber(found or nil)
  ours = found and found >= now and found
end

-- Returns the companion's fencing token, or nothing if there is no companion of ours. Then a holder
-- can still renew and release.
local function companion_fence()
  local fence = redis.call('TYPE', KEYS[2]).ok == 'hash' and redis.call('HMGET', KEYS[2], 'fence')[1]
  return fence and not wrong_fence(fence) and fence
end

-- Removes the permits whose end has passed, and no member without a mark. If all have ended, the
-- last one stays, so that the key is not emptied.
local function sweep()
  if earliest and earliest < now then
    local before_now = string.format('(%.0f', now)
    local over = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', before_now, 'LIMIT', 0, 10000)
    if latest < now then
      table.remove(over)
    end
    for _, token in ipairs(over) do
      if redis.call('HDEL', KEYS[2], 'p:' .. token) == 1 then
        redis.call('ZREM', KEYS[1], token)
      end
    end
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
