-- Stands before each script that looks at all holders of a read-write lock.
--
-- KEYS[1]  the lock: a HASH of kind = 'rw' and, for each holder, its end in milliseconds since 1970 by the server's
--          clock: r:<token> for a reader, w:<token> for the writer, i:<token> for a writer that waits
--
-- An end that has passed counts as absent, and is removed by the next acquire or release that writes. The key ends with
-- the last of them. All is looked at before the first write, and whatever is none of these stops the script.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local ends, over = {}, {}

-- Sorts the fields into `ends`, by field, and `over`, a list. Answers an error, or nothing.
local function look()
  if redis.call('EXISTS', KEYS[1]) == 0 then
    return
  end
  local stored, is_ours = redis.call('HGETALL', KEYS[1]), false
  for i = 1, #stored, 2 do
    local field, value = stored[i], stored[i + 1]
    if field == 'kind' then
      is_ours = value == 'rw'
    elseif not string.find(field, '^[rwi]:.') then
      return redis.error_reply('WRONGKIND a hash that is no read-write lock')
    else
      local ending = string.find(value, '^%d+$') and tonumber(value)
      if not ending or ending >= 9007199254740992 then
        return redis.error_reply('WRONGKIND a holder of a read-write lock whose end is no time')
      elseif ending >= now then
        ends[field] = ending
      else
        table.insert(over, field)
      end
    end
  end
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

-- Lets the key end with the last hold, at once if there is none, removes what is over, and writes a hold's new end if
-- one is named. The key's end comes first and again at last: where it is forbidden to us to set it, nothing has been
-- written, and a new key gets one too. It is a millisecond later than the last hold's, since PEXPIRE may count from an
-- earlier moment than TIME: since Redis 7.2 from the one at which the script began.
local function store(field)
  local last = 0
  for _, ending in pairs(ends) do
    last = math.max(last, ending)
  end
  if last == 0 then
    redis.call('DEL', KEYS[1])
    return
  end
  local left = string.format('%.0f', last - now + 1)
  redis.call('PEXPIRE', KEYS[1], left)
  for _, passed in ipairs(over) do
    redis.call('HDEL', KEYS[1], passed)
  end
  if field then
    redis.call('HSET', KEYS[1], 'kind', 'rw', field, string.format('%.0f', ends[field]))
    redis.call('PEXPIRE', KEYS[1], left)
  end
end

-- Lets a hold end so many milliseconds from now, but never earlier than it does already.
local function hold(field, millis)
  ends[field] = math.max(ends[field] or 0, now + millis)
  store(field)
  redis.call('EXISTS', KEYS[1]) -- a write ends the tracking of a key, a read starts it again
end

-- Ends a hold.
local function drop(field)
  ends[field] = nil
  table.insert(over, field)
end
