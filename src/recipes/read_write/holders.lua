-- Stands before each script that looks at all holders of a read-write lock.
--
-- KEYS[1]  the lock: a HASH of kind = 'rw' and, for each holder, its end in milliseconds since 1970
-- by the server's clock: r:<token> for a reader, w:<token> for the writer, i:<token> for a writer
-- that waits
--
-- An end that has passed counts as absent, and is removed by the next acquire or release that
-- writes. The key ends with the last of them. All is looked at before the first write, and whatever
-- is none of these stops the script.

-- The server's clock in milliseconds. `ends` will hold the ends of those who are in or wait, by
-- field, and `over` the fields whose end has passed.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local ends, over = {}, {}

-- Sorts the fields into `ends`, by field, and `over`, a list. Answers an error, or nothing. A free
-- lock has no key.
local function look()
  if redis.call('EXISTS', KEYS[1]) == 0 then
    return
  end
  -- `kind` marks the hash as ours. A field that is named otherwise than after a holder belongs to
  -- another kind of lock.
  local stored, is_ours = redis.call('HGETALL', KEYS[1]), false
  for i = 1, #stored, 2 do
    local field, value = stored[i], stored[i + 1]
    if field == 'kind' then
      is_ours = value == 'rw'
    elseif not string.find(field, '^[rwi]:.') then
      return redis.error_reply('WRONGKIND a hash that is no read-write lock')
    else
      -- The value has to be a time in whole milliseconds. If not, somebody else wrote it, and
      -- nobody can say whether it is over.
      local ending = string.find(value, '^%d+$') and tonumber(value)
      if not ending or ending >= 9007199254740992 then
        return redis.error_reply('WRONGKIND a holder of a read-write lock whose end is no time')
      elseif ending >= now then
        ends[field] = ending
      else
        -- Only noted here: to remove it is a write, and comes later.
        table.insert(over, field)
      end
    end
  end
  -- A hash without `kind` is not ours: it may be a reentrant lock of the notes, whose owner is
  -- called `r:…`.
  if not is_ours then
    return redis.error_reply('WRONGKIND a hash that is no read-write lock')
  end
end

-- When the last of the holders with such a field ends, or nothing if there is none.
local function last_end(pattern)
  local last
  for field, ending in pairs(ends) do
    if string.find(field, pattern) then
      last = math.max(last or 0, ending)
    end
  end
  return last
end

-- Lets the key end with the last hold, at once if there is none, removes what is over, and writes a
-- hold's new end if one is named.
local function store(field)
  local last = 0
  for _, ending in pairs(ends) do
    last = math.max(last, ending)
  end
  if last == 0 then
    redis.call('DEL', KEYS[1])
    return
  end
  -- The key's end is set before the first write: where `PEXPIRE` is forbidden to us, nothing has
  -- been written. It is a millisecond later than the last hold's. Since Redis 7.2 `PEXPIRE` counts
  -- from the moment at which the script began, and `TIME` may be later: without that millisecond
  -- the key would go while the last hold still stands.
  local left = string.format('%.0f', last - now + 1)
  redis.call('PEXPIRE', KEYS[1], left)
  for _, passed in ipairs(over) do
    redis.call('HDEL', KEYS[1], passed)
  end
  -- The one field that is new, or later than it was. The key may not have been there before, so it
  -- gets its end again.
  if field then
    redis.call('HSET', KEYS[1], 'kind', 'rw', field, string.format('%.0f', ends[field]))
    redis.call('PEXPIRE', KEYS[1], left)
  end
end

-- Lets a hold end so many milliseconds from now, but never earlier than it does already. The last
-- command is `EXISTS`, since `look` has sent it before: a user to whom it is forbidden was refused
-- before the first write.
local function hold(field, millis)
  ends[field] = math.max(ends[field] or 0, now + millis)
  store(field)
  redis.call('EXISTS', KEYS[1]) -- a write ends the tracking of a key, a read starts it again
end

-- Ends a hold by putting it among those that are over, which `store` removes.
local function drop(field)
  ends[field] = nil
  table.insert(over, field)
end
