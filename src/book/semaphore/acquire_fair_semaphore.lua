-- KEYS     the semaphore, its owners and its counter, see look.lua and owners.lua
-- KEYS[4]  the book's lock around the semaphore: a STRING, its holder's token; absent if the caller
--          does not ask for it
-- ARGV[1]  our token
-- ARGV[2]  the maximum number of permits
-- ARGV[3]  the timeout in milliseconds
-- ARGV[4]  the end in milliseconds for a lock without one
-- returns  1 if we have a permit, 0 if none is free, nil if another program has the lock
--
-- Safe to send twice: our token is recognised. A refused attempt leaves no token.

local lock = KEYS[4] and redis.call('GET', KEYS[4])
local wrong = wrong_times() or wrong_numbers()
if wrong then
  return wrong
end

-- No one can acquire a free lock while this script runs, so the script need not acquire it. A lock
-- without an end gets one, so that a dead holder does not block the semaphore forever.
if lock then
  if redis.call('PTTL', KEYS[4]) == -1 then
    redis.call('PEXPIRE', KEYS[4], ARGV[4])
  end
  return false
end

local timeout = tonumber(ARGV[3])
-- An owner without a time in the semaphore has been swept, by any program.
outlive(timeout)
sweep(timeout)
redis.call('ZINTERSTORE', KEYS[2], 2, KEYS[2], KEYS[1], 'WEIGHTS', 1, 0)

local is_held = redis.call('ZSCORE', KEYS[2], ARGV[1])
local is_ours = is_held or redis.call('ZCARD', KEYS[2]) < tonumber(ARGV[2])
if is_ours and not is_held then
  redis.call('ZADD', KEYS[1], now, ARGV[1])
  redis.call('ZADD', KEYS[2], 0, ARGV[1])
end
outlive(timeout) -- `ZINTERSTORE` has removed the end of the owners' key
return is_ours and 1 or 0
