-- Stands behind mark.lua and before a script that acquires a lock. Answers in its place if the work
-- has been done.
--
-- KEYS, last  the mark, see mark.lua
-- ARGV, last  the period in milliseconds; that script does not find it any more
-- returns     if the last run was within the period { 'ran', when it ended, who ran it, the
-- server's clock }, both times in milliseconds since 1970
--
-- Server time decides, so it makes no difference what the hosts' clocks say. A run that lies ahead
-- of that clock has been run just now if the clock was set back by less than the period. If it is
-- further ahead, the clock was wrong when it was marked, and nobody has to wait until it has come
-- round again.
do
  local period = table.remove(ARGV)
  local run = read_mark()
  if run.err then
    return run
  elseif run[1] then
    local time = redis.call('TIME')
    local now = time[1] * 1000 + math.floor(time[2] / 1000)
    -- Both are whole milliseconds: where they differ by the period it may lack a fraction.
    if math.abs(now - run[1]) <= tonumber(period) then
      return { 'ran', run[1], run[2] or '', string.format('%.0f', now) }
    end
  end
end
