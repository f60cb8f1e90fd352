-- KEYS[1]  the lock: a STRING, its holder's token
-- ARGV[1]  our token
-- returns  1 if the lock was ours and is free now, 0 if it was not ours
--
-- Nobody can take the lock between the comparison and the deletion. The companion stays: the next fencing token has to
-- be greater than the last.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
