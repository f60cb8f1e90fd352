-- KEYS[1]  the mark of the last run, see mark.lua
-- returns  { 'ran', its end, its owner, the server's clock }, both times in milliseconds since
--          1970; nil if there is no mark
local run = read_mark()
if run.err then
  return run
elseif not run[1] then
  return false
end
local time = redis.call('TIME')
return { 'ran', run[1], run[2] or '', string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)) }
