-- KEYS[1]  the lock: a STRING, its holder's token
-- KEYS[2]  its companion: a HASH of fence, token, owner, since
-- ARGV[1]  our token
-- ARGV[2]  the lease in milliseconds, or 0 if ARGV[3] says when it ends
-- ARGV[3]  the end in milliseconds since 1970, or 0
-- ARGV[4]  who we are, for people to read
-- ARGV[5]  1 if we want to know for how long somebody else has the lock, 0 if not
-- ARGV[6]  how many more fencing tokens to reserve after ours, for those we hand the lock to: fewer than its microseconds
-- returns  our fencing token; if somebody else has the lock nil, or { milliseconds until it ends, -1 if it does not }
--
-- Safe to send twice: our own token is recognised, keeps its fencing token, and its end is never earlier than it was. A
-- refused attempt reads the lock and nothing else, and writes nothing. Whatever can fail (types, numbers, the end) is
-- looked at before the first write, and the lock is written last: a command that is forbidden to us leaves no lock.
-- The fencing token is the clock in microseconds, or one more than the last: it grows even if either is lost. What is
-- stored is the last of those that are reserved, which the clock has passed when the lease ends. Numbers stay texts where
-- they can: to write one out takes Lua as long as a small command.
local time = redis.call('TIME')
local micros = string.sub('00000' .. time[2], -6)
local clock = time[1] .. micros
local now = time[1] .. string.sub(micros, 1, 3)
local lease = ARGV[2]
if ARGV[3] ~= '0' then
  lease = ARGV[3] - now
  if lease <= 0 then
    return redis.error_reply("INVALIDEND it is past by the server's clock")
  elseif lease > 86400000 then
    return redis.error_reply("INVALIDEND it is more than 24 h ahead by the server's clock")
  end
end

local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then
  return ARGV[5] == '1' and { redis.call('PTTL', KEYS[1]) }
end

local last = redis.call('HMGET', KEYS[2], 'fence', 'reserved')
local fence, reserved = last[1], last[2] or '0'
if fence then
  local are_numbers = string.find(fence, '^%d+$') and string.find(reserved, '^%d+$')
  if not (are_numbers and fence + ARGV[6] < 9007199254740991) then
    return redis.error_reply('WRONGKIND a companion whose fencing token is no number')
  end
elseif redis.call('EXISTS', KEYS[2]) == 1 then
  return redis.error_reply('WRONGKIND a companion without a fencing token')
end

-- Its end is far enough away for short leases if it was written in the same 1,000 seconds: the last fencing token tells.
-- So the end is written before the next one is.
if string.sub(fence or '', 1, -10) ~= string.sub(clock, 1, -10) or tonumber(lease) > 7200000 then
  if not fence then
    redis.call('HSET', KEYS[2], 'fence', 0)
  end
  redis.call('PEXPIRE', KEYS[2], math.max(86400000, 10 * lease))
end

local ours
if holder and fence and redis.call('HMGET', KEYS[2], 'token')[1] == ARGV[1] then
  ours = string.format('%.0f', fence - reserved)
else
  ours = clock
  if fence and tonumber(fence) >= tonumber(clock) then
    ours = string.format('%.0f', fence + 1)
  end
  local stored = ours
  if ARGV[6] ~= '0' then
    stored = string.format('%.0f', ours + ARGV[6])
  end
  redis.call('HSET', KEYS[2], 'fence', stored, 'token', ARGV[1], 'owner', ARGV[4], 'since', now)
  if reserved ~= ARGV[6] then
    redis.call('HSET', KEYS[2], 'reserved', ARGV[6])
  end
end

if not holder then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', lease)
else
  local left = redis.call('PTTL', KEYS[1])
  if left >= 0 and left < tonumber(lease) then -- -1 is a lock without an end: the book's
    redis.call('PEXPIRE', KEYS[1], lease)
  end
end
if ARGV[5] == '1' then
  redis.call('GET', KEYS[1]) -- a write ends the tracking of a key, a read starts it again
end
return ours
