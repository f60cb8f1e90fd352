-- KEYS, ARGV[1] as in permits.lua
-- ARGV[2]  the lease in milliseconds
-- ARGV[3]  the number of permits
-- ARGV[4]  our owner, for humans to read
-- ARGV[5]  1 to return the time until a permit ends, 0 if not
-- returns  the number of permits that are not held by others, at least 1 with ours, or { 1,
--          milliseconds until the next caller has one } if ours was the last; if none is free nil,
--          or { milliseconds until one is }
--
-- Safe to send twice: our token is recognised, and has one permit. A refused attempt writes
-- nothing. Each caller is judged by its own number of permits: if more are held than that, no one
-- loses a permit, and the caller waits until enough of them have ended.

local permits = tonumber(ARGV[3])
local from_now = string.format('%.0f', now)

-- Returns the milliseconds until a permit is free, if `count` (all or more) are held. After a grant
-- this is the last read: a write ends the tracking of a key, a read starts it again.
local function until_free(count)
  local limit = { 'LIMIT', count - permits, 1 }
  local awaited = redis.call('ZRANGEBYSCORE', KEYS[1], from_now, '+inf', 'WITHSCORES', unpack(limit))
  -- No permit is left if the server stood still until the last one had ended.
  return awaited[2] and tonumber(awaited[2]) - now or 0
end

-- The companion's read stops the script if it has another type.
local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
local stored = redis.call('HMGET', KEYS[2], 'fence', 'p:' .. ARGV[1], 'p:' .. (first[1] or ''))
local fence, mark, wrong = stored[1], stored[2], nil
local held = 0
if first[1] then
  -- Our token may be in the set without a mark if the companion was lost, and then the first member
  -- has no mark either. In any other case a missing mark means that we have no permit.
  if mark or not stored[3] then
    local found = redis.call('ZSCORE', KEYS[1], ARGV[1])
    wrong = not found and wrong_member(first[1], stored[3])
    note_ours(found)
  end
  wrong = wrong or read_latest(redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')[2])
  if wrong then
    return wrong
  end
  held = redis.call('ZCOUNT', KEYS[1], from_now, '+inf')
end
if not ours and held >= permits then
  return ARGV[5] == '1' and { until_free(held) }
end

wrong = wrong_fence(fence, not fence and redis.call('EXISTS', KEYS[2]) == 1)
if wrong then
  return wrong
end
-- This changes nothing, but a server out of memory refuses it. After any write it would allow all.
redis.call('ZADD', KEYS[1], 'XX', 'GT', 0, ARGV[1])
-- The end comes before the first write that could stay: a user without the right to set it is
-- refused here. The permit comes last.
local ends = math.max(ours or 0, now + tonumber(ARGV[2]))
local last = math.max(latest or 0, ends)
stay(last)
if first[2] and tonumber(first[2]) < now then
  sweep()
end
if not (ours and mark) then
  mark = from_now .. ' ' .. ARGV[3] .. ' ' .. ARGV[4]
end
redis.call('HSET', KEYS[2], 'fence', fence or 0, 'p:' .. ARGV[1], mark)
companion_stays(last, fence or '0')
redis.call('ZADD', KEYS[1], string.format('%.0f', ends), ARGV[1])
if not first[1] then
  stay(last) -- before the first permit no key existed
end
local free = permits - held + (ours and 1 or 0)
if free > 1 or ARGV[5] ~= '1' then
  return math.max(free, 1)
end
return { 1, until_free(permits - free + 1) }
