-- KEYS     the semaphore, its owners and its counter, see look.lua and owners.lua
-- ARGV[1]  our token
-- returns  1 if we have the permit and its timeout was restarted, 0 if it is lost
--
-- Writes nothing for a lost permit. Safe to send twice: a time never moves back.

local wrong = wrong_times() or wrong_numbers()
if wrong then
  return wrong
end

if not (redis.call('ZSCORE', KEYS[1], ARGV[1]) and redis.call('ZSCORE', KEYS[2], ARGV[1])) then
  return 0
end
outlive(0)
redis.call('ZADD', KEYS[1], 'XX', 'GT', now, ARGV[1])
return 1
