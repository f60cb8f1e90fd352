-- KEYS[1]  the lock: a STRING, its holder's token
-- KEYS[2]  its companion: a HASH of fence, token, owner, since, reserved
-- ARGV[1]  our token
-- ARGV[2]  the lease in milliseconds; ignored if there is ARGV[6]
-- ARGV[3]  our owner, for humans to read
-- ARGV[4]  1 to return the time left of another holder's lock; 0 or absent if not
-- ARGV[5]  the maximum number of further fencing tokens to reserve for hand-overs; 0 or absent for
--          none
-- ARGV[6]  the end in milliseconds since 1970, if the lease ends at a fixed time
-- returns  our fencing token, or { our fencing token, number of reserved tokens after it } if
--          ARGV[5] asks for more; if another holder has the lock nil, or { milliseconds until it
--          ends, -1 if it has no end }
--
-- Safe to send twice: our token is recognised and keeps its fencing token, and its end never moves
-- back. A refused attempt reads only the lock, and writes nothing. Everything that can fail (types,
-- numbers, the end) is checked before the first write, and the lock is written last: if the server
-- refuses us a command, no lock is left behind. The fencing token is the clock in microseconds, or
-- the last token plus one if that is greater. So it grows even if the clock is set back or the
-- companion is lost, and it is ahead of the clock only if the clock was set back.
--
-- Each argument, each command and each number that Lua formats takes about a microsecond. So rare
-- arguments come last, numbers stay strings, and the common case comes first.
local call, lock, companion, token, lease = redis.call, KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local is_guard, most = ARGV[4] == '1', ARGV[5] or '0'

-- Converts an absolute end to a lease, by the server's clock. `SET … NX PXAT` with a past time
-- replies OK but sets no lock; here that is an error, and so is an end further ahead than the
-- longest lease. Both are checked before the lock is read, so that a wrong end is an error even on
-- a busy lock.
if ARGV[6] then
  local time = call('TIME')
  local left = ARGV[6] - time[1] * 1000 - math.floor(time[2] / 1000)
  if left <= 0 then
    return redis.error_reply("INVALIDEND it is past by the server's clock")
  elseif left > 86400000 then
    return redis.error_reply("INVALIDEND it is more than 24 h ahead by the server's clock")
  end
  lease = string.format('%.0f', left)
end

-- Another holder has the lock: refuse. If the lock holds our own token, this attempt is a repeat
-- and continues.
local holder = call('GET', lock)
if holder and holder ~= token then
  return is_guard and { call('PTTL', lock) }
end

-- The server's clock is two strings: seconds and microseconds. Joined with leading zeros they are
-- the time in microseconds; without the last three digits, in milliseconds.
local time = call('TIME')
local clock = time[1] .. string.sub('00000' .. time[2], -6)
local now = string.sub(clock, 1, -4)

-- The common case: the lock is free, nothing is reserved, and the last fencing token is a little
-- behind the clock. Two whole numbers with equally many digits compare correctly as strings. If the
-- last token equals the clock in all but the last nine digits, the companion's end was written less
-- than 1,000 seconds ago and is still nearly a day away. That is enough for a lease of at most six
-- digits, a quarter of an hour.
local fence = call('HGET', companion, 'fence')
if fence and not holder and most == '0' and #lease < 7 and #fence == #clock and fence < clock
    and string.sub(fence, 1, -10) == string.sub(clock, 1, -10) and not string.find(fence, '%D') then
  call('HSET', companion, 'fence', clock, 'token', token, 'owner', ARGV[3], 'since', now, 'reserved', '0')
  call('SET', lock, token, 'PX', lease)
  if is_guard then
    call('GET', lock) -- see the end
  end
  return clock
end

-- The companion has the last fencing token and the number of tokens up to it that were reserved for
-- hand-overs. Both must be whole numbers that can be incremented. A hash without a fencing token is
-- not our companion, and nothing is written into it.
local reserved = call('HGET', companion, 'reserved') or '0'
if fence then
  local are_numbers = string.find(fence, '^%d+$') and string.find(reserved, '^%d+$')
  if not (are_numbers and tonumber(fence) < 9007199254740991) then
    return redis.error_reply('WRONGKIND a companion whose fencing token is not a number')
  end
elseif call('EXISTS', companion) == 1 then
  return redis.error_reply('WRONGKIND a companion without a fencing token')
end

-- The companion far outlives the lock, so that the next fencing token is greater. It need not stay
-- forever: once it is gone, the clock has moved on. Its end is written only once in 1,000 seconds,
-- as the last fencing token shows, and for each lease of more than two hours (`7200000`). The end
-- is written before that fencing token, so that a user without the right to `PEXPIRE` is refused
-- every time. A new companion first gets the fencing token 0, since only an existing key can have
-- an end.
if not fence or string.sub(fence, 1, -10) ~= string.sub(clock, 1, -10) or tonumber(lease) > 7200000 then
  if not fence then
    call('HSET', companion, 'fence', 0)
  end
  call('PEXPIRE', companion, math.max(86400000, 10 * lease))
end

-- The lock is already ours and has a fencing token: this attempt is a repeat and gets the same
-- reply. So a guard gets the first of its tokens, and the number of reserved ones after it. A
-- caller that reserves none may have its token from a hand-over, and does not send which token it
-- has: that caller gets the last reserved token, which is never below its own.
local ours, following = clock, '0'
if holder and fence and call('HGET', companion, 'token') == token then
  ours = fence
  if most ~= '0' then
    ours, following = string.format('%.0f', fence - reserved), reserved
  end
else
  -- A new hold, or one that was acquired without a fencing token. Its fencing token is the clock in
  -- microseconds, or the last token plus one if that is greater: so it grows if the companion is
  -- lost, and if the clock stands still. Tokens for hand-overs lie between the last token and the
  -- clock. So they are all greater than the last, and below whatever the clock gives after a loss
  -- of all data. If the last token is unknown, no token is known to be free, and none is reserved.
  local stored = clock
  if fence and tonumber(fence) >= tonumber(clock) then
    stored = string.format('%.0f', fence + 1)
  end
  ours = stored
  if most ~= '0' and fence and fence ~= '0' and stored == clock then
    local free = clock - fence - 1
    following = string.format('%.0f', math.min(free, most))
    ours = string.format('%.0f', clock - following)
  end
  -- The stored token is the last one issued, so that every other program gets a greater one.
  -- `token` (whose fencing token this is) and `reserved` are read again by this script; the other
  -- fields are for humans to read.
  call('HSET', companion, 'fence', stored, 'token', token, 'owner', ARGV[3], 'since', now, 'reserved', following)
end

-- The lock itself is written last: if the server refuses us an earlier command, no lock is left
-- behind.
if not holder then
  call('SET', lock, token, 'PX', lease)
else
  -- A repeat moves the end only forward. `PTTL` is -1 for a lock without an end, such as one of the
  -- book's, which stays without one.
  local left = call('PTTL', lock)
  if left >= 0 and left < tonumber(lease) then
    call('PEXPIRE', lock, lease)
  end
end
-- Only a guard's connection tracks keys, for the threads that wait for the lock after it.
if is_guard then
  call('GET', lock) -- a write ends the tracking of a key, a read starts it again
end
if most ~= '0' then
  return { ours, tonumber(following) }
end
return ours
