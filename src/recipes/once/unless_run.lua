-- Stands before a script that acquires a lock, and answers in its place where there is nothing to run any more.
--
-- KEYS, last  the mark: a HASH of at, by and token, written when a run had succeeded
-- ARGV, last  the period in milliseconds; that script does not find it any more
-- returns     if the last run was within the period { 'ran', when it ended, who ran it, the server's clock }, both times in
--             milliseconds since 1970
--
-- Server time decides, so it makes no difference what the hosts' clocks say. A run that lies ahead of that clock has been
-- run just now if the clock was set back by less than the period. If it is further ahead, the clock was wrong when it was
-- marked, and nobody has to wait until it has come round again.
do
  local period = table.remove(ARGV)
  local run = redis.call('HMGET', KEYS[#KEYS], 'at', 'by')
  if run[1] then
    if not string.find(run[1], '^%d+$') then
      return redis.error_reply('WRONGKIND a mark of the last run whose time is no number')
    end
    local time = redis.call('TIME')
    local now = time[1] * 1000 + math.floor(time[2] / 1000)
    -- Both are whole milliseconds: where they differ by the period it may lack a fraction.
    if math.abs(now - run[1]) <= tonumber(period) then
      return { 'ran', run[1], run[2] or '', string.format('%.0f', now) }
    end
  elseif redis.call('EXISTS', KEYS[#KEYS]) == 1 then
    return redis.error_reply('WRONGKIND a mark of the last run without a time')
  end
end
