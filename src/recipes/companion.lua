-- Prepended to scripts that use the companion, the second key of a lock: a HASH of fence (the last
-- fencing token), and of token, owner and since, for humans to read.
--
-- KEYS[2]  the companion

-- Returns an error unless the fencing token is a number that can be incremented. A hash without a
-- fencing token is not our companion, and nothing is written into it.
local function wrong_fence(fence, has_fields)
  if fence then
    if not (string.find(fence, '^%d+$') and tonumber(fence) < 9007199254740991) then
      return redis.error_reply('WRONGKIND a companion whose fencing token is not a number')
    end
  elseif has_fields then
    return redis.error_reply('WRONGKIND a companion without a fencing token')
  end
end

-- Returns the next fencing token: the clock in microseconds, or the last token plus one if that is
-- greater. So it grows even if the clock is set back or the companion is lost.
local function next_fence(time, last)
  return string.format('%.0f', math.max(time[1] * 1000000 + time[2], (last or 0) + 1))
end

-- Sets the companion's end. `left` is the time left of the lock in milliseconds (-1: no end), and
-- `lease` its new lease. The companion lives for ten times the longer of the two, but at least a
-- day and at most ten days.
local function outlive(left, lease)
  if left == -1 then
    left = 86400000
  end
  local longer = math.max(left, lease)
  redis.call('PEXPIRE', KEYS[2], string.format('%.0f', math.max(86400000, math.min(10 * longer, 864000000))))
end
