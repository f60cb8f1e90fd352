-- KEYS[1]  the lock, see holders.lua
-- KEYS[2]  its companion: a HASH of fence, token, owner, since
-- ARGV[1]  our token
-- ARGV[2]  the lease in milliseconds
-- ARGV[3]  1 if we wait when somebody is in, 0 if not
-- ARGV[4]  who we are, for people to read
-- ARGV[5]  1 if we want to know for how long others are in our way, 0 if not
-- returns  our fencing token; if somebody else is in nil, or { milliseconds until the last ends }
--
-- Safe to send twice: our own token is recognised and keeps its fencing token. A refused attempt
-- writes at most our intent, which keeps new readers out: it ends after a second, so that a writer
-- that died keeps nobody out for longer, and is written anew only when less than 500 ms of it are
-- left. Whatever can fail is looked at before the first write, and the lock is written last: a
-- command that is forbidden to us leaves no lock. The fencing token is the clock in microseconds,
-- or one more than the last: it grows even if either is lost.

local wrong = look()
if wrong then
  return wrong
end

-- Our field as a writer and as one that waits. If the same token holds the lock for reading, it
-- would wait for itself.
local ours, intent = 'w:' .. ARGV[1], 'i:' .. ARGV[1]
if ends['r:' .. ARGV[1]] then
  return redis.error_reply('INVALIDTOKEN it holds this lock for reading')
end
-- A writer comes in unless there is a reader or another writer. Another writer's intent is no
-- obstacle: writers have no order among themselves.
if not ends[ours] then
  local free_at = last_end('^[rw]:')
  if free_at then
    if ARGV[3] == '1' and (ends[intent] or 0) < now + 500 then
      hold(intent, 1000)
    end
    return ARGV[5] == '1' and { free_at - now }
  end
end

local last = redis.call('HMGET', KEYS[2], 'fence', 'token')
local fence = last[1]
wrong = wrong_fence(fence, not fence and redis.call('EXISTS', KEYS[2]) == 1)
if wrong then
  return wrong
end

-- A new hold gets a new fencing token; our own, sent again, keeps it.
if not (ends[ours] and fence and last[2] == ARGV[1]) then
  fence = next_fence(time, fence)
  redis.call('HSET', KEYS[2], 'fence', fence, 'token', ARGV[1], 'owner', ARGV[4], 'since', string.format('%.0f', now))
end
local lease = tonumber(ARGV[2])
local left = math.max(lease, (ends[ours] or 0) - now)
outlive(left, lease)

-- Granted: the intent goes and the hold comes, in one `store`.
if ends[intent] then
  drop(intent)
end
hold(ours, lease)
return fence
