-- Prepended to each script that reads all holders of a read-write lock.
--
-- KEYS[1]  the lock: a HASH of kind = 'rw' and, for each holder, its end in milliseconds since 1970
--          by the server's clock: r:<token> for a reader, w:<token> for the writer, i:<token> for a
--          waiting writer
--
-- A holder whose end has passed counts as absent, and the next acquire or release that writes
-- removes it. The key ends with the last holder. Everything is checked before the first write, and
-- any other field or value stops the script.

-- The server's clock in milliseconds; the ends of the current holders and waiting writers by field;
-- and the list of fields whose end has passed.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local ends, over = {}, {}

-- Sorts the fields into `ends` and `over`. Returns an error, or nothing. A free lock has no key.
local function read_holders()
  -- `kind` marks the hash as ours. Without it nothing else is read: the hash may be large, or a
  -- reentrant lock of the notes with an owner named `r:…`.
  if redis.call('HMGET', KEYS[1], 'kind')[1] ~= 'rw' then
    if redis.call('EXISTS', KEYS[1]) == 0 then
      return
    end
    return redis.error_reply('WRONGKIND a hash that is not a read-write lock')
  end
  local stored = redis.call('HGETALL', KEYS[1])
  for i = 1, #stored, 2 do
    local field, value = stored[i], stored[i + 1]
    if field ~= 'kind' and not string.find(field, '^[rwi]:.') then
      return redis.error_reply('WRONGKIND a hash that is not a read-write lock')
    elseif field ~= 'kind' then
      -- The value must be a time in whole milliseconds. If not, another program wrote it, and its
      -- end is unknown.
      local ending = string.find(value, '^%d+$') and tonumber(value)
      if not ending or ending >= 9007199254740992 then
        return redis.error_reply('WRONGKIND a holder of a read-write lock whose end is not a timestamp')
      elseif ending >= now then
        ends[field] = ending
      else
        -- Only noted here: removing it is a write, and comes later.
        table.insert(over, field)
      end
    end
  end
end

-- Returns the latest end among the fields that match, or nil if there is none.
local function last_end(pattern)
  local last
  for field, ending in pairs(ends) do
    if string.find(field, pattern) then
      last = math.max(last or 0, ending)
    end
  end
  return last
end

-- Sets the key's end to the last holder's, or deletes the key if there is none; removes the fields
-- in `over`; and writes the new end of `field`, if given.
local function store(field)
  local last = 0
  for _, ending in pairs(ends) do
    last = math.max(last, ending)
  end
  if last == 0 then
    redis.call('DEL', KEYS[1])
    return
  end
  -- The key's end is set before the first write: if the server refuses us `PEXPIRE`, nothing has
  -- been written. It is a millisecond after the last holder's end. Since Redis 7.2 `PEXPIRE` counts
  -- from the start of the script, and `TIME` may be later: without that millisecond the key could
  -- end before the last hold.
  local left = string.format('%.0f', last - now + 1)
  redis.call('PEXPIRE', KEYS[1], left)
  for _, passed in ipairs(over) do
    redis.call('HDEL', KEYS[1], passed)
  end
  -- The one field that is new or has a later end. The key may not have existed before, so its end
  -- is set again.
  if field then
    redis.call('HSET', KEYS[1], 'kind', 'rw', field, string.format('%.0f', ends[field]))
    redis.call('PEXPIRE', KEYS[1], left)
  end
end

-- Sets a holder's end to `millis` from now, but never earlier than it is. The last command is one
-- that `read_holders` has already sent: a user without the right to it was refused before the first
-- write.
local function hold(field, millis)
  ends[field] = math.max(ends[field] or 0, now + millis)
  store(field)
  redis.call('HMGET', KEYS[1], 'kind') -- a write ends the tracking of a key, a read starts it again
end

-- Ends a hold by adding it to `over`, which `store` removes.
local function drop(field)
  ends[field] = nil
  table.insert(over, field)
end
