-- KEYS[1]  the lock, see holders.lua
-- ARGV[1]  our token
-- ARGV[2]  the maximum time of a reader's hold, in milliseconds
-- ARGV[3]  the maximum time of a writer's hold
-- returns  1 if we were the writer until now, 0 if not
--
-- The article's writers overwrite `write` with their timestamp: the lock is ours only if `write`
-- has the timestamp of our field.

local wrong = read_holders()
if wrong then
  return wrong
end
local ours = 'write:' .. ARGV[1]
if not holders['write'] or holders['write'] ~= holders[ours] then
  return 0
end
-- The server deletes the key with its last field.
table.insert(over, 'write')
table.insert(over, ours)
remove(over)
return 1
