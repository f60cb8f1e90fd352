-- Prepended to the scripts of one_hash.
--
-- KEYS[1]  the lock: a HASH with the article's fields read and write: the times at which the last
--          reader and the writer started, in milliseconds since 1970. We add read:<token> and
--          write:<token>, the start of each holder of ours. `read:` without a token is the
--          article's last reader, whose `read` one of our readers has overwritten.
-- ARGV[1]  our token
-- ARGV[2]  the maximum time of a reader's hold, in milliseconds
-- ARGV[3]  the maximum time of a writer's hold
--
-- The article's scripts read only read and write, so these two always have the latest start. Our
-- timestamps have a fraction, so none ever equals one of the article's. A timestamp older than the
-- maximum hold counts as absent, and the next script that writes removes it. Everything is checked
-- before the first write, and any other field or value stops the script.

-- `holders` will have the timestamps of the current holders by field, `over` the fields that are
-- too old, and `count` the number of all fields.
local time = redis.call('TIME')
local now = time[1] * 1000 + time[2] / 1000
local stamp = string.format('%.3f', now)
local holders, over, count = {}, {}, 0

-- Returns whether a field is of a reader, and of a writer.
local function sides(field)
  return field == 'read' or string.find(field, '^read:'), field == 'write' or string.find(field, '^write:.')
end

-- Sorts the fields into `holders` and `over`. Returns an error, or nothing. Any field shows whether
-- the hash is a lock of this kind; if one does not, nothing else is read, since the hash may be
-- large. `HRANDFIELD` is also the last command of an acquire: a user without the right to it is
-- refused before the first write.
local function read_holders()
  local any = redis.call('HRANDFIELD', KEYS[1])
  local reads, writes = sides(any or 'read')
  local stored = any and (reads or writes) and redis.call('HGETALL', KEYS[1]) or { any or nil }
  count = math.floor(#stored / 2)
  for i = 1, #stored, 2 do
    local field, value = stored[i], stored[i + 1]
    reads, writes = sides(field)
    -- Another field, or a value that is not a time, belongs to another kind of lock.
    if not (reads or writes) then
      return redis.error_reply('WRONGKIND a hash that is not a lock of this kind')
    elseif not (string.find(value, '^%d+%.?%d*$') and tonumber(value) < 9007199254740992) then
      return redis.error_reply('WRONGKIND a value that is not a time in milliseconds')
    elseif now - tonumber(value) > tonumber(reads and ARGV[2] or ARGV[3]) then
      -- The lock does not store the maximum times: the caller sends them. This is the article's
      -- comparison, with the server's clock in place of the client's. A holder that is too old
      -- counts as absent.
      table.insert(over, field)
    else
      holders[field] = value
    end
  end
end

-- Returns the later of two timestamps, either of which may be missing.
local function later(a, b)
  if a and b then
    return tonumber(a) > tonumber(b) and a or b
  end
  return a or b
end

-- Returns the latest timestamp of our readers' fields, and true if one of them equals `sought`. If
-- `sought` is the value of `read` and none equals it, a reader of the article wrote `read`.
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

-- Makes the key live at least `millis` from now, but never shorter than before: -1 (no end) and -2
-- (no key) are below any length. Called before the first write, so that nothing has been written if
-- the server refuses us `PEXPIRE`, and again after the last, when the key certainly exists.
local function stay(millis)
  redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.max(redis.call('PTTL', KEYS[1]), millis)))
end

-- Removes these fields together, not one by one. The last one deletes the key, and a cluster node
-- whose slot is moving refuses every command on a key that it does not have.
local function remove(fields)
  for i = 1, #fields, 1000 do
    redis.call('HDEL', KEYS[1], unpack(fields, i, math.min(i + 999, #fields)))
  end
end

-- Writes the new hold, `ours` with the timestamp and `mode` with another, in place of the fields in
-- `over`. If the hash has no other fields, one of `over` is removed after the write, so that the
-- hash never becomes empty.
local function write(ours, mode, latest)
  local last = #over == count and table.remove(over)
  remove(over)
  redis.call('HSET', KEYS[1], ours, stamp, mode, latest)
  if last and last ~= ours and last ~= mode then
    remove({ last })
  end
end
