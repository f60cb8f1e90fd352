-- Prepended, after companion.lua, to each script of a semaphore.
--
-- KEYS[1]  the semaphore: a ZSET of the holders' tokens; the score is the permit's end in
--          milliseconds since 1970 by the server's clock
-- KEYS[2]  the companion: a HASH with a field p:<token> for each permit, its mark, and for humans
--          to read: the start of its hold, the number of permits that its holder passed, and the
--          owner; and the fencing token of locks of other kinds, 0 if none
-- ARGV[1]  our token
--
-- A permit whose end has passed counts as absent. The next acquire that is granted removes it, or
-- the release of the last permit. Both keys end with the last permit, unless the companion has the
-- fencing token of a lock of another kind that had this name before. With the 0 such a lock does
-- not take the companion for a foreign hash. Everything is checked before the first write.
--
-- A slot that is moving between two nodes of a cluster serves only keys that exist. So no script
-- uses a key again after it has emptied it.

-- Each command costs about half a microsecond, so the scripts send few. No command only checks a
-- type: the first command on a key stops the script if the key has another type. Other holders'
-- permits are read only if a key's end may change.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- Our permit's end, if it has not passed, and the latest end of a permit, including ends that have.
local ours, latest
-- The last two permits, each as a token and an end; read only if our permit has not ended.
local last_two

-- Returns an error unless the first member of the sorted set is a permit, by its mark. Other
-- programs have sorted sets too, with times in them: nothing else of them is read. If the companion
-- is lost, holders renew and release their permits, and nobody gets a new one until all have ended:
-- how many are held is not known for certain.
local function wrong_member(first, mark)
  if first and not mark then
    return redis.error_reply('WRONGKIND a sorted set whose first member is no permit')
  end
end

-- Notes the latest end. Returns an error if no permit can have it.
local function read_latest(ends)
  latest = tonumber(ends)
  if latest >= 9007199254740992 then
    return redis.error_reply('WRONGKIND a sorted set with a score that is not an end in milliseconds')
  end
end

-- Notes our permit's end, unless it has passed.
local function note_ours(found)
  found = tonumber(found or nil)
  ours = found and found >= now and found
end

local function read_last_two()
  last_two = redis.call('ZRANGE', KEYS[1], -2, -1, 'WITHSCORES')
end

-- Reads our permit, for a holder. Returns the reply if it is not ours: 0, or an error if the key
-- exists and is no semaphore.
local function read_ours()
  local found = redis.call('ZSCORE', KEYS[1], ARGV[1])
  if not found then
    local first = redis.call('ZRANGE', KEYS[1], 0, 0)[1]
    return wrong_member(first, first and redis.call('HMGET', KEYS[2], 'p:' .. first)[1]) or 0
  end
  note_ours(found)
  read_last_two()
  return read_latest(last_two[#last_two]) or not ours and 0
end

-- Returns the reply to a command on the companion, or nothing if that has another type. Then a
-- holder can still renew and release. Any other refusal stops the script.
local function on_companion(command, field)
  local reply = redis.pcall(command, KEYS[2], field)
  if type(reply) ~= 'table' or not reply.err then
    return reply
  elseif not string.find(reply.err, 'WRONGTYPE', 1, true) then
    redis.call(command, KEYS[2], field)
  end
end

-- Returns the companion's fencing token, or nothing if there is no companion of ours.
local function companion_fence()
  local stored = on_companion('HMGET', 'fence')
  local fence = stored and stored[1]
  return fence and not wrong_fence(fence) and fence
end

-- Removes the permits whose end has passed, and no member without a mark. If all have ended, the
-- last one stays, so that the key is not emptied.
local function sweep()
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

-- Sets the semaphore's end, a millisecond after the end of the last permit. Not by `PEXPIRE`: since
-- Redis 7.2 that counts from the start of the script. `TIME` may be later if the server stood
-- still, and the key would end before a permit that was granted earlier.
local function stay(last)
  redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', last + 1))
end

-- Makes the companion stay at least this long. Without the fencing token of another kind it ends
-- with the semaphore.
local function companion_stays(last, fence)
  if fence == '0' or redis.call('PTTL', KEYS[2]) <= last - now then
    redis.call('PEXPIREAT', KEYS[2], string.format('%.0f', last + 1))
  end
end
