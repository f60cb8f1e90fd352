-- KEYS[1]  the lock: a STRING, its holder's token
-- ARGV[1]  our token
-- ARGV[2]  the lease in milliseconds
-- ARGV[3]  1 to return the time left of another holder's lock, 0 if not
-- returns  1 if the lock is ours; if another holder has it nil, or { milliseconds until it ends, -1
--          if it has no end }
--
-- A guard without a fencing token sends the bare `SET … NX PX` first, and this script to wait, or
-- to retry after a missing reply. Safe to send twice: our token is recognised, and its end never
-- moves back. A refused attempt writes nothing, and a key of another type stops the script before
-- its first write.

local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then
  return ARGV[3] == '1' and { redis.call('PTTL', KEYS[1]) }
end
if not holder then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
else
  -- A repeat moves the end only forward. `PTTL` is -1 for a lock without an end, such as an
  -- operator's, which stays without one.
  local left = redis.call('PTTL', KEYS[1])
  if left >= 0 and left < tonumber(ARGV[2]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
  end
end
-- Only a guard's connection tracks keys, for the threads that wait for the lock after it.
if ARGV[3] == '1' then
  redis.call('GET', KEYS[1]) -- a write ends the tracking of a key, a read starts it again
end
return 1
