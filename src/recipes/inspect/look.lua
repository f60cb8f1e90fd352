-- Prepended to both scripts of this folder.
--
-- KEYS[1]  a lock of any kind
-- KEYS[2]  its companion
--
-- Reads only, and never fails. A lock is what its own scripts take for one: see
-- `read_write/holders.lua`, `reentrant/levels.lua` and `semaphore/permits.lua`. Of any other key it
-- returns the type, and reads no more than is needed to recognise it: the key may be large.

-- Returns the start of a string: a mutex, a lock of the book, or one of any client by `SET NX`.
-- Whatever it is, it keeps a mutex from being acquired.
local function token()
  return { redis.call('GETRANGE', KEYS[1], 0, 511) }
end

-- Returns the fields and values of a read-write lock, or the owner and count of a reentrant one.
local function fields()
  local is_read_write = redis.call('HMGET', KEYS[1], 'kind')[1] == 'rw'
  if not is_read_write and redis.call('HLEN', KEYS[1]) > 1 then
    return {}
  end
  local stored = redis.call('HGETALL', KEYS[1])
  for i = 1, #stored, 2 do
    local field, value = stored[i], stored[i + 1]
    local is_ours, limit = string.find(value, '^[1-9]%d*$'), 9007199254740991
    if is_read_write then
      is_ours = field == 'kind' or string.find(field, '^[rwi]:.') and string.find(value, '^%d+$')
      limit = 9007199254740992
    end
    if not is_ours or tonumber(value) and tonumber(value) >= limit then
      return {}
    end
  end
  return stored
end

-- Returns the token, the end and the companion's description of each permit of a semaphore: at most
-- of the last 10,000, as many as can be held.
local function permits()
  if redis.call('TYPE', KEYS[2]).ok ~= 'hash' then
    return {}
  end
  local first = 'p:' .. redis.call('ZRANGE', KEYS[1], 0, 0)[1]
  local latest = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')[2]
  if not redis.call('HMGET', KEYS[2], first)[1] or tonumber(latest) >= 9007199254740992 then
    return {}
  end
  local stored, described = redis.call('ZRANGE', KEYS[1], -10000, -1, 'WITHSCORES'), {}
  for i = 1, #stored, 2 do
    table.insert(described, stored[i])
    table.insert(described, stored[i + 1])
    table.insert(described, redis.call('HMGET', KEYS[2], 'p:' .. stored[i])[1] or '')
  end
  return described
end

-- The ends of readers, writers and permits are timestamps, so the caller needs the server's clock.
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
local kind = redis.call('TYPE', KEYS[1]).ok
-- Nothing for a key that is not a lock.
local read = { string = token, hash = fields, zset = permits }
local value = read[kind] and read[kind]() or {}
-- The companion has the owner, the start and the fencing token. They belong to the current hold
-- only if the companion's token or owner is that of the lock. Both keys are read in one step, so
-- that a holder is never shown with another holder's fencing token.
local companion = {}
if redis.call('TYPE', KEYS[2]).ok == 'hash' then
  companion = redis.call('HMGET', KEYS[2], 'fence', 'token', 'owner', 'since', 'reserved')
end
local found = { kind, redis.call('PTTL', KEYS[1]), value, companion, now }
