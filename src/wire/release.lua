-- KEYS[1]  the lock: a STRING, its holder's token
-- ARGV[1]  our token
-- returns  1 if the lock was ours and is free now, 0 if it was not ours
--
-- Compares and deletes in one step: if the lock has expired and has another holder now, it stays.
-- Releases a mutex, the book's lock and the writer of `two_key`. The companion stays, so that the
-- next fencing token is greater.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
