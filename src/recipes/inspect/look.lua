-- Prepended to both scripts of this folder.
--
-- KEYS[1]  a lock of any kind
-- KEYS[2]  its companion
--
-- Reads only, and never fails: for a key that is not a lock it returns the key's type.

-- Returns the token, the end and the companion's description of each permit of a semaphore. Returns
-- an empty list if the scores are not ends in milliseconds, see `semaphore/permits.lua`.
local function permits()
  local stored, described = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES'), {}
  local earliest, latest = tonumber(stored[2]), tonumber(stored[#stored])
  if earliest < 1e12 or latest >= 9007199254740992 then
    return described
  end
  local has_companion = redis.call('TYPE', KEYS[2]).ok == 'hash'
  for i = 1, #stored, 2 do
    local field = 'p:' .. stored[i]
    table.insert(described, stored[i])
    table.insert(described, stored[i + 1])
    table.insert(described, has_companion and redis.call('HGET', KEYS[2], field) or '')
  end
  return described
end

-- The ends of readers, writers and permits are timestamps, so the caller needs the server's clock.
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
local kind, value = redis.call('TYPE', KEYS[1]).ok, {}
-- A token, or fields and values. Other types are not read, since a command could fail on them.
if kind == 'string' then
  value = { redis.call('GET', KEYS[1]) }
elseif kind == 'hash' then
  value = redis.call('HGETALL', KEYS[1])
elseif kind == 'zset' then
  value = permits()
end
-- The companion has the owner, the start and the fencing token. They belong to the current hold
-- only if the companion's token or owner is that of the lock. Both keys are read in one step, so
-- that a holder is never shown with another holder's fencing token.
local companion = {}
if redis.call('TYPE', KEYS[2]).ok == 'hash' then
  companion = redis.call('HMGET', KEYS[2], 'fence', 'token', 'owner', 'since', 'reserved')
end
local found = { kind, redis.call('PTTL', KEYS[1]), value, companion, now }
