-- KEYS, ARGV[1] and ARGV[2] as in levels.lua
-- ARGV[3]  the lease in milliseconds
-- ARGV[4]  1 to return the time left of another owner's lock, 0 if not
-- ARGV[5]  the greatest fencing token of a hold that has ended, as far as the caller knows
-- returns  our fencing token and our count of the lock; if another owner has it nil, or {
--          milliseconds until it ends, -1 if it has no end }
--
-- Safe to send twice: an acquisition that has a field is not counted again. A refused attempt reads
-- only the lock, and writes nothing. Everything that can fail is checked before the first write,
-- and the lock is written last. If the companion does not belong to this hold, a program that
-- writes no companion acquired the lock: the hold gets a fencing token now.
local wrong = read_lock()
if wrong then
  return wrong
end
-- Another owner has the lock. A caller that will wait gets the maximum time until the lock ends.
if count > 0 and not is_owner then
  return ARGV[4] == '1' and { redis.call('PTTL', KEYS[1]) }
end
wrong = read_companion()
if wrong then
  return wrong
end

-- This acquisition was released before this attempt arrived. If it were counted now, no one would
-- release it.
if known and not ends[ours] and beside.released == ARGV[2] then
  return redis.error_reply('INVALIDTOKEN its acquisition has already been released')
end

-- A failover has undone the release of an earlier hold, whose remains nobody holds. So this attempt
-- is no re-entry: it starts a new hold, with its own end.
local is_over = known and tonumber(beside.hold) <= tonumber(ARGV[5])
if is_over then
  known, ends, live, counted = false, {}, 0, 0
end

-- Re-entry never shortens the lease, and an acquisition that has been counted is not counted again.
local held_now = ends[ours] and counted or counted + 1
local left = count > 0 and redis.call('PTTL', KEYS[1]) or -2
ends[ours] = math.max(ends[ours] or 0, now + ARGV[3])
local longest = last_end() - now
local fence = beside.fence
if known then
  remove_over()
else
  fence = start_companion(ARGV[5])
end
redis.call('HSET', KEYS[2], ours, string.format('%.0f', ends[ours]))
outlive(left, longest)

-- A hash without an end (-1) gets one. The notes' script leaves such a hash behind if its lease is
-- a fraction.
set_count(held_now)
if left < longest or is_over then
  end_at(now + longest, counted == live)
end
-- A write ends the tracking of a key, a read starts it again. The value is not used: a lease of a
-- millisecond may have ended.
redis.call('HGET', KEYS[1], ARGV[1])
return { fence, held_now }
