-- KEYS[1]  the lock, see one_hash.lua
-- ARGV[1]  our token
-- ARGV[2]  how long a reader may stay, in milliseconds
-- ARGV[3]  how long a writer may stay
-- ARGV[4]  how long the key stays, at least
-- returns  1 if we are the writer, 0 if somebody else is in
--
-- Safe to send twice: our own token is recognised. Never shortens the key's life while somebody is in. A refused attempt
-- writes nothing.

-- All holders, or an error; and our own field.
local wrong = look()
if wrong then
  return wrong
end
local ours = 'write:' .. ARGV[1]
-- No `write`, so nobody writes as far as the article is concerned. Readers keep us out, the article's (`read`) and
-- ours, which have fields of their own: the article's readers may have removed `read` over our heads. What else is
-- there is the field of a writer of ours whose `write` has been removed. That writer's lock is gone for the article's
-- programs, so it is for us, and the field goes too.
if not holders['write'] then
  if holders['read'] or readers() then
    return 0
  end
  for field in pairs(holders) do
    table.insert(over, field) -- of a writer whose `write` somebody has removed
  end
elseif holders['write'] ~= holders[ours] then
  -- Somebody writes. It is us only if `write` has the very stamp of our field.
  return 0
end

-- The key's end, what is too old, then both fields with one stamp, and the key's end again.
stay(ARGV[4])
remove(over)
redis.call('HSET', KEYS[1], 'write', stamp, ours, stamp)
stay(ARGV[4])
-- The read after the last write, and the answer.
redis.call('EXISTS', KEYS[1]) -- a write ends the tracking of a key, a read starts it again
return 1
