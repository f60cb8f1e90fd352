-- KEYS, ARGV[1] as in permits.lua
-- returns  1 if the permit was ours and is free now, 0 if it was not ours
--
-- If sent twice, the second finds no permit of ours and frees none. The keys end with the last of
-- the other permits, or are deleted now if there is none. A companion key of another type stays
-- unchanged, and does not prevent the release.

local wrong = read_ends()
if wrong then
  return wrong
end
if not ours then
  return 0
end
local fence = companion_fence()
if fence then
  sweep()
end
-- The last two, of which ours may be one.
local two = redis.call('ZRANGE', KEYS[1], -2, -1, 'WITHSCORES')
local last = tonumber(two[3] == ARGV[1] and two[2] or two[4] or nil)
redis.call('ZREM', KEYS[1], ARGV[1])
if fence then
  redis.call('HDEL', KEYS[2], 'p:' .. ARGV[1])
end
-- A companion with the fencing token of another kind keeps its own end, and a key without an end
-- keeps none.
if last and last >= now and redis.call('PTTL', KEYS[1]) > last + 1 - now then
  stay(last)
  if fence == '0' then
    redis.call('PEXPIREAT', KEYS[2], string.format('%.0f', last + 1))
  end
elseif fence == '0' and not last then
  redis.call('DEL', KEYS[2])
end
return 1
