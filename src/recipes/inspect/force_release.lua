-- KEYS[1]  a lock, of whatever kind
-- returns  1 if anybody had it, 0 if not
--
-- The companion stays: the next fencing token has to be greater than the last.
return redis.call('DEL', KEYS[1])
