-- KEYS[1]  the lock, see one_hash.lua
-- ARGV[1]  our token
-- ARGV[2]  how long a reader may stay, in milliseconds
-- ARGV[3]  how long a writer may stay
-- returns  1 if we were the writer until now, 0 if not
--
-- The article's writers write their own stamp, so `write` says who is in.
local wrong = look()
if wrong then
  return wrong
end
local ours = 'write:' .. ARGV[1]
if not holders['write'] or holders['write'] ~= holders[ours] then
  return 0
end
remove(over)
remove({ 'write', ours })
return 1
