-- KEYS[1]  the lock: a STRING, its holder's token
-- ARGV[1]  our token
-- ARGV[2]  the lease in milliseconds
-- ARGV[3]  1 if we want to know for how long somebody else has the lock, 0 if not
-- returns  1 if the lock is ours; if somebody else has it nil, or { milliseconds until it ends, -1
-- if it does not }
--
-- What a guard without fencing tokens sends after the bare `SET … NX PX`: when it waits, or when
-- that got no answer. Safe to send twice: our own token is recognised, and its end is never earlier
-- than it was. A refused attempt writes nothing, and a key of another type stops the script before
-- it has written.

local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then
  return ARGV[3] == '1' and { redis.call('PTTL', KEYS[1]) }
end
if not holder then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
else
  -- Sent again, the end moves to later only. `PTTL` of a lock without an end is -1: an operator's,
  -- and it keeps none.
  local left = redis.call('PTTL', KEYS[1])
  if left >= 0 and left < tonumber(ARGV[2]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
  end
end
-- Only a guard's connection tracks keys, for the threads that wait for the lock after us.
if ARGV[3] == '1' then
  redis.call('GET', KEYS[1]) -- a write ends the tracking of a key, a read starts it again
end
return 1
