-- KEYS[1]  the lock: a STRING, its holder's token
-- ARGV[1]  our token
-- returns  1 if the lock was ours and is free now, 0 if it was not ours
--
-- Compares and deletes in one step: a lock that has ended and been taken by somebody else is left
-- alone. The companion stays: the next fencing token has to be greater than the last. The writer of
-- `two_key` is released by this script too.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
