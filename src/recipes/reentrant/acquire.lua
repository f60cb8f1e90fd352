-- KEYS[1]  the lock: a HASH of one field, its owner, and how often that owner holds it
-- KEYS[2]  its companion: a HASH of fence, token, owner, since, hold (the fence of the hold it tells of), released, and a
--          field t:<token> for each acquisition that has not been released
-- ARGV[1]  our owner
-- ARGV[2]  the token of this acquisition
-- ARGV[3]  the lease in milliseconds
-- ARGV[4]  1 if we want to know for how long another owner has the lock, 0 if not
-- returns  our fencing token and how often we hold the lock now; if another owner has it nil, or { milliseconds until it
--          ends, -1 if it does not }
--
-- Safe to send twice: an acquisition whose field is there is not counted again. A refused attempt reads the lock and
-- nothing else, and writes nothing. Whatever can fail is looked at before the first write, and the lock is written last.
-- Fields of an earlier hold count for nothing: its fence is another.
-- A hold that the companion does not tell of was taken by a program that writes none: it gets a fencing token now.

-- The lock is a hash of one field: an owner, and how often that owner holds it. A hash of two fields is no lock of this
-- kind, and is not even read whole: it might be a large one. The count has to be a whole number above 0, written as
-- Redis writes it, and small enough to be counted on. No hash at all is a free lock, and an empty list here.
local held = redis.call('HLEN', KEYS[1]) < 2 and redis.call('HGETALL', KEYS[1])
if not held or held[1] and not (string.find(held[2], '^[1-9]%d*$') and tonumber(held[2]) < 9007199254740991) then
  return redis.error_reply('WRONGKIND a hash that is not one owner and a count')
end
-- Another owner has it. Nothing more is read, and nothing is written. Whoever is going to wait is told for how long the
-- lock lasts at the most (`ARGV[4]`).
if held[1] and held[1] ~= ARGV[1] then
  return ARGV[4] == '1' and { redis.call('PTTL', KEYS[1]) }
end

-- The companion, checked as in `mutex/acquire.lua`. `last[4]` is the field of this acquisition, `t:<token>`: it is
-- there from the acquisition until its release. `last[5]` is the last acquisition that was released.
local last = redis.call('HMGET', KEYS[2], 'fence', 'owner', 'hold', 't:' .. ARGV[2], 'released')
local fence = last[1]
if fence then
  if not (string.find(fence, '^%d+$') and tonumber(fence) < 9007199254740991) then
    return redis.error_reply('WRONGKIND a companion whose fencing token is no number')
  end
elseif redis.call('EXISTS', KEYS[2]) == 1 then
  return redis.error_reply('WRONGKIND a companion without a fencing token')
end
-- Does the companion tell of *this* hold? It does if the lock is held, by the same owner, and the fencing token of the
-- hold is still the last one. Otherwise it tells of an earlier hold, or the lock was taken by a program that writes no
-- companion.
local known = held[1] and fence and last[2] == ARGV[1] and last[3] == fence

-- This acquisition has been released already. What comes here is an attempt that was late on its way: counted now, it
-- would never be given back.
if known and not last[4] and last[5] == ARGV[2] then
  return redis.error_reply('INVALIDTOKEN its acquisition has been given back already')
end

-- A hold that the companion does not tell of gets a fencing token: the clock in microseconds, or one more than the
-- last. The companion is made anew, so that no acquisition of an earlier hold is left in it. `hold` repeats the fencing
-- token of the hold: a release removes it with the lock, and another recipe on this name would change `fence` beside
-- it. Either way the two are no longer equal.
if not known then
  local time = redis.call('TIME')
  local since = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
  fence = string.format('%.0f', math.max(time[1] * 1000000 + time[2], (fence or 0) + 1))
  redis.call('DEL', KEYS[2])
  redis.call('HSET', KEYS[2], 'fence', fence, 'token', ARGV[2], 'owner', ARGV[1], 'since', since, 'hold', fence)
end
-- This acquisition gets its field, and the companion its end: a day, ten leases, or ten times what is left of the lock
-- if that is longer.
local lease = tonumber(ARGV[3])
local left = redis.call('PTTL', KEYS[1])
redis.call('HSET', KEYS[2], 't:' .. ARGV[2], 1)
redis.call('PEXPIRE', KEYS[2], math.max(86400000, 10 * lease, math.min(10 * left, 864000000)))

-- Where the field of this acquisition was there before, it has been counted, and is not counted again.
if not (known and last[4]) then
  redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
end
-- Entering again never shortens. A hash without an end, which the script of the notes leaves behind when its lease is a
-- fraction, is mended.
if left < lease then -- -1: the hash has lost its end, and gets one
  redis.call('PEXPIRE', KEYS[1], lease)
end
-- The count, which is also the read after the last write. A list is answered: the fencing token, and how deep we are
-- in.
local count = redis.call('HGET', KEYS[1], ARGV[1]) -- a write ends the tracking of a key, a read starts it again
return {fence, tonumber(count)}
