-- Stands before each script of a reentrant lock.
--
-- KEYS[1]  the lock: a HASH of one field, its owner, and how often that owner holds it
-- KEYS[2]  its companion: a HASH of fence, token, owner, since, hold (the fence of the hold that it
-- belongs to), released (the acquisition that was given back last), and for each acquisition that
-- has not been given back a field t:<token> with its end in milliseconds since 1970 by the server's
-- clock
-- ARGV[1]  our owner
-- ARGV[2]  the token of this acquisition
--
-- Each acquisition of ours is one level of the count, and ends by itself when its end has passed,
-- whoever else of the same owner enters meanwhile: the next script of that owner takes it off the
-- count. The key ends with the last of them. Levels without a field were taken by a program on the
-- notes' scripts, which keeps no companion: they end with the key.
local ours = 't:' .. ARGV[2]
-- How often the lock is held (0: it is free), and whether by our owner.
local count, is_owner = 0, false

-- Looks at the lock alone. Answers an error, or nothing. The lock is a hash of one field. A hash of
-- two fields is no lock of this kind, and is not even read whole: it might be a large one. The
-- count has to be a whole number above 0, written as Redis writes it, and small enough to be
-- counted on.
local function look_at_lock()
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

-- The companion's fields, and whether they belong to *this* hold: that of our owner, with the last
-- fencing token that was given. Otherwise they belong to an earlier hold or to a lock of another
-- kind, since a program that writes none took the lock.
local beside, known = {}, false
-- The ends of our acquisitions by field, how many they are, the fields of those that are over, and
-- how often the lock is held without these.
local ends, live, over, counted = {}, 0, {}, 0

-- Whether the key ends no later than the last of our acquisitions did. A server before 7.0 says no
-- more than whether its end has passed.
local function ends_with(ending)
  local at = redis.pcall('PEXPIRETIME', KEYS[1])
  if type(at) ~= 'number' then
    return redis.call('PTTL', KEYS[1]) == 0
  end
  return at >= 0 and at <= ending + 100
end

-- Looks at the companion. Answers an error, or nothing.
local function look_beside()
  time = redis.call('TIME')
  now = milliseconds(time)
  counted = count
  local stored = redis.pcall('HGETALL', KEYS[2])
  if stored.err then
    return stored
  end
  for i = 1, #stored, 2 do
    beside[stored[i]] = stored[i + 1]
  end
  local wrong = wrong_fence(beside.fence, #stored > 0)
  if wrong then
    return wrong
  end
  local latest = 0
  known = is_owner and beside.hold and beside.hold == beside.fence and beside.owner == ARGV[1]
  if not known then
    return
  end
  -- The key's own end may be counted from a later moment than this TIME, and it has to come first:
  -- a level is taken off the count only a little after its end.
  for field, value in pairs(beside) do
    if string.sub(field, 1, 2) == 't:' then
      local ending = string.find(value, '^%d+$') and tonumber(value)
      if not ending or ending >= 9007199254740991 then
        return redis.error_reply('WRONGKIND a companion with an acquisition whose end is no time')
      elseif ending + 100 >= now then
        ends[field], live = ending, live + 1
      else
        table.insert(over, field)
        latest = math.max(latest, ending)
      end
    end
  end
  -- All are over and the lock is held: its key has ended since, and our owner has taken it by the
  -- notes' script. Or the server stood still just before TIME, and the key was there when this
  -- script began.
  known = live > 0 or #over == 0 or ends_with(latest)
  if known and #over > 0 then
    counted = math.max(count - #over, math.min(live, count))
  end
end

-- Looks at the lock and, if our owner has it, at the companion. Answers 0 if our owner does not
-- have it, an error (one about the companion begins with this prefix), or nothing.
local function look_at_both(prefix)
  local wrong = look_at_lock()
  if wrong or not is_owner then
    return wrong or 0
  end
  wrong = look_beside()
  return wrong and redis.error_reply(prefix .. wrong.err)
end

-- When the last of our acquisitions ends.
local function last_end()
  local last = 0
  for _, ending in pairs(ends) do
    last = math.max(last, ending)
  end
  return last
end

-- Makes the companion of a new hold, without the acquisitions of an earlier one. `hold` repeats the
-- fencing token. The last release removes `hold`, and a lock of another kind on this name changes
-- `fence`: in both cases the two are no longer equal.
local function tell_of_this_hold()
  local fence = next_fence(time, beside.fence)
  local since = string.format('%.0f', now)
  redis.call('DEL', KEYS[2])
  redis.call('HSET', KEYS[2], 'fence', fence, 'token', ARGV[2], 'owner', ARGV[1], 'since', since, 'hold', fence)
  return fence
end

-- Removes the acquisitions that are over from the companion: they are off the count from now on.
local function forget_over()
  for _, field in ipairs(over) do
    redis.call('HDEL', KEYS[2], field)
  end
end

-- Lets the key end at this moment, at which none of our acquisitions is left. `PEXPIRE` counts from
-- when the server executes it: if the server has stood still since it said what time it is, the key
-- would last longer than the acquisitions, and their levels would be taken for those of the notes.
-- So it is set once more, where all levels are ours: one of the notes may last until the key's end.
local function end_at(ending, all_are_ours)
  local from = now
  repeat
    local asked = from
    redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.max(1, ending - asked)))
    from = milliseconds(redis.call('TIME'))
  until from - asked < 50 or not all_are_ours
end

-- From now on the lock is held so often.
local function set_count(target)
  if target ~= count then
    redis.call('HINCRBY', KEYS[1], ARGV[1], target - count)
  end
end
