-- KEYS, ARGV[1] as in permits.lua
-- returns  1 if the permit was ours and is free now, 0 if it was not ours
--
-- If sent twice, the second finds no permit of ours and frees none. The keys end with the last of
-- the other permits, or are deleted now if there is none. A companion key of another type stays
-- unchanged, and does not prevent the release.

local answer = read_ours()
if answer then
  return answer
end
if last_two[#last_two - 1] ~= ARGV[1] then
  -- Another permit ends last, so both keys keep their ends.
  redis.call('ZREM', KEYS[1], ARGV[1])
  on_companion('HDEL', 'p:' .. ARGV[1])
  return 1
end
local fence = companion_fence()
if fence and last_two[3] and tonumber(last_two[2]) < now then
  sweep()
  read_last_two()
end
local last = last_two[3] and tonumber(last_two[2])
redis.call('ZREM', KEYS[1], ARGV[1])
if fence then
  redis.call('HDEL', KEYS[2], 'p:' .. ARGV[1])
end
-- A companion with the fencing token of another kind keeps its own end, and a key without an end
-- stays without one.
if last and last >= now and redis.call('PTTL', KEYS[1]) > last + 1 - now then
  stay(last)
  if fence == '0' then
    redis.call('PEXPIREAT', KEYS[2], string.format('%.0f', last + 1))
  end
elseif fence == '0' and not last then
  redis.call('DEL', KEYS[2])
end
return 1
