-- KEYS, ARGV[1] and ARGV[2] as in levels.lua
-- ARGV[3]  the lease from now, in milliseconds
-- ARGV[4]  1 to renew only an acquisition that was counted, 0 to renew also a level of the notes'
--          scripts
-- returns  1 if the acquisition is ours and lasts at least that long, 0 if it is not ours, or an
--          error that begins with COMPANION if only the companion keeps us from renewing
--
-- Never shortens a lease, and a key without an end stays without one. A lease of 1 only checks the
-- acquisition, and writes nothing. An acquisition whose end has passed is not restored, even if it
-- still counts. A server out of memory refuses `HSET` unless the script has written before: so the
-- companion's end is written first.
local answer = read_lock_and_companion()
if answer then
  return answer
end

-- The companion belongs to this hold but does not list this acquisition: it was released, has
-- ended, or was never counted. If the companion is lost or belongs to another hold, only the owner
-- shows that the lock is ours. An acquisition still counts for a short time after its end, but it
-- can no longer be renewed.
if known and (not ends[ours] or ends[ours] < now) then
  local is_of_the_notes = counted > live and not beside[ours] and beside.released ~= ARGV[2]
  if ARGV[4] == '1' or not is_of_the_notes then
    return 0
  end
elseif not known and beside[ours] then
  return 0
end

local lease = tonumber(ARGV[3])
local left = redis.call('PTTL', KEYS[1])
if beside.owner == ARGV[1] and lease > 1 then
  outlive(left, lease)
end
if ends[ours] and ends[ours] < now + lease and lease > 1 then
  ends[ours] = now + lease
  redis.call('HSET', KEYS[2], ours, string.format('%.0f', ends[ours]))
end
if left >= 0 and left < lease and lease > 1 then
  end_at(math.max(now + lease, last_end()), counted == live)
end
redis.call('HGET', KEYS[1], ARGV[1]) -- a write ends the tracking of a key, a read starts it again
return 1
