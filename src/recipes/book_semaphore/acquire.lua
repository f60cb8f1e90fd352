-- KEYS[1]  the semaphore, see look.lua
-- ARGV[1]  our token
-- ARGV[2]  the most permits
-- ARGV[3]  the timeout in milliseconds
-- returns  1 if we have a permit, 0 if none is free
--
-- Safe to send twice: our token is recognised. The permits are counted: a rank among scores would
-- count only those of clients whose clocks are behind. A refused attempt leaves no token.

local wrong = wrong_times()
if wrong then
  return wrong
end

local timeout = tonumber(ARGV[3])
outlive(timeout)
sweep(timeout)
local is_held = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not is_held and redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[2]) then
  return 0
end
if not is_held then
  redis.call('ZADD', KEYS[1], now, ARGV[1])
  outlive(timeout)
end
return 1
