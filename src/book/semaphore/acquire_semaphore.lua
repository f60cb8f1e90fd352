-- KEYS[1]  the semaphore, see look.lua
-- ARGV[1]  our token
-- ARGV[2]  the maximum number of permits
-- ARGV[3]  the timeout in milliseconds
-- returns  1 if we have a permit, 0 if none is free
--
-- Counts the permits: a rank among the scores would count only those of clients whose clocks are
-- behind. A refused attempt leaves no token.

local wrong = wrong_times()
if wrong then
  return wrong
end

local timeout = tonumber(ARGV[3])
outlive(timeout)
sweep(timeout)
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[2]) then
  return 0
end
redis.call('ZADD', KEYS[1], now, ARGV[1])
outlive(timeout)
return 1
