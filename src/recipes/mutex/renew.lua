-- KEYS[1]  the lock: a STRING, its holder's token
-- KEYS[2]  its companion; not named where there is none
-- ARGV[1]  our token
-- ARGV[2]  the lease from now, in milliseconds
-- returns  1 if the lock is ours and lasts at least that long, 0 if it is not ours, or an error
-- that begins with COMPANION if only the companion keeps us from renewing
--
-- Never shortens: an end further away, or none (a book lock), stays. A lease of 1 only asks, and
-- writes nothing. The companion lives as long as the lock does, where it is this hold's: a lock
-- that was taken without a fencing token has none.

-- Nobody can take the lock between this comparison and what follows.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
-- Is the companion this hold's? A lock that was taken by `try_acquire_unfenced` or by `simple` has
-- none, and the one that is there tells of an earlier hold. It is looked at now, because a key of
-- another type has to stop us before we write. That error gets a word of its own before it: the
-- lock is still ours, and a watchdog must not take it for lost. `pcall` answers an error as a table
-- instead of ending the script.
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
