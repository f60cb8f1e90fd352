-- KEYS[1]  the lock, see holders.lua
-- ARGV[1]  our token
-- ARGV[2]  the lease in milliseconds
-- ARGV[3]  1 to return the time until the last writer ends, 0 if not
-- returns  1 if we are a reader; if a writer holds the lock or waits 0, or { milliseconds until the
--          last one ends }
--
-- Safe to send twice: a reader that holds the lock is recognised, even if a writer waits. A refused
-- attempt writes nothing.

local wrong = read_holders()
if wrong then
  return wrong
end

-- A token that holds the lock for writing would wait for itself, so it is refused at once.
local ours = 'r:' .. ARGV[1]
if ends['w:' .. ARGV[1]] then
  return redis.error_reply('INVALIDTOKEN it holds this lock for writing')
end
-- A reader is granted the lock unless there is a writer or a writer's intent.
if not ends[ours] then
  local free_at = last_end('^[wi]:')
  if free_at then
    return ARGV[3] == '1' and { free_at - now } or 0
  end
end

hold(ours, tonumber(ARGV[2]))
return 1
