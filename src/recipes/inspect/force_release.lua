-- KEYS[1]  a lock, of whatever kind
-- returns  1 if anybody had it, 0 if not
--
-- The companion stays: the next fencing token has to be greater than the last.

-- For `Lock::force_release`: whoever has it, all readers included. The companion stays, so that the next fencing token
-- is greater.
return redis.call('DEL', KEYS[1])
