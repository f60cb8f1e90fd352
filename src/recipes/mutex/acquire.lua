-- KEYS[1]  the lock: a STRING, its holder's token
-- KEYS[2]  its companion: a HASH of fence, token, owner, since, reserved
-- ARGV[1]  our token
-- ARGV[2]  the lease in milliseconds; it does not count where ARGV[6] is there
-- ARGV[3]  who we are, for people to read
-- ARGV[4]  1 if we want to know for how long somebody else has the lock; not there, or 0, if not
-- ARGV[5]  how many more fencing tokens to reserve for those we hand the lock to, at the most; not
-- there, or 0, for none
-- ARGV[6]  the end in milliseconds since 1970, if it is a moment
-- returns  our fencing token, or if ARGV[5] asks for more { our fencing token, how many more that
-- are ours follow it }; if somebody else has the lock nil, or { milliseconds until it ends, -1 if
-- it does not }
--
-- Safe to send twice: our own token is recognised, keeps its fencing token, and its end is never
-- earlier than it was. A refused attempt reads the lock and nothing else, and writes nothing.
-- Whatever can fail (types, numbers, the end) is looked at before the first write, and the lock is
-- written last: a command that is forbidden to us leaves no lock. The fencing token is the clock in
-- microseconds, or one more than the last: it grows even if either is lost. None is ahead of the
-- clock unless the clock was set back.
--
-- Each argument, each command and each number that Lua writes out takes about a microsecond. So
-- arguments that are seldom there come last, numbers stay texts, and the usual case comes first.
local call, lock, companion, token, lease = redis.call, KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local is_guard, most = ARGV[4] == '1', ARGV[5] or '0'

-- An end that is a moment is turned into a length here, by the server's clock. The command's own
-- `NX PXAT` with a moment in the past answers OK, and there is no lock; here that is an error. So
-- is an end that is further away than any lease may be. Both are judged before the lock is looked
-- at: a wrong end is wrong whether the lock is free or not.
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

-- Somebody else has the lock: refused. If the lock holds our own token, this attempt was sent
-- before, and goes on.
local holder = call('GET', lock)
if holder and holder ~= token then
  return is_guard and { call('PTTL', lock) }
end

-- The server's clock, which comes as two texts: seconds and microseconds. Filled up with zeros and
-- put together, they are the time in microseconds, and without the last three digits in
-- milliseconds.
local time = call('TIME')
local clock = time[1] .. string.sub('00000' .. time[2], -6)
local now = string.sub(clock, 1, -4)

-- The usual case: the lock is free, nothing is reserved, and the last fencing token is a little
-- behind the clock. Two whole numbers of as many digits are in the order of their texts. Where the
-- last token also has the digits of the clock but the last nine, the companion's end was written
-- less than 1,000 seconds ago, and is still nearly a day away: far enough for a lease of at most
-- six digits, a quarter of an hour.
local fence = call('HGET', companion, 'fence')
if fence and not holder and most == '0' and #lease < 7 and #fence == #clock and fence < clock
    and string.sub(fence, 1, -10) == string.sub(clock, 1, -10) and not string.find(fence, '%D') then
  call('HSET', companion, 'fence', clock, 'token', token, 'owner', ARGV[3], 'since', now, 'reserved', '0')
  call('SET', lock, token, 'PX', lease)
  if is_guard then
    call('GET', lock) -- see at the end
  end
  return clock
end

-- The companion: the last fencing token, and how many of those up to it were reserved for
-- hand-overs. They have to be whole numbers to which more can be added. A hash without a fencing
-- token is not a companion of ours, and nothing is written into it.
local reserved = call('HGET', companion, 'reserved') or '0'
if fence then
  local are_numbers = string.find(fence, '^%d+$') and string.find(reserved, '^%d+$')
  if not (are_numbers and tonumber(fence) < 9007199254740991) then
    return redis.error_reply('WRONGKIND a companion whose fencing token is no number')
  end
elseif call('EXISTS', companion) == 1 then
  return redis.error_reply('WRONGKIND a companion without a fencing token')
end

-- The companion lives much longer than the lock, since the next holder's fencing token has to be
-- greater. It is not kept for ever: when it is gone, the clock is further on than it was. Its end
-- is written only once in 1,000 seconds, as the last fencing token tells, and for a lease of more
-- than two hours, `7200000`. The end is written before the fencing token that tells of it, so that
-- a user who may not write it is refused every time. A new companion gets the fencing token 0
-- first, since only a key that is there can have an end.
if string.sub(fence or '', 1, -10) ~= string.sub(clock, 1, -10) or tonumber(lease) > 7200000 then
  if not fence then
    call('HSET', companion, 'fence', 0)
  end
  call('PEXPIRE', companion, math.max(86400000, 10 * lease))
end

-- Ours already, with a fencing token: an attempt that is sent again. It keeps what it was given, so
-- a guard is answered the first of its numbers and how many follow. Whoever asks for none to follow
-- was given the token by one of those the lock was handed to, and does not say by which: the last
-- of the numbers is never below the number of that one.
local ours, following = clock, '0'
if holder and fence and call('HGET', companion, 'token') == token then
  ours = fence
  if most ~= '0' then
    ours, following = string.format('%.0f', fence - reserved), reserved
  end
else
  -- A new hold, or one that was taken without a fencing token. The number is the clock in
  -- microseconds, or one more than the last if that is greater: so it grows when the companion is
  -- lost, and also when the clock stands still. Numbers for hand-overs lie before it, among those
  -- that the clock has passed since the last hold. So all of them are greater than the last, and
  -- less than whatever the clock gives after a loss of all data. If the last is not known, nobody
  -- can say which are free, and there are none.
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
  -- What is stored is the last of our numbers, so that every program gives a greater one. The other
  -- fields are for people to read, but `token`, which says next time whose the fencing token is,
  -- and `reserved`.
  call('HSET', companion, 'fence', stored, 'token', token, 'owner', ARGV[3], 'since', now, 'reserved', following)
end

-- The lock itself, last of all: if a command before it is forbidden to us, there is no lock.
if not holder then
  call('SET', lock, token, 'PX', lease)
else
  -- Sent again, the end moves to later only. `PTTL` of a lock without an end is -1: the book's, and
  -- it keeps none.
  local left = call('PTTL', lock)
  if left >= 0 and left < tonumber(lease) then
    call('PEXPIRE', lock, lease)
  end
end
-- Only a guard's connection tracks keys, for the threads that wait for the lock after us.
if is_guard then
  call('GET', lock) -- a write ends the tracking of a key, a read starts it again
end
if most ~= '0' then
  return { ours, tonumber(following) }
end
return ours
