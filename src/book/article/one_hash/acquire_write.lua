-- KEYS[1]  the lock, see holders.lua
-- ARGV[1]  our token
-- ARGV[2]  the maximum time of a reader's hold, in milliseconds
-- ARGV[3]  the maximum time of a writer's hold
-- ARGV[4]  the minimum life of the key
-- returns  1 if we are the writer, 0 if someone else holds the lock
--
-- Safe to send twice: our token is recognised. Never shortens the key's life while someone holds
-- the lock. A refused attempt writes nothing.

local wrong = read_holders()
if wrong then
  return wrong
end
local ours = 'write:' .. ARGV[1]
-- Without `write` the article's programs see no writer. Readers keep us out: the article's (`read`)
-- and ours, which have their own fields, since a reader of the article may have removed `read`
-- while ours still hold the lock. Any other field belongs to a writer of ours whose `write` was
-- removed. The article's programs, and so we too, treat that writer's lock as gone: its field is
-- removed.
if not holders['write'] then
  if holders['read'] or readers() then
    return 0
  end
  for field in pairs(holders) do
    table.insert(over, field)
  end
elseif holders['write'] ~= holders[ours] then
  -- A writer holds the lock. It is us only if `write` has exactly the timestamp of our field.
  return 0
end

stay(ARGV[4])
write(ours, 'write', stamp)
stay(ARGV[4])
redis.call('HRANDFIELD', KEYS[1]) -- a write ends the tracking of a key, a read starts it again
return 1
