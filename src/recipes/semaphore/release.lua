-- KEYS, ARGV[1] as in permits.lua
-- returns  1 if the permit was ours and is free now, 0 if it was not ours
--
-- If sent twice, the second finds no permit of ours and frees none. The keys are deleted with the
-- last permit. The companion comes first: one of another type stops the script before the permit is
-- touched.

local wrong = read_ends()
if wrong then
  return wrong
end
if not our_end() then
  return 0
end
sweep()
redis.call('HDEL', KEYS[2], 'p:' .. ARGV[1])
redis.call('ZREM', KEYS[1], ARGV[1])
if redis.call('EXISTS', KEYS[1]) == 0 and redis.call('HMGET', KEYS[2], 'fence')[1] == '0' then
  redis.call('DEL', KEYS[2])
end
return 1
