-- Stands before the scripts of one_hash.
--
-- KEYS[1]  the lock: a HASH with the fields of the article, read and write: when the last reader
-- and the writer came, in milliseconds since 1970. Beside them we keep read:<token> and
-- write:<token>, when each holder of ours came. `read:` without a token is the last reader that is
-- not ours and whose `read` one of ours has written over.
-- ARGV[1]  our token
-- ARGV[2]  how long a reader may stay, in milliseconds
-- ARGV[3]  how long a writer may stay
--
-- The article's scripts look at read and write alone, so these always say the latest; ours have a
-- fraction, so that no stamp of the article's is ever equal to one. A stamp that is older than a
-- hold may last counts as absent, and is removed by the next script that writes. All is looked at
-- before the first write, and whatever is none of these stops the script.

-- `holders` will hold the stamps of those who are in, by field, and `over` the fields that are too
-- old.
local time = redis.call('TIME')
local now = time[1] * 1000 + time[2] / 1000
local stamp = string.format('%.3f', now)
local holders, over = {}, {}

-- Sorts the fields into `holders` and `over`. Answers an error, or nothing. `EXISTS` is sent first,
-- because it is also the last command of an acquire: a user to whom it is forbidden is refused
-- before the first write.
local function look()
  local stored = redis.call('EXISTS', KEYS[1]) == 1 and redis.call('HGETALL', KEYS[1]) or {}
  for i = 1, #stored, 2 do
    local field, value = stored[i], stored[i + 1]
    local reads = field == 'read' or string.find(field, '^read:')
    -- A field of another name, or a stamp that is no time, belongs to another kind of lock.
    if not (reads or field == 'write' or string.find(field, '^write:.')) then
      return redis.error_reply('WRONGKIND a hash that is no lock of this kind')
    elseif not (string.find(value, '^%d+%.?%d*$') and tonumber(value) < 9007199254740992) then
      return redis.error_reply('WRONGKIND a stamp that is no time in milliseconds')
    elseif now - tonumber(value) > tonumber(reads and ARGV[2] or ARGV[3]) then
      -- How long a reader and a writer may stay is not in the lock: the caller says it. This is the
      -- article's comparison, with the server's clock in place of the client's. What is too old
      -- counts as absent.
      table.insert(over, field)
    else
      holders[field] = value
    end
  end
end

-- Of two stamps, either of which may be missing, the later.
local function later(a, b)
  if a and b then
    return tonumber(a) > tonumber(b) and a or b
  end
  return a or b
end

-- The latest stamp of the readers with a field of their own, and whether one of them has the stamp
-- `sought`. If `sought` is that of `read` and none has it, a reader of the article wrote `read`.
local function readers(sought)
  local last, found
  for field, value in pairs(holders) do
    if string.find(field, '^read:') then
      last = later(last, value)
      found = found or value == sought
    end
  end
  return last, found
end

-- Lets the key stay at least so many milliseconds from now, and never shorter than before: -1, no
-- end, and -2, no key, are less than any length. It is called before the first write, so that where
-- it is forbidden to us nothing has been written, and again after the last, when there is a key for
-- certain.
local function stay(millis)
  redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.max(redis.call('PTTL', KEYS[1]), millis)))
end

-- Removes fields.
local function remove(fields)
  for _, field in ipairs(fields) do
    redis.call('HDEL', KEYS[1], field)
  end
end
