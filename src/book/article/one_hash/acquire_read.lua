-- KEYS[1]  the lock, see holders.lua
-- ARGV[1]  our token
-- ARGV[2]  the maximum time of a reader's hold, in milliseconds
-- ARGV[3]  the maximum time of a writer's hold
-- ARGV[4]  the minimum life of the key
-- returns  1 if we are a reader, 0 if there is a writer
--
-- Safe to send twice: each token has one field. Never moves the last reader's timestamp back, and
-- never shortens the key's life. A refused attempt writes nothing.

local wrong = read_holders()
if wrong then
  return wrong
end
-- As in the article's programs, only `write` shows a writer.
if holders['write'] then
  return 0
end

-- Granted.
stay(ARGV[4])
-- Our own field, and `read` for the article's writers to see. If the timestamp that `read` had is
-- not ours, a reader of the article holds the lock, and this is the only trace of it. It is kept in
-- the field `read:`, which counts as a reader like the others.
local seen = holders['read']
local _, is_ours = readers(seen)
write('read:' .. ARGV[1], 'read', later(seen, stamp))
if seen and not is_ours then
  redis.call('HSET', KEYS[1], 'read:', later(seen, holders['read:']))
end
stay(ARGV[4])
redis.call('HRANDFIELD', KEYS[1]) -- a write ends the tracking of a key, a read starts it again
return 1
