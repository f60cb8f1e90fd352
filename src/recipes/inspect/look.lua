-- Stands before both scripts here.
--
-- KEYS[1]  a lock, of whatever kind
-- KEYS[2]  its companion
--
-- Reads only, and fails on nothing: what is no lock is told by its type.

-- The ends of readers and writers are moments, so whoever reads them needs the server's clock.
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
local kind, value = redis.call('TYPE', KEYS[1]).ok, {}
-- A token, or fields and values. What is neither is told by its type alone: no command is sent that
-- its type could refuse.
if kind == 'string' then
  value = { redis.call('GET', KEYS[1]) }
elseif kind == 'hash' then
  value = redis.call('HGETALL', KEYS[1])
end
-- The companion tells who, since when, and with which fencing token; of this hold only if its
-- token, or its owner, is the one that holds the lock now. All is read in one step, so that nobody
-- is shown with somebody else's number.
local companion = {}
if redis.call('TYPE', KEYS[2]).ok == 'hash' then
  companion = redis.call('HMGET', KEYS[2], 'fence', 'token', 'owner', 'since', 'reserved')
end
local found = { kind, redis.call('PTTL', KEYS[1]), value, companion, now }
