-- KEYS[1]  the lock, see holders.lua
-- ARGV[1]  our token
-- ARGV[2]  the maximum time of a reader's hold, in milliseconds
-- ARGV[3]  the maximum time of a writer's hold
-- returns  1 if we were a reader until now, 0 if not
--
-- The article's scripts see a reader as long as one holds the lock, ours or theirs.

local wrong = read_holders()
if wrong then
  return wrong
end
local ours = 'read:' .. ARGV[1]
local started = holders[ours]
if not started then
  return 0
end

holders[ours] = nil
table.insert(over, ours)
-- If `read` has our timestamp, or a reader of the article removed it, it gets the latest timestamp
-- of our other readers, so that the article's writers see them. If there are none, it is deleted.
-- Any other timestamp in `read` is another reader's, and stays.
local last = readers()
local is_ours = not holders['read'] or holders['read'] == started
if is_ours and not last then
  table.insert(over, 'read')
end
-- The server deletes the key with its last field.
remove(over)
if is_ours and last then
  redis.call('HSET', KEYS[1], 'read', last)
end
return 1
