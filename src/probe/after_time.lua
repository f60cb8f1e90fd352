-- KEYS[1]  a key that is not there
-- KEYS[2]  its companion, which an access list may refuse
-- returns  0
--
-- Reads the clock and then executes commands that write, as the scripts of the locks
-- do. Nothing stays.
redis.call('TIME')
redis.call('SET', KEYS[1], 'probe', 'PX', 5000)
redis.call('DEL', KEYS[1])
return 0
