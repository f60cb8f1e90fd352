-- KEYS[1]  the lock, see holders.lua
-- ARGV[1]  our token
-- ARGV[2]  how long a reader may stay, in milliseconds
-- ARGV[3]  how long a writer may stay
-- ARGV[4]  how long the key stays, at least
-- returns  1 if we are the writer, 0 if somebody else is in
--
-- Safe to send twice: our own token is recognised. Never shortens the key's life while somebody is
-- in. A refused attempt writes nothing.

local wrong = look()
if wrong then
  return wrong
end
local ours = 'write:' .. ARGV[1]
-- No `write`, so nobody writes as far as the article is concerned. Readers keep us out, the
-- article's (`read`) and ours, which have fields of their own: a reader of the article may have
-- removed `read` while ours are in. What else is there is the field of a writer of ours whose
-- `write` has been removed. For the article's programs that writer's lock is gone. So it is for us,
-- and the field is removed too.
if not holders['write'] then
  if holders['read'] or readers() then
    return 0
  end
  for field in pairs(holders) do
    table.insert(over, field)
  end
elseif holders['write'] ~= holders[ours] then
  -- Somebody writes. It is us only if `write` has the very stamp of our field.
  return 0
end

stay(ARGV[4])
remove(over)
redis.call('HSET', KEYS[1], 'write', stamp, ours, stamp)
stay(ARGV[4])
redis.call('EXISTS', KEYS[1]) -- a write ends the tracking of a key, a read starts it again
return 1
