-- KEYS[1]  the lock: a STRING, its holder's token
-- KEYS[2]  the mark of the last run, see mark.lua
-- ARGV[1]  our token
-- ARGV[2]  who we are, for people to read
-- ARGV[3]  for how long the mark is kept, in milliseconds
-- returns  1 if the lock was ours until now, the run is marked and the lock is free; 0 if it was
-- not ours, and nothing was done
--
-- In one step: there is no moment at which the lock is free and the run is not marked. Safe to send
-- twice: the mark that the first has left names our token.
local is_ours = redis.call('GET', KEYS[1]) == ARGV[1]
local run = read_mark()
if run.err then
  return run
elseif not is_ours then
  return run[3] == ARGV[1] and 1 or 0
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- A mark is kept for at least as long as the one before it: somebody else may run it with a longer
-- period than ours. The mark before was kept for the time since its run and the time that is left
-- of it.
local kept, left = tonumber(ARGV[3]), redis.call('PTTL', KEYS[2])
if left > 0 then
  kept = math.max(kept, left + math.max(0, now - run[1]))
end
kept = string.format('%.0f', kept)

-- A script that is refused a command stops there, and what it has written stays. So `PEXPIRE` comes
-- first, and changes nothing that a reader sees. Once it was allowed, only `HSET` can still be
-- refused, before the mark is written.
redis.call('PEXPIRE', KEYS[2], kept)
redis.call('HSET', KEYS[2], 'at', string.format('%.0f', now), 'by', ARGV[2], 'token', ARGV[1])
redis.call('PEXPIRE', KEYS[2], kept)
redis.call('PEXPIRE', KEYS[1], 0) -- deletes it: a `DEL` might be refused now
return 1
