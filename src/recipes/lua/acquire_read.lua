-- KEYS[1]  the lock, see read_write.lua
-- ARGV[1]  our token
-- ARGV[2]  the lease in milliseconds
-- returns  1 if we are among the readers, 0 if a writer is in or waits
--
-- Safe to send twice: a reader that is in already is recognised, whoever waits. A refused attempt writes nothing.
local wrong = look()
if wrong then
  return wrong
end

local ours = 'r:' .. ARGV[1]
if ends['w:' .. ARGV[1]] then
  return redis.error_reply('INVALIDTOKEN it holds this lock for writing')
end
if not ends[ours] then
  for field in pairs(ends) do
    if string.find(field, '^[wi]:') then
      return 0
    end
  end
end

hold(ours, tonumber(ARGV[2]))
return 1
