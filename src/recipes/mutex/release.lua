-- KEYS[1]  the lock: a STRING, its holder's token
-- ARGV[1]  our token
-- returns  1 if the lock was ours and is free now, 0 if it was not ours
--
-- Nobody can take the lock between the comparison and the deletion. The companion stays: the next fencing token has to
-- be greater than the last.

-- Compare and delete in one step: a lock that has ended and been taken by somebody else is left alone. `DEL` answers 1.
-- The companion stays, so that the next fencing token is greater. The writer of `two_key` is released by this script
-- too.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
