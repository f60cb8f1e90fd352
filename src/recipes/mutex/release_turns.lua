-- KEYS[1]  the lock: a STRING, its holder's token
-- KEYS[2]  its companion
-- ARGV[1]  our token
-- ARGV[2]  the last fencing token that was used, of those that were reserved with the lock
-- returns  1 if the lock was ours and is free now, 0 if it was not ours
--
-- The rest of the fencing tokens is handed back, so that they do not run ahead of the clock. Freeing the lock comes
-- first and needs nothing of the companion: while it is missing, full or foreign, the numbers are what is lost.

-- As `mutex/release.lua`. Freeing the lock comes first and needs nothing of the companion.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[1])
-- What was reserved and not used is handed back: the last fencing token is the last that somebody was given. Errors are
-- left without consequences: without memory, or with a companion that is foreign by now, the numbers that were not used
-- are lost, and the clock passes them within the lease.
if redis.pcall('HGET', KEYS[2], 'token') == ARGV[1] then
  redis.pcall('HSET', KEYS[2], 'fence', ARGV[2], 'reserved', 0)
end
return 1
