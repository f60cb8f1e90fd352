-- KEYS[1]  the lock, see holders.lua
-- ARGV[1]  our token
-- ARGV[2]  how long a reader may stay, in milliseconds
-- ARGV[3]  how long a writer may stay
-- returns  1 if we were the writer until now, 0 if not
--
-- The article's writers put their own stamp into `write`: the lock is ours only if `write` has the
-- stamp of our field.

local wrong = look()
if wrong then
  return wrong
end
local ours = 'write:' .. ARGV[1]
if not holders['write'] or holders['write'] ~= holders[ours] then
  return 0
end
-- The server removes the key with its last field.
remove(over)
remove({ 'write', ours })
return 1
