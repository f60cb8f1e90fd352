-- KEYS[1]  the semaphore, see look.lua
-- KEYS[2]  its owners, see owners.lua
-- ARGV[1]  our token
-- returns  1 if we had the permit until now, 0 if it was lost
--
-- Reads both before the first write, so that a key of another type stops the script. A token in
-- only one of them is not a permit, and is removed too.

local at, number = redis.call('ZSCORE', KEYS[1], ARGV[1]), redis.call('ZSCORE', KEYS[2], ARGV[1])
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
return at and number and 1 or 0
