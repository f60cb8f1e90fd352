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
-- stored is the last of those that are reserved, which the clock has passed when the lease ends.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local lease = tonumber(ARGV[2])
if ARGV[3] ~= '0' then
  lease = tonumber(ARGV[3]) - now
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

local last = redis.call('HMGET', KEYS[2], 'fence', 'token', 'reserved')
local fence, reserved = last[1], last[3] or '0'
if fence then
  local are_numbers = string.find(fence, '^%d+$') and string.find(reserved, '^%d+$')
  if not (are_numbers and fence + ARGV[6] < 9007199254740991) then
    return redis.error_reply('WRONGKIND a companion whose fencing token is no number')
  end
elseif redis.call('EXISTS', KEYS[2]) == 1 then
  return redis.error_reply('WRONGKIND a companion without a fencing token')
end

if not (holder and fence and last[2] == ARGV[1]) then
  local clock = time[1] * 1000000 + time[2]
  reserved = ARGV[6]
  fence = string.format('%.0f', math.max(clock, (fence or 0) + 1) + reserved)
  redis.call('HSET', KEYS[2], 'fence', fence, 'token', ARGV[1], 'owner', ARGV[4], 'since', string.format('%.0f', now))
  if reserved ~= (last[3] or '0') then
    redis.call('HSET', KEYS[2], 'reserved', reserved)
  end
end
redis.call('PEXPIRE', KEYS[2], math.max(86400000, 10 * lease))

if not holder then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', lease)
else
  local left = redis.call('PTTL', KEYS[1])
  if left >= 0 and left < lease then -- -1 is a lock without an end: the book's
    redis.call('PEXPIRE', KEYS[1], lease)
  end
end
redis.call('GET', KEYS[1]) -- a write ends the tracking of a key, a read starts it again
return string.format('%.0f', fence - reserved)
