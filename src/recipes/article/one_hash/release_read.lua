-- KEYS[1]  the lock, see holders.lua
-- ARGV[1]  our token
-- ARGV[2]  how long a reader may stay, in milliseconds
-- ARGV[3]  how long a writer may stay
-- returns  1 if we were among the readers until now, 0 if not
--
-- The article's scripts go on seeing a reader as long as there is one, ours or theirs.

local wrong = look()
if wrong then
  return wrong
end
local ours = 'read:' .. ARGV[1]
local started = holders[ours]
if not started then
  return 0
end

holders[ours] = nil
remove(over)
remove({ ours })
-- If `read` has our stamp, or has been removed by a reader of the article, it gets that of the
-- latest reader who is left: as long as there is one, the article's writers see it. Without any it
-- goes. Another stamp in `read` is somebody else's, and stays.
if not holders['read'] or holders['read'] == started then
  local last = readers()
  if last then
    redis.call('HSET', KEYS[1], 'read', last)
  else
    remove({ 'read' })
  end
end
-- The server removes the key with its last field.
return 1
