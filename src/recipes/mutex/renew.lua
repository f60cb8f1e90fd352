-- KEYS[1]  the lock: a STRING, its holder's token
-- KEYS[2]  its companion
-- ARGV[1]  our token
-- ARGV[2]  the lease from now, in milliseconds
-- returns  1 if the lock is ours and lasts at least that long, 0 if it is not ours, or an error that begins with
--          COMPANION if only the companion keeps us from renewing
--
-- Never shortens: an end further away, or none (a book lock), stays. The companion lives as long as the lock does, where
-- it is this hold's: a lock that was taken without a fencing token has none.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
local companion = redis.pcall('HGET', KEYS[2], 'token')
if type(companion) == 'table' then
  return redis.error_reply('COMPANION ' .. companion.err)
end
local has_companion = companion == ARGV[1]

local lease = tonumber(ARGV[2])
local left = redis.call('PTTL', KEYS[1])
if left >= 0 and left < lease then
  redis.call('PEXPIRE', KEYS[1], lease)
end
if has_companion then
  redis.call('PEXPIRE', KEYS[2], math.max(86400000, 10 * lease, math.min(10 * left, 864000000)))
end
redis.call('GET', KEYS[1]) -- a write ends the tracking of a key, a read starts it again
return 1
