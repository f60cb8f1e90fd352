-- KEYS[1]  the mark of the last run
-- returns  { 'ran', when it ended, who ran it, the server's clock }, both times in milliseconds since 1970; nil if there is
--          no mark
local run = redis.call('HMGET', KEYS[1], 'at', 'by')
if not run[1] then
  return false
end
local time = redis.call('TIME')
return { 'ran', run[1], run[2] or '', string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)) }
