-- KEYS[1]  the lock, see holders.lua
-- KEYS[2]  its companion: a HASH of fence, token, owner, since
-- ARGV[1]  our token
-- ARGV[2]  the lease in milliseconds
-- ARGV[3]  1 if the caller waits when refused, 0 if not
-- ARGV[4]  our owner, for humans to read
-- ARGV[5]  1 to return the time until the last holder ends, 0 if not
-- returns  our fencing token; if others hold the lock nil, or { milliseconds until the last one
--          ends }
--
-- Safe to send twice: our token is recognised and keeps its fencing token. A refused attempt writes
-- at most our intent, which keeps new readers out. The intent expires after a second, so that a
-- dead writer does not block readers for longer, and is rewritten only when less than 500 ms of it
-- are left. Everything that can fail is checked before the first write, and the lock is written
-- last: if the server refuses us a command, no lock is left behind. The fencing token is the clock
-- in microseconds, or the last token plus one if that is greater: it grows even if the clock is set
-- back or the companion is lost.

local wrong = read_holders()
if wrong then
  return wrong
end

-- Our fields as a writer and as a waiting writer. A token that holds the lock for reading would
-- wait for itself, so it is refused at once.
local ours, intent = 'w:' .. ARGV[1], 'i:' .. ARGV[1]
if ends['r:' .. ARGV[1]] then
  return redis.error_reply('INVALIDTOKEN it holds this lock for reading')
end
-- A writer is granted the lock unless there is a reader or another writer. Another writer's intent
-- does not matter: writers have no order among themselves.
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

-- A new hold gets a new fencing token; a repeat keeps its own.
if not (ends[ours] and fence and last[2] == ARGV[1]) then
  fence = next_fence(time, fence)
  redis.call('HSET', KEYS[2], 'fence', fence, 'token', ARGV[1], 'owner', ARGV[4], 'since', string.format('%.0f', now))
end
local lease = tonumber(ARGV[2])
local left = math.max(lease, (ends[ours] or 0) - now)
outlive(left, lease)

-- Granted: one `store` removes the intent and adds the hold.
if ends[intent] then
  drop(intent)
end
hold(ours, lease)
return fence
