-- KEYS[1]  the key that has the end of our hold in milliseconds since 1970 by the server's clock
-- KEYS[2]  the proof: a STRING that expires when the hold ends
-- ARGV[1]  HGET or ZSCORE, which reads that end
-- ARGV[2]  its field or member
-- returns  1
--
-- `EXEC` fails if a watched key has expired. A mutex is such a key, but the key of any other kind
-- stays if somebody else also holds the lock. So the transaction also watches the proof. If the
-- hold does not exist or has ended, the proof does not exist after this script.

local ending = redis.call(ARGV[1], KEYS[1], ARGV[2])
redis.call('SET', KEYS[2], 1)
redis.call('PEXPIREAT', KEYS[2], string.format('%.0f', (tonumber(ending or 0) or 0) - 1))
return 1
