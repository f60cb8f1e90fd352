-- KEYS[1]  the lock: a STRING, its holder's token
-- KEYS[2]  its companion; absent if the hold has none
-- ARGV[1]  our token
-- ARGV[2]  the lease from now, in milliseconds
-- returns  1 if the lock is ours and lasts at least that long, 0 if it is not ours, or an error
-- that begins with COMPANION if only the companion keeps us from renewing
--
-- Never shortens a lease: a later end stays, and so does a lock without an end (one of the book's).
-- A lease of 1 only checks the lock, and writes nothing. The companion is prolonged with the lock
-- if it belongs to this hold: a lock acquired without a fencing token has none.

-- No one can acquire the lock between this comparison and the writes below.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
-- Does the companion belong to this hold? A lock acquired by `try_acquire_unfenced` or the book has
-- none, and an existing companion is that of an earlier hold. It is read before the first write,
-- because a key of another type must stop the script. That error gets the prefix COMPANION: the
-- lock is still ours, and the watchdog must not count it as lost. `pcall` returns an error as a
-- table instead of ending the script.
local companion = KEYS[2] and redis.pcall('HGET', KEYS[2], 'token')
if type(companion) == 'table' then
  return redis.error_reply('COMPANION ' .. companion.err)
end
local has_companion = companion == ARGV[1]

local lease = tonumber(ARGV[2])
local left = redis.call('PTTL', KEYS[1])
if left >= 0 and left < lease and lease > 1 then
  redis.call('PEXPIRE', KEYS[1], lease)
end
if has_companion and lease > 1 then
  outlive(left, lease)
end
redis.call('GET', KEYS[1]) -- a write ends the tracking of a key, a read starts it again
return 1
