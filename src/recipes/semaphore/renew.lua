-- KEYS, ARGV[1] as in permits.lua
-- ARGV[2]  the lease from now, in milliseconds
-- returns  1 if the permit is still ours and lasts at least that long, 0 if it is not ours
--
-- A lost permit is not restored: another holder may have it. Never shortens a lease. A lease of 1
-- only checks the permit, and writes nothing. The end of both keys only moves forward. A companion
-- key of another type stays unchanged, and does not prevent the renewal.

local answer = read_ours()
if answer then
  return answer
end
local lease = tonumber(ARGV[2])
local ends = now + lease
if lease > 1 and ends > ours then
  -- A server out of memory refuses `ZADD` unless the script has written before, so the key's end is
  -- set even if it does not change. A key without an end (-1) stays without one.
  local last = math.max(latest, ends)
  local fence = companion_fence()
  if fence then
    companion_stays(last, fence)
  end
  if redis.call('PTTL', KEYS[1]) >= 0 then
    stay(last)
  end
  redis.call('ZADD', KEYS[1], 'XX', string.format('%.0f', ends), ARGV[1])
end
redis.call('ZSCORE', KEYS[1], ARGV[1]) -- a write ends the tracking of a key, a read starts it again
return 1
