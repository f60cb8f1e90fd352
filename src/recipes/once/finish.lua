-- KEYS[1]  the lock: a STRING, its holder's token
-- KEYS[2]  the mark of the last run, see mark.lua
-- ARGV[1]  our token
-- ARGV[2]  our owner, for humans to read
-- ARGV[3]  the time to keep the mark, in milliseconds
-- returns  1 if the lock was ours: the run is marked and the lock is free; 0 if it was not ours,
--          and nothing was done
--
-- Marks and releases in one step: the lock is never free while the run is not yet marked. Safe to
-- send twice: the mark that the first call left has our token.
local is_ours = redis.call('GET', KEYS[1]) == ARGV[1]
local run = read_mark()
if run.err then
  return run
elseif not is_ours then
  return run[3] == ARGV[1] and 1 or 0
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- If the server refuses a command, the script stops there and its earlier writes stay. So `PEXPIRE`
-- comes first, where it changes nothing that a reader sees. After it only `HSET` can be refused,
-- and then no mark is written.
redis.call('PEXPIRE', KEYS[2], ARGV[3])
redis.call('HSET', KEYS[2], 'at', string.format('%.0f', now), 'by', ARGV[2], 'token', ARGV[1])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
redis.call('PEXPIRE', KEYS[1], 0) -- deletes it: a `DEL` might be refused
return 1
