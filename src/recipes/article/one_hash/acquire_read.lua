-- KEYS[1]  the lock, see holders.lua
-- ARGV[1]  our token
-- ARGV[2]  how long a reader may stay, in milliseconds
-- ARGV[3]  how long a writer may stay
-- ARGV[4]  how long the key stays, at least
-- returns  1 if we are among the readers, 0 if there is a writer
--
-- Safe to send twice: a token has one field. Never moves the last reader's stamp back, and never
-- shortens the key's life. A refused attempt writes nothing.

local wrong = look()
if wrong then
  return wrong
end
-- `write` alone says whether there is a writer, as for the article's programs.
if holders['write'] then
  return 0
end

-- Granted.
stay(ARGV[4])
remove(over)
-- `read` is about to get our stamp. If the one it has is not ours, a reader of the article is in,
-- of whom there will be no other trace. It is remembered in the field `read:`, which counts as a
-- reader like the others.
local seen = holders['read']
local _, is_ours = readers(seen)
if seen and not is_ours then
  redis.call('HSET', KEYS[1], 'read:', later(seen, holders['read:']))
end
-- A field of our own for us, and `read` for the article's writers to see.
redis.call('HSET', KEYS[1], 'read:' .. ARGV[1], stamp, 'read', later(seen, stamp))
stay(ARGV[4])
redis.call('EXISTS', KEYS[1]) -- a write ends the tracking of a key, a read starts it again
return 1
