-- KEYS[1]  the lock: a HASH of one field, its owner, and how often that owner holds it
-- KEYS[2]  its companion, as acquire_reentrant.lua writes it
-- ARGV[1]  our owner
-- ARGV[2]  the token of the acquisition that is given back
-- returns  how often we held the lock until now: 0 not at all, 1 it is free now, n it is still held n - 1 times
--
-- Safe to send twice: an acquisition that has been given back is not there any more, and the last one is remembered.
-- A token that the companion does not know gives back what a program without a companion has taken, but only if no
-- acquisition with a companion is left. Whatever can fail is looked at before the first write. The lock is written last:
-- if that were forbidden to us, it would end with its lease, and never be counted down twice.

-- Who holds it, with the same checks as in the acquire. Free or another owner's: not held.
local held = redis.call('HLEN', KEYS[1]) < 2 and redis.call('HGETALL', KEYS[1])
if not held or held[1] and not (string.find(held[2], '^[1-9]%d*$') and tonumber(held[2]) < 9007199254740991) then
  return redis.error_reply('WRONGKIND a hash that is not one owner and a count')
end
if held[1] ~= ARGV[1] then
  return 0
end

-- The companion, as in the acquire, with two places exchanged: `last[4]` is the last acquisition that was released,
-- `last[5]` the field of this one.
local last = redis.call('HMGET', KEYS[2], 'fence', 'owner', 'hold', 'released', 't:' .. ARGV[2])
local fence = last[1]
if fence then
  if not (string.find(fence, '^%d+$') and tonumber(fence) < 9007199254740991) then
    return redis.error_reply('WRONGKIND a companion whose fencing token is no number')
  end
elseif redis.call('EXISTS', KEYS[2]) == 1 then
  return redis.error_reply('WRONGKIND a companion without a fencing token')
end
local known = fence and last[2] == ARGV[1] and last[3] == fence

-- This acquisition was counted. But if the companion tells of an earlier hold, that hold is over and so is the
-- acquisition: it must not free the next one.
if last[5] then
  if not known then
    return 0 -- of a hold before
  end
elseif last[4] == ARGV[2] then
  -- It has been given back before: this is the same release, sent again.
  return 0
elseif known then
  -- A token that the companion does not know. It gives back what a program without a companion has taken, but only if
  -- no acquisition of ours is left: a level of ours is given back by its own token.
  for _, field in ipairs(redis.call('HKEYS', KEYS[2])) do
    if string.sub(field, 1, 2) == 't:' then
      return 0
    end
  end
end

-- A hold that was taken without a companion, and is now given back by a program that keeps one. It gets one, so that
-- this release can be remembered; `ARGV[2]` was not acquired here, but names it.
if not known then
  local time = redis.call('TIME')
  local since = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
  fence = string.format('%.0f', math.max(time[1] * 1000000 + time[2], (fence or 0) + 1))
  redis.call('DEL', KEYS[2])
  redis.call('HSET', KEYS[2], 'fence', fence, 'token', ARGV[2], 'owner', ARGV[1], 'since', since, 'hold', fence)
  redis.call('PEXPIRE', KEYS[2], math.max(86400000, math.min(10 * redis.call('PTTL', KEYS[1]), 864000000)))
end
-- The acquisition's field goes, and the release is remembered. This stands before the lock is written: were the lock
-- forbidden to us, it would end with its lease, and never be counted down twice.
redis.call('HDEL', KEYS[2], 't:' .. ARGV[2])
redis.call('HSET', KEYS[2], 'released', ARGV[2])

-- One level less. The last one removes the hash, and `hold` from the companion: what it says now tells of no hold. The
-- answer is how often we held the lock *until now*: 0 is `NotHeld`, 1 is `Freed`, more is `StillHeld`.
local count = tonumber(held[2])
if count > 1 then
  redis.call('HINCRBY', KEYS[1], ARGV[1], -1)
else
  redis.call('HDEL', KEYS[2], 'hold')
  redis.call('DEL', KEYS[1])
end
return count
