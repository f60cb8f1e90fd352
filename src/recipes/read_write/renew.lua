-- KEYS[1]  the lock, see holders.lua
-- KEYS[2]  a writer's companion; absent for a reader
-- ARGV[1]  our field: r:<token> or w:<token>
-- ARGV[2]  the lease from now, in milliseconds
-- returns  1 if the hold is still ours and lasts at least that long, 0 if it is not ours, or an
-- error that begins with COMPANION if only the companion keeps us from renewing
--
-- Never shortens a lease. A lease of 1 only checks the hold, and writes nothing. Reads no other
-- holder, so the cost does not depend on their number. The key's end only moves forward, a
-- millisecond after the field's (see holders.lua). The companion is prolonged with the lock if it
-- belongs to this hold.
--
-- A server out of memory refuses `HSET` unless the script has written before. So the ends of both
-- keys are written first, even if they do not change.

-- The server's clock in milliseconds.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- Is it a lock of this kind? Without a key the lock has ended. Any other hash is another kind of
-- lock.
local found = redis.call('HMGET', KEYS[1], 'kind', ARGV[1])
if found[1] ~= 'rw' then
  if redis.call('EXISTS', KEYS[1]) == 0 then
    return 0
  end
  return redis.error_reply('WRONGKIND a hash that is not a read-write lock')
end
if not found[2] then
  return 0
end
if not (string.find(found[2], '^%d+$') and tonumber(found[2]) < 9007199254740992) then
  return redis.error_reply('WRONGKIND a holder of a read-write lock whose end is not a timestamp')
end
-- A hold that has ended is not ours, even if its field is still there. It is not restored: a caller
-- may already have seen the lock as free.
if tonumber(found[2]) < now then
  return 0
end

-- Does the companion belong to this writer? A reader has no second key. Uses `HMGET` rather than
-- `HGET`, so that the script needs the right to one command fewer. The reply is a list, or a table
-- with `err` on an error, as in `mutex/renew.lua`.
local companion = KEYS[2] and redis.pcall('HMGET', KEYS[2], 'token') or {}
if companion.err then
  return redis.error_reply('COMPANION ' .. companion.err)
end
local has_companion = companion[1] and 'w:' .. companion[1] == ARGV[1]

-- Other holders may have set a later end of the key. A key without an end (-1) stays without one.
local lease = tonumber(ARGV[2])
local ends = math.max(tonumber(found[2]), now + lease)
local left = redis.call('PTTL', KEYS[1])
if left >= 0 and lease > 1 then
  redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.max(left, lease + 1)))
end
if has_companion and lease > 1 then
  outlive(left, ends - now)
end
if ends > tonumber(found[2]) and lease > 1 then
  redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', ends))
end
redis.call('HMGET', KEYS[1], 'kind') -- a write ends the tracking of a key, a read starts it again
return 1
