-- KEYS[1]  the lock: a HASH of one field, its owner, and how often that owner holds it
-- KEYS[2]  its companion
-- ARGV[1]  our owner
-- ARGV[2]  the lease from now, in milliseconds
-- returns  1 if the lock is ours and lasts at least that long, 0 if it is not ours, or an error that begins with
--          COMPANION if only the companion keeps us from renewing
--
-- Never shortens, so that a renewal that comes late does not harm the same owner's next hold. The types of both keys are
-- looked at before the first write.

-- Who holds it, with the same checks as in the acquire. It is the owner who renews and not one acquisition: one renewal
-- is enough, however often the lock is held.
local held = redis.call('HLEN', KEYS[1]) < 2 and redis.call('HGETALL', KEYS[1])
if not held or held[1] and not (string.find(held[2], '^[1-9]%d*$') and tonumber(held[2]) < 9007199254740991) then
  return redis.error_reply('WRONGKIND a hash that is not one owner and a count')
end
if held[1] ~= ARGV[1] then
  return 0
end
-- Does the companion tell of this owner? If not, it belongs to an earlier hold. A key of another type stops us before
-- we write, with the same word as in `mutex/renew.lua`.
local companion = redis.pcall('HGET', KEYS[2], 'owner')
if type(companion) == 'table' then
  return redis.error_reply('COMPANION ' .. companion.err)
end
local has_companion = companion == ARGV[1]

-- The end moves to later only, so a renewal that arrives late does not shorten the same owner's next hold. -1 is less
-- than any lease: a hash without an end gets one.
local lease = tonumber(ARGV[2])
local left = redis.call('PTTL', KEYS[1])
if left < lease then -- -1: the hash has lost its end, and gets one
  redis.call('PEXPIRE', KEYS[1], lease)
end
-- The companion outlives the lock, as in `mutex/renew.lua`. It has to: it knows which acquisitions have been counted.
if has_companion then
  redis.call('PEXPIRE', KEYS[2], math.max(86400000, 10 * lease, math.min(10 * left, 864000000)))
end
-- The read after the last write, and the answer.
redis.call('HGET', KEYS[1], ARGV[1]) -- a write ends the tracking of a key, a read starts it again
return 1
