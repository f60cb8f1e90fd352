-- KEYS[1]  the lock: a STRING, its holder's token
-- KEYS[2]  the mark of the last run
-- ARGV[1]  our token
-- ARGV[2]  who we are, for people to read
-- ARGV[3]  for how long the mark is kept, in milliseconds
-- returns  1 if the lock was ours until now, the run is marked and the lock is free; 0 if it was not ours, and nothing was done
--
-- In one step: there is no moment at which the lock is free and the run is not marked. Safe to send twice: the mark that
-- the first has left names our token. Its type is looked at by the first command that writes, before the lock is touched.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return redis.call('HGET', KEYS[2], 'token') == ARGV[1] and 1 or 0
end
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
redis.call('HSET', KEYS[2], 'at', now, 'by', ARGV[2], 'token', ARGV[1])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
redis.call('DEL', KEYS[1])
return 1
