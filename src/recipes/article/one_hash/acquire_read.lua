-- KEYS[1]  the lock, see one_hash.lua
-- ARGV[1]  our token
-- ARGV[2]  how long a reader may stay, in milliseconds
-- ARGV[3]  how long a writer may stay
-- ARGV[4]  how long the key stays, at least
-- returns  1 if we are among the readers, 0 if there is a writer
--
-- Safe to send twice: a token has one field. Never moves the last reader's stamp back, and never shortens the key's
-- life. A refused attempt writes nothing.
local wrong = look()
if wrong then
  return wrong
end
if holders['write'] then
  return 0
end

stay(ARGV[4])
remove(over)
local seen = holders['read']
local _, is_ours = readers(seen)
if seen and not is_ours then
  redis.call('HSET', KEYS[1], 'read:', later(seen, holders['read:']))
end
redis.call('HSET', KEYS[1], 'read:' .. ARGV[1], stamp, 'read', later(seen, stamp))
stay(ARGV[4])
redis.call('EXISTS', KEYS[1]) -- a write ends the tracking of a key, a read starts it again
return 1
