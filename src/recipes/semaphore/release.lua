-- KEYS, ARGV[1] as in permits.lua
-- returns  1 if the permit was ours and is free now, 0 if it was not ours
--
-- If it is sent twice, the second finds no permit of ours and frees none. The keys are gone with
-- the last permit.

local wrong = read_ends()
if wrong then
  return wrong
end
if not our_end() then
  return 0
end
sweep()
redis.pcall('HDEL', KEYS[2], 'p:' .. ARGV[1])
return redis.call('ZREM', KEYS[1], ARGV[1])
