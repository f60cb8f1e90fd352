-- Prepended to each script that acquires or refreshes a permit of the book's semaphores.
--
-- KEYS[1]  the semaphore: a ZSET of each permit's token, with the time of its acquire or its last
--          refresh in seconds since 1970 (with decimals) as its score

-- The server's clock in seconds, as text with six decimals.
local time = redis.call('TIME')
local now = time[1] .. '.' .. string.sub('00000' .. time[2], -6)

-- Returns an error unless the lowest and the highest score are times, at most a day ahead. A sweep
-- would empty any other ZSET, and scores in milliseconds (those of the book's Java port) would
-- never expire. The book's programs write no mark. If the clock itself says that it is before 2001,
-- small scores may be times: then the member has to be a UUID, as the book's tokens are.
local function wrong_times()
  local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
  local last = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')[2]
  local member, earliest = first[1], tonumber(first[2] or nil) or 0
  local is_early = tonumber(now) < 1000000000 and earliest > 0
  local is_token = member and #member == 36 and string.find(member, '^%x+%-%x+%-%x+%-%x+%-%x+$')
  if member and earliest < 1000000000 and not (is_early and is_token) then
    return redis.error_reply('WRONGKIND a semaphore with a score that is not a time in seconds since 1970')
  elseif last and (tonumber(last) or math.huge) > now + 86400 then
    return redis.error_reply('WRONGKIND a semaphore with a score more than a day ahead, or in milliseconds')
  end
end

-- Removes the permits that are older than the caller's timeout: a permit has no end of its own.
local function sweep(timeout)
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.6f', now - timeout / 1000))
end

-- Gives the semaphore an end, a day or ten timeouts from now, unless it has a later one, and the
-- owners of a fair one the same end. The timeouts of other programs are unknown, so the end is far
-- away: a key must not end before its permits. The first call precedes all writes: a user without
-- the right to `PEXPIRE` is refused with nothing written, and a missing key stays missing.
local function outlive(timeout)
  local wanted, left = math.max(86400000, 10 * timeout), redis.call('PTTL', KEYS[1])
  if left < wanted then
    redis.call('PEXPIRE', KEYS[1], wanted)
  end
  if KEYS[2] then
    redis.call('PEXPIRE', KEYS[2], math.max(wanted, left))
  end
end
