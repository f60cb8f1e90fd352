-- KEYS[1]  the lock: a STRING, its holder's token
-- KEYS[2]  its companion
-- ARGV[1]  our token
-- ARGV[2]  the lease from now, in milliseconds
-- returns  1 if the lock is ours and lasts at least that long, 0 if it is not ours
--
-- Never shortens: an end further away, or none (a book lock), stays. The companion lives as long as the lock does.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
local lease = tonumber(ARGV[2])
local left = redis.call('PTTL', KEYS[1])
if left >= 0 and left < lease then
  redis.call('PEXPIRE', KEYS[1], lease)
end
redis.call('PEXPIRE', KEYS[2], math.max(86400000, 10 * lease))
redis.call('GET', KEYS[1]) -- a write ends the tracking of a key, a read starts it again
return 1
