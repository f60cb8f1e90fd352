-- KEYS[1]  the lock, see one_hash.lua
-- ARGV[1]  our token
-- ARGV[2]  how long a reader may stay, in milliseconds
-- ARGV[3]  how long a writer may stay
-- returns  1 if we were the writer until now, 0 if not
--
-- The article's writers write their own stamp, so `write` says who is in.

-- All holders, or an error. The article's writers put their own stamp into `write`, so `write` says who is in. It is
-- ours only if it has the very stamp of our field.
local wrong = look()
if wrong then
  return wrong
end
local ours = 'write:' .. ARGV[1]
if not holders['write'] or holders['write'] ~= holders[ours] then
  return 0
end
-- What is too old goes, and both of our fields. The key goes with its last field by itself.
remove(over)
remove({ 'write', ours })
return 1
