-- Stands before scripts that keep or use a companion, the key beside a lock: a HASH of fence, the
-- last fencing token, and of token, owner and since, for people to read.
--
-- KEYS[2]  the companion

-- Answers an error unless this is a fencing token to which one can be added. A hash without a
-- fencing token is no companion of ours, and nothing is written into it.
local function wrong_fence(fence, has_fields)
  if fence then
    if not (string.find(fence, '^%d+$') and tonumber(fence) < 9007199254740991) then
      return redis.error_reply('WRONGKIND a companion whose fencing token is no number')
    end
  elseif has_fields then
    return redis.error_reply('WRONGKIND a companion without a fencing token')
  end
end

-- The next fencing token: the clock in microseconds, or one more than the last. It grows even if
-- either is lost.
local function next_fence(time, last)
  return string.format('%.0f', math.max(time[1] * 1000000 + time[2], (last or 0) + 1))
end

-- Lets the companion outlive a lock of which so many milliseconds are left (-1: it has no end), or
-- that is going to last so long, whichever is longer: by a day or ten times as long, and ten days
-- at the most.
local function outlive(left, lease)
  if left == -1 then
    left = 86400000
  end
  local longer = math.max(left, lease)
  redis.call('PEXPIRE', KEYS[2], string.format('%.0f', math.max(86400000, math.min(10 * longer, 864000000))))
end
