-- Prepended to each script of a reentrant lock.
--
-- KEYS[1]  the lock: a HASH of one field: its owner, and the number of times that the owner holds
--          it
-- KEYS[2]  its companion: a HASH of fence, token, owner, since, hold (the fencing token of the hold
--          that it belongs to), released (the token of the last acquisition that was released), and
--          for each acquisition that has not been released a field t:<token> with its end in
--          milliseconds since 1970 by the server's clock
-- ARGV[1]  our owner
-- ARGV[2]  the token of this acquisition
--
-- Each acquisition of ours is one level of the count and has its own end, even if the same owner
-- enters again meanwhile. After that end, the owner's next acquire or release subtracts the level
-- from the count. The key ends with the last acquisition. Levels without a field were acquired by a
-- program with the notes' scripts, which writes no companion: they end with the key.
local ours = 't:' .. ARGV[2]
-- The number of times that the lock is held (0: it is free), and true if our owner holds it.
local count, is_owner = 0, false

-- Reads only the lock. Returns an error, or nothing. The lock is a hash of one field. A hash of
-- several fields is not a lock of this kind and is not read at all, since it may be large. The
-- count must be a whole number above 0, in Redis's format, and small enough to be incremented.
local function read_lock()
  local held = redis.call('HLEN', KEYS[1]) < 2 and redis.call('HGETALL', KEYS[1])
  if not held or held[1] and not (string.find(held[2], '^[1-9]%d*$') and tonumber(held[2]) < 9007199254740991) then
    return redis.error_reply('WRONGKIND a hash that is not one owner and a count')
  end
  count, is_owner = tonumber(held[2] or 0), held[1] == ARGV[1]
end

local time, now

local function milliseconds(moment)
  return moment[1] * 1000 + math.floor(moment[2] / 1000)
end

-- The companion's fields, and true if they belong to *this* hold: to our owner, with the last
-- fencing token that was issued. Otherwise they belong to an earlier hold or to a lock of another
-- kind, because a program that writes no companion acquired the lock.
local beside, known = {}, false
-- The ends of our current acquisitions by field, their number, the fields of the acquisitions that
-- have ended, and the count without those.
local ends, live, over, counted = {}, 0, {}, 0

-- True if the key ends no later than our last acquisition did. A server before 7.0 has no
-- `PEXPIRETIME`, so there this only checks that the key's end has passed.
local function ends_with(ending)
  local at = redis.pcall('PEXPIRETIME', KEYS[1])
  if type(at) ~= 'number' then
    return redis.call('PTTL', KEYS[1]) == 0
  end
  return at >= 0 and at <= ending + 100
end

-- Reads the companion. Returns an error, or nothing.
local function read_companion()
  time = redis.call('TIME')
  now = milliseconds(time)
  counted = count
  -- Without a fencing token it is not a companion, and not read at all, since it may be large.
  local fence = redis.pcall('HGET', KEYS[2], 'fence')
  if type(fence) == 'table' then
    return fence
  end
  local wrong = wrong_fence(fence, not fence and redis.call('HLEN', KEYS[2]) > 0)
  if wrong then
    return wrong
  end
  local stored = redis.call('HGETALL', KEYS[2])
  for i = 1, #stored, 2 do
    beside[stored[i]] = stored[i + 1]
  end
  local latest = 0
  known = is_owner and beside.hold and beside.hold == beside.fence and beside.owner == ARGV[1]
  if not known then
    return
  end
  -- The key's end may be counted from a later time than this TIME, and the key must end first: so a
  -- level is subtracted from the count only 100 ms after its end.
  for field, value in pairs(beside) do
    if string.sub(field, 1, 2) == 't:' then
      local ending = string.find(value, '^%d+$') and tonumber(value)
      if not ending or ending >= 9007199254740991 then
        return redis.error_reply('WRONGKIND a companion with an acquisition whose end is not a timestamp')
      elseif ending + 100 >= now then
        ends[field], live = ending, live + 1
      else
        table.insert(over, field)
        latest = math.max(latest, ending)
      end
    end
  end
  -- All acquisitions have ended and the lock is held: either the key ended and our owner acquired
  -- the lock again by the notes' script, or the server stalled just before TIME and the key still
  -- existed when this script started.
  known = live > 0 or #over == 0 or ends_with(latest)
  -- The notes' release may have lowered the count for a level that has a field here. So the levels
  -- that have not ended are counted at least, up to the count of the lock.
  if known and #over > 0 then
    counted = math.max(count - #over, math.min(live, count))
  end
end

-- Reads the lock and, if our owner holds it, the companion. Returns 0 if our owner does not hold
-- it, an error (with the prefix COMPANION if it is about the companion), or nothing.
local function read_lock_and_companion()
  local wrong = read_lock()
  if wrong or not is_owner then
    return wrong or 0
  end
  wrong = read_companion()
  return wrong and redis.error_reply('COMPANION ' .. wrong.err)
end

-- Returns the end of our last acquisition.
local function last_end()
  local last = 0
  for _, ending in pairs(ends) do
    last = math.max(last, ending)
  end
  return last
end

-- Writes the companion of a new hold, without the acquisitions of an earlier one. `ended`: a
-- fencing token that the caller knows of, to be exceeded too. `hold` repeats the fencing token. The
-- last release deletes `hold`, and a lock of another kind with this name changes `fence`: in both
-- cases the two differ from then on.
local function start_companion(ended)
  local fence = next_fence(time, math.max(beside.fence or 0, ended or 0))
  local since = string.format('%.0f', now)
  redis.call('HSET', KEYS[2], 'fence', fence, 'token', ARGV[2], 'owner', ARGV[1], 'since', since, 'hold', fence)
  -- Not by `DEL` before: a node whose slot is moving refuses to create the key again.
  for field in pairs(beside) do
    if field == 'released' or field == 'reserved' or string.find(field, '^[tp]:') then
      redis.call('HDEL', KEYS[2], field)
    end
  end
  return fence
end

-- Removes the ended acquisitions from the companion: they have been subtracted from the count.
local function remove_over()
  for _, field in ipairs(over) do
    redis.call('HDEL', KEYS[2], field)
  end
end

-- Sets the key's end to `ending`, the end of our last acquisition. `PEXPIRE` counts from when the
-- server executes it: if the server has stalled since TIME, the key would outlive the acquisitions,
-- and their levels would look like the notes'. So it is set again, but only if all levels are ours:
-- a level of the notes may last until the key's end.
local function end_at(ending, all_are_ours)
  local from = now
  repeat
    local asked = from
    redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.max(1, ending - asked)))
    from = milliseconds(redis.call('TIME'))
  until from - asked < 50 or not all_are_ours
end

-- Sets the count of the lock.
local function set_count(target)
  if target ~= count then
    redis.call('HINCRBY', KEYS[1], ARGV[1], target - count)
  end
end
