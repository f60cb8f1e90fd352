-- Placed between mark.lua and a script that acquires a lock. Returns in its place if the work has
-- been done.
--
-- KEYS, last  the mark, see mark.lua
-- ARGV, last  the period in milliseconds; removed before the acquire script runs
-- returns     { 'ran', its end, its owner, the server's clock } if the last run was within the
--          period, both times in milliseconds since 1970
--
-- The server's clock decides, so the clocks of the hosts do not matter. A mark ahead of that clock
-- by up to the period counts as just now: the clock was set back. If the mark is further ahead, the
-- clock was wrong when it was written, and the mark is ignored, so that no run waits for the clock
-- to catch up.
do
  local period = table.remove(ARGV)
  local run = read_mark()
  if run.err then
    return run
  elseif run[1] then
    local time = redis.call('TIME')
    local now = time[1] * 1000 + math.floor(time[2] / 1000)
    -- Both times are rounded down to milliseconds. If their difference equals the period, the run
    -- may be less than a period ago: it counts as within.
    if math.abs(now - run[1]) <= tonumber(period) then
      return { 'ran', run[1], run[2] or '', string.format('%.0f', now) }
    end
  end
end
