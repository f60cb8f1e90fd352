-- KEYS[1]  a key that is not there
-- returns  0
--
-- Reads the clock and then executes a command that counts as a write, as the scripts of the locks
-- do. Nothing is written.
redis.call('TIME')
return redis.call('DEL', KEYS[1])
