-- KEYS[1]  the lock: a STRING, its holder's token
-- KEYS[2]  its companion: a HASH of fence, token, owner, since
-- ARGV[1]  our token
-- ARGV[2]  the lease in milliseconds, or 0 if ARGV[3] says when it ends
-- ARGV[3]  the end in milliseconds since 1970, or 0
-- ARGV[4]  who we are, for people to read
-- ARGV[5]  1 if we want to know for how long somebody else has the lock, 0 if not
-- ARGV[6]  how many more fencing tokens to reserve after ours at the most, for those we hand the lock to
-- returns  our fencing token, or if ARGV[6] is not 0 { our fencing token, how many more follow it that are ours };
--          if somebody else has the lock nil, or { milliseconds until it ends, -1 if it does not }
--
-- Safe to send twice: our own token is recognised, keeps its fencing token, and its end is never earlier than it was. A
-- refused attempt reads the lock and nothing else, and writes nothing. Whatever can fail (types, numbers, the end) is
-- looked at before the first write, and the lock is written last: a command that is forbidden to us leaves no lock.
-- The fencing token is the clock in microseconds, or one more than the last: it grows even if either is lost. None is
-- ahead of the clock unless the clock was set back.

-- An end that is a moment is turned into a length here, by the server's clock. The command's own `NX PXAT` with a moment
-- in the past answers OK, and there is no lock; here that is an error. So is an end that is further away than any lease
-- may be. Both are judged before the lock is looked at: a wrong end is wrong whether the lock is free or not.
local lease = ARGV[2]
if ARGV[3] ~= '0' then
  local time = redis.call('TIME')
  lease = ARGV[3] - time[1] * 1000 - math.floor(time[2] / 1000)
  if lease <= 0 then
    return redis.error_reply("INVALIDEND it is past by the server's clock")
  elseif lease > 86400000 then
    return redis.error_reply("INVALIDEND it is more than 24 h ahead by the server's clock")
  end
end

-- Somebody else has the lock: refused. If the lock holds our own token, this attempt was sent before, and goes on.
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then
  return ARGV[5] == '1' and { redis.call('PTTL', KEYS[1]) }
end

-- The server's clock, which comes as two texts: seconds and microseconds. Filled up with zeros and put together, they
-- are the time in microseconds, and without the last three digits in milliseconds. They stay texts, since turning a
-- number into text takes Lua as long as a small command.
local time = redis.call('TIME')
local clock = time[1] .. string.sub('00000' .. time[2], -6)
local now = string.sub(clock, 1, -4)

-- The companion: the last fencing token, and how many of those up to it were reserved for hand-overs. They have to be
-- whole numbers to which more can be added. A hash without a fencing token is not a companion of ours, and nothing is
-- written into it.
local last = redis.call('HMGET', KEYS[2], 'fence', 'reserved')
local fence, reserved = last[1], last[2] or '0'
if fence then
  local are_numbers = string.find(fence, '^%d+$') and string.find(reserved, '^%d+$')
  if not (are_numbers and tonumber(fence) < 9007199254740991) then
    return redis.error_reply('WRONGKIND a companion whose fencing token is no number')
  end
elseif redis.call('EXISTS', KEYS[2]) == 1 then
  return redis.error_reply('WRONGKIND a companion without a fencing token')
end

-- The companion lives much longer than the lock, since the next holder's fencing token has to be greater. It is not
-- kept for ever: when it is gone, the clock is further on than it was. Its end is written only once in 1,000 seconds. All
-- but the last nine digits of a fencing token change that often: where the last token has the digits of the clock, the
-- end was written less than 1,000 seconds ago, and is still nearly a day away. For a lease of up to two hours, `7200000`,
-- that is enough. The end is written before the fencing token that tells of it, so that a user who may not write it is
-- refused every time. A new companion gets the fencing token 0 first, since only a key that is there can have an end.
if string.sub(fence or '', 1, -10) ~= string.sub(clock, 1, -10) or tonumber(lease) > 7200000 then
  if not fence then
    redis.call('HSET', KEYS[2], 'fence', 0)
  end
  redis.call('PEXPIRE', KEYS[2], math.max(86400000, 10 * lease))
end

-- Ours already, with a fencing token: an attempt that is sent again. It keeps what it was given, so a guard is answered
-- the first of its numbers and how many follow. Whoever asks for none to follow was given the token by one of those
-- the lock was handed to, and does not say by which: the last of the numbers is never below the number of that one.
local ours, following = clock, '0'
if holder and fence and redis.call('HMGET', KEYS[2], 'token')[1] == ARGV[1] then
  ours = fence
  if ARGV[6] ~= '0' then
    ours, following = string.format('%.0f', fence - reserved), reserved
  end
else
  -- A new hold, or one that was taken without a fencing token. The number is the clock in microseconds, or one more than
  -- the last if that is greater: so it grows when the companion is lost, and also when the clock stands still.
  -- Numbers for hand-overs lie before it, among those that the clock has passed since the last hold. So all of them are
  -- greater than the last, and less than whatever the clock gives after a loss of all data. If the last is not known,
  -- nobody can say which are free, and there are none.
  local stored = clock
  if fence and tonumber(fence) >= tonumber(clock) then
    stored = string.format('%.0f', fence + 1)
  end
  ours = stored
  if ARGV[6] ~= '0' and fence and fence ~= '0' and stored == clock then
    local free = clock - fence - 1
    following = string.format('%.0f', math.min(free, ARGV[6]))
    ours = string.format('%.0f', clock - following)
  end
  -- What is stored is the last of our numbers, so that every program gives a greater one. The other fields are for people
  -- to read, but `token`: it says next time whose the fencing token is. `reserved` is written only where it changes.
  redis.call('HSET', KEYS[2], 'fence', stored, 'token', ARGV[1], 'owner', ARGV[4], 'since', now)
  if reserved ~= following then
    redis.call('HSET', KEYS[2], 'reserved', following)
  end
end

-- The lock itself, last of all: if a command before it is forbidden to us, there is no lock.
if not holder then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', lease)
else
  -- Sent again, the end moves to later only. `PTTL` of a lock without an end is -1: the book's, and it keeps none.
  local left = redis.call('PTTL', KEYS[1])
  if left >= 0 and left < tonumber(lease) then
    redis.call('PEXPIRE', KEYS[1], lease)
  end
end
-- Only a guard's connection tracks keys, for the threads that wait for the lock after us.
if ARGV[5] == '1' then
  redis.call('GET', KEYS[1]) -- a write ends the tracking of a key, a read starts it again
end
if ARGV[6] ~= '0' then
  return { ours, tonumber(following) }
end
return ours
